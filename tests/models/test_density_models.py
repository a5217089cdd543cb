"""Densities as models: their formulas in NumPy, R's bw.ucv, and integrals that must be 1."""

import jax
import numpy as np
import pytest
from marks import slow
from scipy import integrate, optimize
from scipy.stats import norm

import attnkernel as ak
from attnkernel.objectives import UnbiasedCV

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
    images = [q, 2 * low - q]
    if np.isfinite(high):
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


def whole_numbers():
    rng = np.random.default_rng(0)
    return np.r_[0.0, 100.0, np.clip(np.round(rng.gamma(4.0, 8.0, size=300)), 0, 100)]


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
    with pytest.raises(ValueError, match=r"support must be the two ends.*\(1\.0, 0\.0\)"):
        ak.KernelDensity(ak.Gaussian(1.0), support=(1.0, 0.0))
    with pytest.raises(ValueError, match="reflections of Laplace"):
        ak.KernelDensity(ak.Laplace(1.0), support=(0.0, 1.0))
    with pytest.raises(
        ValueError, match=r"lengthscale of the kernel is 2: .* length of the support"
    ):
        ak.KernelDensity(ak.Gaussian(2.0), support=(0.0, 1.0))
    with pytest.raises(ValueError, match="x must lie in the support, between 1 and inf"):
        ak.KernelDensity(ak.Gaussian(1.0), support=(1.0, np.inf))(X, X)
    with pytest.raises(ValueError, match="x must lie in the support, between 1 and inf"):
        ak.fit(ak.KernelDensity(ak.Gaussian(1.0), support=(1.0, np.inf)), X)
    with pytest.raises(ValueError, match=r"support is of one column; x has 2"):
        ak.KernelDensity(ak.Gaussian(1.0), support=(0.0, np.inf))(PAIRS, PAIRS)
    with pytest.raises(ValueError, match=r"label in its last column.*\(40, 1\)"):
        ak.ConditionalDensity(ak.Gaussian(1.0), ak.Gaussian(1.0))(X, X)
    with pytest.raises(ValueError, match="Gaussian label_kernel"):
        ak.ConditionalDensity(ak.Gaussian(1.0), ak.Laplace(1.0)).mode(X, PAIRS)
    with pytest.raises(ValueError, match=r"UnbiasedCV is for ak\.KernelDensity"):
        ak.fit(ak.KernelDensity(ak.Laplace(1.0)), X, objective=UnbiasedCV())
    with pytest.raises(ValueError, match="y must be the labels of x"):
        ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), X)
