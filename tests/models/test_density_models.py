"""Densities as models: their formulas in NumPy, R's bw.ucv, and integrals that must be 1."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
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


@pytest.mark.parametrize("ends", [None, (0.0, np.inf), (0.0, 12.0)])
def test_densities_and_left_out_likelihoods_equal_their_formulas(x64, ends):
    model = ak.KernelDensity(ak.Gaussian(0.7), support=ends)
    at = np.array([0.0, 0.4, 3.0, 11.0])
    kernel = (lambda q: norm.pdf(q[:, None], X, 0.7)) if ends is None else None
    kernel = kernel or (lambda q: reflected(q, 0.7, ends))
    expected = kernel(at) @ WEIGHTS / WEIGHTS.sum()
    np.testing.assert_allclose(np.exp(model(at, X, weights=WEIGHTS)), expected, rtol=1e-11)
    found = ak.LeaveOneOut(weights=WEIGHTS)(model, jnp.asarray(X[:, None]), jnp.asarray(X))
    logs = np.log(left_out(kernel(X), WEIGHTS))
    np.testing.assert_allclose(found, -np.sum(WEIGHTS * logs) / WEIGHTS.sum(), rtol=1e-11)


def test_a_support_holds_all_of_the_density(x64):
    at = np.linspace(0.0, 12.0, 2001)
    for ends, length in (((0.0, 12.0), 0.7), ((0.0, 12.0), 12.0), ((0.0, np.inf), 0.2)):
        model = ak.KernelDensity(ak.Gaussian(length), support=ends)
        assert integrate.simpson(np.exp(model(at, X)), x=at) == pytest.approx(1.0, abs=2e-9)
    outside = model(np.array([-0.1, 0.0]), X)
    assert np.isneginf(outside[0])
    assert np.isfinite(outside[1])


def whole_numbers():
    rng = np.random.default_rng(0)
    return np.r_[0.0, 100.0, np.clip(np.round(rng.gamma(4.0, 8.0, size=300)), 0, 100)]


def test_unbiased_cross_validation_equals_that_of_r(x64):
    """R 4.2: bw.ucv(x, nb = 101 * 1024, tol = 1e-12), whose cells of 1/1024 hold the points; with
    its default of 1000 cells 3.8657740982936."""
    fit = ak.fit(ak.KernelDensity(ak.Gaussian(3.0)), whole_numbers(), objective=UnbiasedCV())
    np.testing.assert_allclose(fit.model.kernel.lengthscale, 3.8443900798049, rtol=2e-7)


@pytest.mark.parametrize("ends", [None, (0.0, np.inf), (0.0, 12.0)])
def test_unbiased_cross_validation_equals_its_integral(x64, ends):
    model = ak.KernelDensity(ak.Gaussian(0.5), support=ends)
    at = np.linspace(0.0 if ends else -4.0, 12.0 if ends else 16.0, 4001)
    squares = integrate.simpson(np.exp(2 * model(at, X)), x=at)
    kernel = norm.pdf(X[:, None], X, 0.5) if ends is None else reflected(X, 0.5, ends)
    cross = 2 * np.sum(kernel * ~np.eye(40, dtype=bool)) / 40**2
    found = UnbiasedCV()(model, jnp.asarray(X[:, None]), jnp.asarray(X))
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


def test_rows_of_weight_zero_are_none(x64):
    still = {"optimizer": optax.sgd(0.0), "steps": 1}
    zero = np.r_[np.ones(40), np.zeros(5)]
    more = np.r_[X, np.full(5, 11.0)]
    for objective in (ak.LeaveOneOut(), UnbiasedCV()):
        model = ak.KernelDensity(ak.Gaussian(0.5), support=(0.0, np.inf))
        fits = [
            ak.fit(model, x, weights=w, objective=objective, **still)
            for x, w in ((more, zero), (X, np.ones(40)))
        ]
        np.testing.assert_allclose(*(fit.loss for fit in fits), rtol=1e-12)


def test_a_call_is_one_program(programs):
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
