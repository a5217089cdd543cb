"""Kernel densities, against scikit-learn, SciPy, closed forms and sums that must be 1."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from refusals import assert_refused
from scipy import integrate, special, stats
from sklearn.neighbors import KernelDensity

import attnkernel as ak
from attnkernel.kernels import (
    AitchisonAitken,
    Biweight,
    Boxcar,
    Cauchy,
    Cosine,
    LiRacine,
    Matern32,
    RationalQuadratic,
    Triangular,
    Tricube,
    Triweight,
    WangVanRyzin,
)

N, M = 61, 7
SKLEARN = {
    "gaussian": ak.Gaussian,
    "tophat": Boxcar,
    "epanechnikov": ak.Epanechnikov,
    "exponential": ak.Laplace,
    "linear": Triangular,
    "cosine": Cosine,
}


def points(dim):
    rng = np.random.default_rng(dim)
    return rng.normal(size=(M, dim)), rng.normal(size=(N, dim)), rng.uniform(0, 2, N).round(1)


@pytest.mark.parametrize("dim", [3, slow(1)])
def test_densities_of_scikit_learn(x64, dim):
    q, x, weights = points(dim)
    weights = weights + 0.1  # theirs are to be positive

    @jax.jit
    def densities(q, x, weights):
        """The density of each kernel and its logarithm."""
        return {
            name: [
                ak.density(q, x, kernel=make(1.3), weights=weights, log=log)
                for log in (False, True)
            ]
            for name, make in SKLEARN.items()
        }

    for name, (density, log_density) in jax.device_get(densities(q, x, weights)).items():
        theirs = KernelDensity(bandwidth=1.3, kernel=name, rtol=0, atol=0)
        expected = theirs.fit(x, sample_weight=weights).score_samples(q)
        assert np.any(np.isfinite(expected))
        # beyond the support theirs is log of the least positive number, ours -inf
        expected = np.where(expected < -300, -np.inf, expected)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-9, err_msg=name)
        close(log_density, expected, atol=1e-10)
        close(density, np.exp(expected))


def test_a_full_metric_is_the_covariance_of_scipy(x64):
    q, x, weights = points(2)

    @jax.jit
    def density(metric, weights):
        return ak.density(q, x, kernel=ak.Gaussian(1.0, metric=metric), weights=weights)

    for given in (None, weights):
        theirs = stats.gaussian_kde(x.T, weights=given)
        found = density(np.linalg.inv(theirs.covariance), given)
        np.testing.assert_allclose(found, theirs(q.T), rtol=1e-10)


def test_the_log_density_does_not_underflow(x64):
    @jax.jit
    def logs(q, x):
        kernels = ak.Gaussian(0.5), Tricube(0.5)
        return [ak.density(q, x, kernel=kernel, log=True) for kernel in kernels]

    q = np.array([200.0])
    gaussian, compact = logs(q, np.zeros(3))
    np.testing.assert_allclose(gaussian, stats.norm.logpdf(q, scale=0.5), rtol=1e-12)
    np.testing.assert_array_equal(compact, [-np.inf])


@pytest.mark.parametrize("dim", [1, 7, slow(2), slow(3), slow(30)])
def test_integrals_by_their_closed_forms(x64, dim):
    """∫ r^(d-1) K(r) dr: gamma functions where K is smooth, beta functions where it is compact."""
    g, h = special.gamma, 0.5 * dim
    expected = [
        (ak.Gaussian(1.0), 2 ** (h - 1) * g(h)),
        (ak.Laplace(1.0), g(dim)),
        (Matern32(1.0), 3**-h * (g(dim) + g(dim + 1))),
        (ak.Matern52(1.0), 5**-h * (g(dim) + g(dim + 1) + g(dim + 2) / 3)),
        (Boxcar(1.0), 1 / dim),
        (Triangular(1.0), 1 / dim - 1 / (dim + 1)),
        (ak.Epanechnikov(1.0), special.beta(h, 2) / 2),
        (Biweight(1.0), special.beta(h, 3) / 2),
        (Triweight(1.0), special.beta(h, 4) / 2),
        (Tricube(1.0), special.beta(dim / 3, 4) / 3),
    ]
    if dim == 1:
        expected.append((Cauchy(1.0), np.pi / 2))
    alphas = np.array([h + 0.01, h + 0.99, h + 1.01, 100.0])
    of_alphas = 0.5 * (2 * alphas) ** h * special.beta(h, alphas - h)

    @jax.jit
    def log_normalisers(kernels, alphas):
        of_alpha = jax.vmap(lambda alpha: RationalQuadratic(1.0, alpha).log_normaliser(dim))
        return jnp.stack([kernel.log_normaliser(dim) for kernel in kernels]), of_alpha(alphas)

    kernels, integrals = zip(*expected, strict=True)
    sphere = 2 * np.pi**h / g(h)
    expected = np.log(sphere * np.array(integrals)), np.log(sphere * of_alphas)
    for found, logs in zip(log_normalisers(kernels, alphas), expected, strict=True):
        np.testing.assert_allclose(found, logs, atol=1e-11)


def test_a_kernel_of_your_own_needs_no_integral(x64):
    class Bump(ak.kernels.Radial):
        __init__ = ak.kernels.Radial.__init__

        def log_of(self, squares):
            return -(squares**2)

    found = jax.jit(lambda q: ak.density(q, np.array([0.5]), kernel=Bump(0.7)))(np.zeros(1))
    scale = integrate.quad(lambda u: math.exp(-((u / 0.7) ** 4)), -np.inf, np.inf)[0]
    np.testing.assert_allclose(found, [math.exp(-((0.5 / 0.7) ** 4)) / scale], rtol=1e-9)


def test_densities_of_mixed_columns_sum_to_one(x64):
    rng = np.random.default_rng(4)
    x = np.stack([rng.normal(size=N), rng.integers(0, 3, N), rng.integers(-2, 3, N)], axis=1)
    grid = np.linspace(-8, 8, 161)  # the sum over it is exact to rounding, the spacing being ℓ/4
    cells = np.stack(np.meshgrid(grid, np.arange(3), np.arange(-30, 31), indexing="ij"), axis=-1)

    @jax.jit
    def density(q):
        names = AitchisonAitken(0.2, 3).on(1) * WangVanRyzin(0.3).on(2)
        return ak.density(q, x, kernel=ak.Gaussian(0.4).on(0) * names)

    found = np.sum(np.asarray(density(cells.reshape(-1, 3))))
    np.testing.assert_allclose(found * (grid[1] - grid[0]), 1.0, rtol=1e-9)


def test_the_likelihood_of_lengthscale_and_shape_has_slopes(x64):
    q, x, _ = points(2)

    @jax.jit
    @jax.vmap
    def value_and_slopes(scale, alpha):
        def log_likelihood(scale, alpha):
            kernel = RationalQuadratic(scale, alpha)
            return jnp.sum(ak.density(q, x, kernel=kernel, log=True))

        value, slopes = jax.value_and_grad(log_likelihood, argnums=(0, 1))(scale, alpha)
        return value, jnp.stack(slopes)

    for alpha in (1.5, 3.0):
        s = 0.7 + 1e-5 * np.array([0, -1, 1, 0, 0])
        a = alpha + 1e-5 * np.array([0, 0, 0, -1, 1])
        values, slopes = map(np.asarray, value_and_slopes(s, a))
        expected = [(values[2] - values[1]) / 2e-5, (values[4] - values[3]) / 2e-5]
        np.testing.assert_allclose(slopes[0], expected, rtol=1e-7)


def test_kernels_and_data_without_a_density_are_refused():
    q, x, weights = points(2)
    for kernel, pattern in [
        (Cauchy(1.0), r"Cauchy\(lengthscale=1\).* 2 dimensions"),
        (RationalQuadratic(1.0, 1.0), "RationalQuadratic.* 2 dimensions"),
        (ak.Periodic(), "Periodic .*density"),
        (ak.DotProduct(), "DotProduct .*density"),
        (LiRacine(0.1), "LiRacine .*density"),
        (ak.Gaussian(1.0).on(1), "constant along"),
        (ak.Gaussian(1.0) * ak.Laplace(1.0), r"\(0, 1\), \(0, 1\)"),
        (ak.Gaussian(1.0).on(0) * ak.Laplace(1.0).on(0), r"\(0,\), \(0,\)"),
    ]:
        with pytest.raises(ValueError, match=pattern):
            ak.density(q, x, kernel=kernel)
    assert_refused(
        (lambda: ak.density(q, x[:0], kernel=ak.Gaussian(1.0)), "x has none"),
        (lambda: ak.density(q, x * np.nan, kernel=ak.Gaussian(1.0)), r"x .*finite"),
        (lambda: ak.density(q, x[:, 0], kernel=ak.Gaussian(1.0)), "2 and 1"),
        (lambda: ak.density(q, x, kernel=ak.Gaussian(1.0), weights=-weights), r"weights.* from -"),
    )
    inside = jax.jit(lambda scale: ak.density(q, x, kernel=Cauchy(scale)))(1.0)
    assert np.all(np.isnan(inside))
