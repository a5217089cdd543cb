"""Kernel densities, against scikit-learn, SciPy, R's bw.ucv, formulas, and sums that must be 1."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from noisy_sine import whole_numbers
from refusals import assert_raises, assert_refused
from scipy import integrate, optimize, special, stats
from scipy.stats import norm, vonmises
from sklearn.neighbors import KernelDensity

import attnkernel as ak
from attnkernel.objectives import UnbiasedCV

N, M = 61, 7
SKLEARN = {
    "gaussian": ak.Gaussian,
    "tophat": ak.kernels.Boxcar,
    "epanechnikov": ak.Epanechnikov,
    "exponential": ak.Laplace,
    "linear": ak.kernels.Triangular,
    "cosine": ak.kernels.Cosine,
}


def points(dim):
    rng = np.random.default_rng(dim)
    return rng.normal(size=(M, dim)), rng.normal(size=(N, dim)), rng.uniform(0, 2, N).round(1)


@pytest.mark.parametrize("dim", [3, slow(1)])
def test_densities_of_scikit_learn(x64, dim):
    q, x, weights = points(dim)
    weights = weights + 0.1  # theirs are to be positive
    q[-1] += 200.0  # there densities underflow, and their logarithms do not

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
        is_compact = name not in ("gaussian", "exponential")
        expected = np.where(is_compact & (expected < -300), -np.inf, expected)
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


@pytest.mark.parametrize("dim", [1, 7, slow(2), slow(3), slow(30)])
def test_integrals_by_their_closed_forms(x64, dim):
    """∫ r^(d-1) K(r) dr: gamma functions where K is smooth, beta functions where it is compact."""
    g, h = special.gamma, 0.5 * dim
    expected = [
        (ak.Gaussian(1.0), 2 ** (h - 1) * g(h)),
        (ak.Laplace(1.0), g(dim)),
        (ak.kernels.Matern32(1.0), 3**-h * (g(dim) + g(dim + 1))),
        (ak.Matern52(1.0), 5**-h * (g(dim) + g(dim + 1) + g(dim + 2) / 3)),
        (ak.kernels.Boxcar(1.0), 1 / dim),
        (ak.kernels.Triangular(1.0), 1 / dim - 1 / (dim + 1)),
        (ak.Epanechnikov(1.0), special.beta(h, 2) / 2),
        (ak.kernels.Biweight(1.0), special.beta(h, 3) / 2),
        (ak.kernels.Triweight(1.0), special.beta(h, 4) / 2),
        (ak.kernels.Tricube(1.0), special.beta(dim / 3, 4) / 3),
    ]
    if dim == 1:
        expected.append((ak.kernels.Cauchy(1.0), np.pi / 2))
    alphas = np.array([h + 0.01, h + 0.99, h + 1.01, 100.0])
    of_alphas = 0.5 * (2 * alphas) ** h * special.beta(h, alphas - h)

    @jax.jit
    def log_normalisers(kernels, alphas):
        of_alpha = jax.vmap(
            lambda alpha: ak.kernels.RationalQuadratic(1.0, alpha).log_normaliser(dim)
        )
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
        names = ak.kernels.AitchisonAitken(0.2, 3).on(1) * ak.kernels.WangVanRyzin(0.3).on(2)
        return ak.density(q, x, kernel=ak.Gaussian(0.4).on(0) * names)

    found = np.sum(np.asarray(density(cells.reshape(-1, 3))))
    np.testing.assert_allclose(found * (grid[1] - grid[0]), 1.0, rtol=1e-9)


def test_densities_of_li_and_racine_sum_to_one_over_their_categories(x64):
    x, weights = np.array([[0.0, 1.0], [2.0, 4.0], [2.0, 0.0]]), np.array([1.0, 2.0, 0.5])
    at = np.stack(np.meshgrid(np.arange(3.0), np.arange(5.0)), axis=-1).reshape(-1, 2)
    lambdas, counts = np.array([0.3, 0.6]), np.array([3, 5])

    @jax.jit
    def found(lambdas):
        kernels = ak.kernels.LiRacine(lambdas, (3, 5)), ak.kernels.LiRacine(lambdas[0], 3).on(0)
        both = kernels[0], kernels[1] * ak.kernels.LiRacine(lambdas[1], 5).on(1)
        return [ak.density(at, x, kernel=kernel, weights=weights) for kernel in both]

    of_pairs = np.prod(np.where(at[:, None] == x, 1.0, lambdas), axis=2)
    expected = of_pairs @ weights / weights.sum() / np.prod(1.0 + (counts - 1) * lambdas)
    np.testing.assert_allclose(np.sum(expected), 1.0, rtol=1e-14)
    for density in jax.device_get(found(lambdas)):
        np.testing.assert_allclose(density, expected, rtol=1e-12)
    one = at[:, :1], x[:, :1]
    assert_raises(
        "2 bandwidths.*1 columns", ak.density, *one, kernel=ak.kernels.LiRacine(0.3, (3, 5))
    )


def test_kernels_and_data_without_a_density_are_refused():
    q, x, _ = points(2)
    for kernel, pattern in [
        (ak.kernels.Cauchy(1.0), r"Cauchy\(lengthscale=1\).* 2 dimensions"),
        (ak.DotProduct(), "DotProduct .*density"),
        (ak.kernels.LiRacine(0.1), "LiRacine .*density"),
        (ak.Gaussian(1.0).on(1), "constant along"),
        (ak.Gaussian(1.0) * ak.Laplace(1.0), r"\(0, 1\), \(0, 1\)"),
    ]:
        assert_raises(pattern, ak.density, q, x, kernel=kernel)
    assert_raises("x has none", ak.density, q, x[:0], kernel=ak.Gaussian(1.0))
    assert_raises("2 and 1", ak.density, q, x[:, 0], kernel=ak.Gaussian(1.0))
    inside = jax.jit(lambda scale: ak.density(q, x, kernel=ak.kernels.Cauchy(scale)))(1.0)
    assert np.all(np.isnan(inside))


RNG = np.random.default_rng(5)
X = RNG.gamma(2.0, size=40)
WEIGHTS = RNG.uniform(0.5, 2.0, size=40)
INPUTS = np.linspace(0.0, 3.0, 40)
PAIRS = np.stack([INPUTS, np.sin(INPUTS) + 0.3 * RNG.normal(size=40)], axis=1)


def left_out(values, weights=None):
    """Σ_j a_j v_ij / Σ_j a_j without j = i, of a matrix of values."""
    a = np.broadcast_to(np.ones(len(values)) if weights is None else weights, values.shape)
    a = a * ~np.eye(len(values), dtype=bool)
    return np.sum(a * values, axis=1) / np.sum(a, axis=1)


def reflected(q, length, ends):
    """K at pairs of q and X, with the reflections at the ends."""
    low, high = ends
    images = [q, 2 * (low if np.isfinite(low) else high) - q]
    if np.all(np.isfinite(ends)):
        steps = 2 * (high - low) * np.arange(-9, 10)
        images = [each + step for each in images for step in steps]
    return sum(norm.pdf(each[:, None], X[None, :], length) for each in images)


def expected_kernel(q, length, ends):
    """K at pairs of q and X."""
    return norm.pdf(q[:, None], X, length) if ends is None else reflected(q, length, ends)


@pytest.mark.parametrize("ends", [None, slow((0.0, np.inf)), slow((0.0, 12.0))])
def test_densities_and_left_out_likelihoods_equal_their_formulas(x64, ends):
    """Rows with zero weight are ignored, wherever they lie."""
    at, more, zero = np.array([0.0, 0.4, 3.0, 11.0]), np.r_[X, 11.9], np.r_[WEIGHTS, 0.0]

    @jax.jit
    def results(x, weights):
        model = ak.KernelDensity(ak.Gaussian(0.7), support=ends)
        loss = ak.LeaveOneOut(weights=weights)(model, x[:, None], x)
        return model(at, x, weights=weights), loss

    logs, loss = jax.device_get(results(more, zero))
    expected = expected_kernel(at, 0.7, ends) @ WEIGHTS / WEIGHTS.sum()
    np.testing.assert_allclose(np.exp(logs), expected, rtol=1e-11)
    logs = np.log(left_out(expected_kernel(X, 0.7, ends), WEIGHTS))
    np.testing.assert_allclose(loss, -np.sum(WEIGHTS * logs) / WEIGHTS.sum(), rtol=1e-11)


def test_a_support_holds_all_of_the_density(x64):
    at = np.linspace(0.0, 12.0, 2001)
    cases = ((0.0, 12.0), 0.7), ((0.0, 12.0), 12.0), ((0.0, np.inf), 0.2)

    @jax.jit
    def logs(x):
        models = [ak.KernelDensity(ak.Gaussian(length), support=ends) for ends, length in cases]
        return [model(at, x) for model in models], models[-1](np.array([-0.1]), x)

    inside, outside = jax.device_get(logs(X))
    totals = integrate.simpson(np.exp(inside), x=at, axis=1)
    np.testing.assert_allclose(totals, np.ones(3), rtol=0, atol=2e-9)
    np.testing.assert_array_equal(outside, [-np.inf])
    assert np.all(np.isfinite(np.array(inside)[:, 0]))


def test_a_support_of_two_columns_reflects_each_of_them(x64):
    at, lengths, both = np.array([0.3, 4.0]), (0.7, 0.5), ((0.0, np.inf), (-1.0, 12.0))
    points = np.stack([X, X[::-1]], axis=1)

    @jax.jit
    def found(x):
        model = ak.KernelDensity(ak.Gaussian(np.array(lengths)), support=both)
        draws = model.sample(jax.random.PRNGKey(0), 500, x)
        return model(np.stack([at, at[::-1]], axis=1), x), model.cdf(at[None], x), draws

    logs, below, draws = jax.device_get(found(points))
    first, second = (reflected(at, *of) for of in zip(lengths, both, strict=True))
    expected = np.mean(first * second[::-1, ::-1], axis=1)
    np.testing.assert_allclose(np.exp(logs), expected, rtol=1e-11)
    grids = [np.linspace(low, end, 2001) for (low, _), end in zip(both, at, strict=True)]
    parts = [
        integrate.simpson(reflected(grid, length, ends), x=grid, axis=0)
        for grid, length, ends in zip(grids, lengths, both, strict=True)
    ]
    np.testing.assert_allclose(below, [np.mean(parts[0] * parts[1][::-1])], rtol=1e-9)
    assert np.all(draws >= [0.0, -1.0])
    assert np.all(draws[:, 1] <= 12.0)


@pytest.mark.slow
@pytest.mark.parametrize("ends", [(0.0, 12.0), None, (0.0, np.inf), (-np.inf, 12.0)])
def test_distribution_functions_are_integrals_of_densities_and_of_draws(x64, ends):
    at = np.array([0.3, 2.0, 5.0])
    model = ak.KernelDensity(ak.Gaussian(0.7), support=ends)

    @jax.jit
    def found(x, weights):
        draws = model.sample(jax.random.PRNGKey(0), 20_000, x, weights=weights)
        of_points, of_draws = (model.cdf(q, x, weights=weights) for q in (at, draws[:, 0]))
        return draws[:, 0], of_points, jnp.sort(of_draws)

    draws, below, uniform = jax.device_get(found(X, WEIGHTS))
    low, high = ends or (-np.inf, np.inf)
    assert low <= draws.min() <= draws.max() <= high
    grid = np.linspace(max(low, -9.0), at, 4001)
    density = np.stack([expected_kernel(q, 0.7, ends) @ WEIGHTS for q in grid.T])
    expected = integrate.simpson(density / WEIGHTS.sum(), x=grid.T)
    np.testing.assert_allclose(below, expected, rtol=1e-9)
    # Kolmogorov and Smirnov: above 1.95 / √n once in a thousand
    assert np.max(np.abs(uniform - np.linspace(0, 1, len(draws)))) < 1.95 / np.sqrt(len(draws))


def test_densities_round_a_circle_are_those_of_von_mises(x64):
    hours, period, lengthscale = np.array([23.0, 0.5, 3.0]), 24.0, 0.6
    at = np.array([0.0, 12.0, 24.0, 23.5])
    found = ak.density(at, hours, kernel=ak.Periodic(lengthscale, period))
    turns = 2.0 * np.pi / period
    shifts = (at[:, None] - hours) * turns
    expected = turns * np.mean(vonmises.pdf(shifts, lengthscale**-2), axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_unbiased_cross_validation_equals_that_of_r(x64):
    """R 4.2: bw.ucv(x, nb = 101 * 1024, tol = 1e-12), whose cells of 1/1024 hold the points; with
    its default of 1000 cells 3.8657740982936."""
    fit = ak.fit(
        ak.KernelDensity(ak.Gaussian(3.0)), whole_numbers(), objective=UnbiasedCV(), starts=1
    )
    np.testing.assert_allclose(fit.model.kernel.lengthscale, 3.8443900798049, rtol=2e-7)


@pytest.mark.parametrize("ends", [slow((0.0, 12.0)), slow(None)])
def test_unbiased_cross_validation_equals_its_integral(x64, ends):
    """Rows with zero weight are ignored."""
    at = np.linspace(0.0 if ends else -4.0, 12.0 if ends else 16.0, 4001)
    more, zero = np.r_[X, 11.0], np.r_[np.ones(40), 0.0]

    @jax.jit
    def results(x):
        model = ak.KernelDensity(ak.Gaussian(0.5), support=ends)
        return model(at, x[:40]), UnbiasedCV(weights=zero)(model, x[:, None], x)

    logs, found = jax.device_get(results(more))
    squares = integrate.simpson(np.exp(2 * logs), x=at)
    kernel = expected_kernel(X, 0.5, ends)
    cross = 2 * np.sum(kernel * ~np.eye(40, dtype=bool)) / 40**2
    np.testing.assert_allclose(found, squares - cross, rtol=1e-8)


def conditional(at, lengths):
    """The density of each label given each input, and K and L at pairs."""
    inputs = norm.pdf(at[:, :1], PAIRS[None, :, 0], lengths[0])
    labels = norm.pdf(at[:, 1:], PAIRS[None, :, 1], lengths[1])
    return inputs * labels, inputs


def test_conditional_densities_equal_their_formulas(x64):
    lengths = (0.6, 0.25)
    model = ak.ConditionalDensity(*map(ak.Gaussian, lengths))
    at = np.array([[0.5, 0.3], [2.0, 1.0], [2.0, -1.0]])
    both, alone = conditional(at, lengths)
    expected = both @ WEIGHTS / (alone @ WEIGHTS)
    np.testing.assert_allclose(np.exp(model(at, PAIRS, weights=WEIGHTS)), expected, rtol=1e-11)
    grid = np.linspace(-3.0, 3.0, 20001)
    both, _ = conditional(np.stack([np.full_like(grid, 2.0), grid], axis=1), lengths)
    mode = model.mode(np.array([2.0]), PAIRS, weights=WEIGHTS)
    np.testing.assert_allclose(mode, grid[np.argmax(both @ WEIGHTS)], atol=3e-4)


def test_lengthscales_minimise_the_left_out_likelihood(x64):
    """The definition of np's npcdensbw(bwmethod = "cv.ml"), with second-order Gaussian kernels."""

    def criterion(logs):
        both, alone = conditional(PAIRS, np.exp(logs))
        return -np.mean(np.log(left_out(both) / left_out(alone)))

    start = np.log([0.5, 0.3])
    best = optimize.minimize(criterion, start, method="BFGS", tol=1e-7)
    fit = ak.fit(ak.ConditionalDensity(ak.Gaussian(0.5), ak.Gaussian(0.3)), PAIRS, starts=1)
    np.testing.assert_allclose(fit.loss, best.fun, rtol=1e-8)
    found = [fit.model.kernel.lengthscale, fit.model.label_kernel.lengthscale]
    np.testing.assert_allclose(found, np.exp(best.x), rtol=1e-4)


def test_a_call_is_one_program(programs):
    jax.clear_caches()
    model = ak.KernelDensity(ak.Gaussian(0.5), support=(0.0, np.inf))
    joint = ak.ConditionalDensity(ak.Gaussian(0.5), ak.Gaussian(0.5))
    calls = [
        lambda n: model(np.array([1.0, 2.0]), X[:n]),
        lambda n: joint(PAIRS[:3], PAIRS[:n]),
        lambda n: joint.mode(np.array([1.0, 2.0]), PAIRS[:n]),
    ]
    for call in calls:
        programs.clear()
        call(40)
        assert len([name for name in programs if name != "jit(stage)"]) <= 1, programs
        programs.clear()
        call(37)
        assert programs == []


def test_densities_that_do_not_exist_are_refused(x64):
    def density(support, scale=1.0):
        return ak.KernelDensity(ak.Gaussian(scale), support=support)

    conditional = ak.ConditionalDensity(ak.Gaussian(1.0), ak.Laplace(1.0))
    laplace, outside = ak.KernelDensity(ak.Laplace(1.0)), "x must lie in the support, between 1 and"
    assert_refused(
        (lambda: density((1.0, 0.0)), r"support must be the two ends.*\(1\.0, 0\.0\)"),
        (lambda: ak.KernelDensity(ak.Laplace(1.0), support=(0.0, 1.0)), "reflections of Laplace"),
        (lambda: density((0.0, 1.0), 2.0), "lengthscale of the kernel is 2: .* length of the sup"),
        (lambda: density((1.0, np.inf))(X, X), outside),
        (lambda: ak.fit(density((1.0, np.inf)), X), outside),
        (lambda: density((0.0, np.inf))(PAIRS, PAIRS), "for each column of x; it has 1, and x has"),
        (lambda: conditional(X, X), r"label in its last column.*\(40, 1\)"),
        (lambda: conditional.mode(X, PAIRS), "Gaussian label_kernel"),
        (lambda: laplace.cdf(X, X), r"of ak.Gaussian.*kernel is Laplace"),
        (lambda: ak.fit(laplace, X, objective=UnbiasedCV()), r"UnbiasedCV is for ak\.Kernel"),
        (lambda: ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), X), "y must be the labels of x"),
    )
