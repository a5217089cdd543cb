"""Kernel densities, against scikit-learn, SciPy, closed forms and sums that must be 1."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats
from sklearn.neighbors import KernelDensity

import attnkernel as ak

N, M = 61, 7
SKLEARN = {
    "gaussian": ak.Gaussian,
    "tophat": ak.Boxcar,
    "epanechnikov": ak.Epanechnikov,
    "exponential": ak.Laplace,
    "linear": ak.Triangular,
    "cosine": ak.Cosine,
}


def points(dim):
    rng = np.random.default_rng(dim)
    return rng.normal(size=(M, dim)), rng.normal(size=(N, dim)), rng.uniform(0, 2, N).round(1)


@pytest.mark.parametrize("name", SKLEARN)
@pytest.mark.parametrize("dim", [1, 3])
def test_densities_of_scikit_learn(x64, name, dim):
    q, x, weights = points(dim)
    weights = weights + 0.1  # theirs are to be positive
    theirs = KernelDensity(bandwidth=1.3, kernel=name, rtol=0, atol=0).fit(x, sample_weight=weights)
    kernel = SKLEARN[name](1.3)
    found = ak.density(q, x, kernel=kernel, weights=weights, log=True)
    expected = theirs.score_samples(q)
    assert np.any(np.isfinite(expected))
    # beyond the support theirs is log of the least positive number, ours -inf
    expected = np.where(expected < -300, -np.inf, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(
        ak.density(q, x, kernel=kernel, weights=weights), np.exp(expected), rtol=1e-9
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_a_full_metric_is_the_covariance_of_scipy(x64, weighted):
    q, x, weights = points(2)
    weights = weights if weighted else None
    theirs = stats.gaussian_kde(x.T, weights=weights)
    kernel = ak.Gaussian(1.0, metric=np.linalg.inv(theirs.covariance))
    found = ak.density(q, x, kernel=kernel, weights=weights)
    np.testing.assert_allclose(found, theirs(q.T), rtol=1e-10)


def test_far_away_the_logarithm_stays(x64):
    q, x = np.array([200.0]), np.zeros(3)
    found = ak.density(q, x, kernel=ak.Gaussian(0.5), log=True)
    np.testing.assert_allclose(found, stats.norm.logpdf(q, scale=0.5), rtol=1e-12)
    np.testing.assert_array_equal(ak.density(q, x, kernel=ak.Tricube(0.5), log=True), [-np.inf])


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 30])
def test_integrals_by_their_closed_forms(x64, dim):
    """∫ r^(d-1) K(r) dr: gamma functions where K is smooth, beta functions where it is compact."""
    g, h = special.gamma, 0.5 * dim
    expected = [
        (ak.Gaussian(1.0), 2 ** (h - 1) * g(h)),
        (ak.Laplace(1.0), g(dim)),
        (ak.Matern32(1.0), 3**-h * (g(dim) + g(dim + 1))),
        (ak.Matern52(1.0), 5**-h * (g(dim) + g(dim + 1) + g(dim + 2) / 3)),
        (ak.Boxcar(1.0), 1 / dim),
        (ak.Triangular(1.0), 1 / dim - 1 / (dim + 1)),
        (ak.Epanechnikov(1.0), special.beta(h, 2) / 2),
        (ak.Biweight(1.0), special.beta(h, 3) / 2),
        (ak.Triweight(1.0), special.beta(h, 4) / 2),
        (ak.Tricube(1.0), special.beta(dim / 3, 4) / 3),
    ]
    for alpha in (h + 0.01, h + 0.99, h + 1.01, 100.0):
        integral = 0.5 * (2 * alpha) ** h * special.beta(h, alpha - h)
        expected.append((ak.RationalQuadratic(1.0, alpha), integral))
    if dim == 1:
        expected.append((ak.Cauchy(1.0), np.pi / 2))
    sphere = 2 * np.pi**h / g(h)
    for kernel, integral in expected:
        volume = kernel.log_volume(dim)
        np.testing.assert_allclose(
            volume, np.log(sphere * integral), atol=1e-11, err_msg=repr(kernel)
        )


def test_a_kernel_of_your_own_needs_no_integral(x64):
    class Bump(ak.kernels.Radial):
        __init__ = ak.kernels.Radial.__init__

        def log_of(self, squares):
            return -(squares**2)

    found = ak.density(np.zeros(1), np.array([0.5]), kernel=Bump(0.7))
    scale = integrate.quad(lambda u: math.exp(-((u / 0.7) ** 4)), -np.inf, np.inf)[0]
    np.testing.assert_allclose(found, [math.exp(-((0.5 / 0.7) ** 4)) / scale], rtol=1e-9)


def test_mixed_columns_sum_to_one(x64):
    rng = np.random.default_rng(4)
    x = np.stack([rng.normal(size=N), rng.integers(0, 3, N), rng.integers(-2, 3, N)], axis=1)
    kernel = ak.Gaussian(0.4).on(0) * (
        ak.AitchisonAitken(0.2, 3).on(1) * ak.WangVanRyzin(0.3).on(2)
    )
    grid = np.linspace(-8, 8, 401)
    cells = np.stack(np.meshgrid(grid, np.arange(3), np.arange(-40, 41), indexing="ij"), axis=-1)
    found = ak.density(cells.reshape(-1, 3), x, kernel=kernel)
    np.testing.assert_allclose(jnp.sum(found) * (grid[1] - grid[0]), 1.0, rtol=1e-9)


def test_the_likelihood_of_a_lengthscale_has_a_slope(x64):
    q, x, _ = points(2)

    def log_likelihood(scale, alpha):
        return jnp.sum(ak.density(q, x, kernel=ak.RationalQuadratic(scale, alpha), log=True))

    for alpha in (1.5, 3.0):  # by its closed form, and by quadrature
        found = jax.jit(jax.grad(log_likelihood, argnums=(0, 1)))(0.7, alpha)
        s, a = 0.7 + 1e-5 * np.array([-1, 1, 0, 0]), alpha + 1e-5 * np.array([0, 0, -1, 1])
        low, high, short, long = map(log_likelihood, s, a)
        expected = [(high - low) / 2e-5, (long - short) / 2e-5]
        np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_what_is_no_density():
    q, x, weights = points(2)
    for kernel, sentence in [
        (ak.Cauchy(1.0), r"Cauchy\(lengthscale=1\) falls too slowly .* in 2 dimensions"),
        (ak.RationalQuadratic(1.0, 1.0), "falls too slowly"),
        (ak.Periodic(), "Periodic is no density of points"),
        (ak.DotProduct(), "DotProduct is no density"),
        (ak.LiRacine(0.1), "LiRacine is no density"),
        (ak.Gaussian(1.0).on(1), "is constant along the others"),
        (ak.Gaussian(1.0) * ak.Laplace(1.0), r"the factors take \(0, 1\), \(0, 1\)"),
        (ak.Gaussian(1.0).on(0) * ak.Laplace(1.0).on(0), r"each column is of one factor"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            ak.density(q, x, kernel=kernel)
    with pytest.raises(ValueError, match="at least one point"):
        ak.density(q, x[:0], kernel=ak.Gaussian(1.0))
    with pytest.raises(ValueError, match="x must be finite"):
        ak.density(q, x * np.nan, kernel=ak.Gaussian(1.0))
    with pytest.raises(ValueError, match="same dimension; got 2 and 1"):
        ak.density(q, x[:, 0], kernel=ak.Gaussian(1.0))
    with pytest.raises(ValueError, match="none below 0"):
        ak.density(q, x, kernel=ak.Gaussian(1.0), weights=-weights)
    inside = jax.jit(lambda scale: ak.density(q, x, kernel=ak.Cauchy(scale)))(1.0)
    assert np.all(np.isnan(inside))
