"""Additive and partially linear fits, against backfitting and Robinson's formula in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimates import fitted_and_leverage
from known_fits import known_fit
from least_squares import local_polynomial
from marks import slow
from refusals import assert_raises

import attnkernel as ak
from attnkernel.econometrics import PartiallyLinear
from attnkernel.kernels import LiRacine
from attnkernel.priors import ExcludeSelf, HeldOut

N = 30  # padded to 32
ELL = (0.15, 0.2, 0.3)
AT = np.random.default_rng(2).uniform(size=(5, 3))


def sample():
    """Inputs, labels, weights of rows."""
    rng = np.random.default_rng(1)
    x = rng.uniform(size=(N, 3))
    y = 5.0 + np.sin(5 * x[:, 0]) + x[:, 1] ** 2 + 0.3 * rng.normal(size=N)
    return x, y, rng.uniform(0.5, 2.0, N)


def backfit(x, weights, order):
    """The weight of each label in the curves at the rows and at AT, less the mean of the labels.

    By sweeps until nothing moves; shapes (3, rows, labels).
    """
    share = weights / weights.sum()

    def of_columns(q):
        columns = zip(q.T, x.T, ELL, strict=True)
        return [local_polynomial(*column, order, weights=weights) for column in columns]

    centred, new = of_columns(x), of_columns(AT)
    centre = np.eye(N) - share
    curves = np.zeros((3, N, N))
    for _ in range(3000):
        before = curves.copy()
        for j in range(3):
            curves[j] = centred[j] @ (centre - curves.sum(axis=0) + curves[j])
            curves[j] -= share @ curves[j]
        if np.max(np.abs(curves - before)) < 1e-14:
            break
    partial = [centre - curves.sum(axis=0) + curve for curve in curves]
    at_new = [new[j] @ partial[j] - share @ (centred[j] @ partial[j]) for j in range(3)]
    return curves, np.array(at_new)


def additive(order=1):
    return ak.AdditiveRegression([ak.Gaussian(ell) for ell in ELL], order=order)


@pytest.mark.parametrize("order", [1, slow(0)])
def test_an_additive_fit_is_the_limit_of_backfitting(x64, order):
    """Rows of weight 0 and rows held out are none, whatever their labels."""
    x, y, weights = sample()
    weights[::7], hidden = 0.0, np.arange(N) % 5 == 2
    spoilt = np.where(weights > 0, y, 1e3)
    held_out = np.where(hidden, 1e3, spoilt)
    model = additive(order)

    @jax.jit
    def computed(x, y, held_out, weights):
        return {
            "prediction": model(AT, x, y, weights=weights),
            "curves": model.components(jnp.concatenate([x, AT]), x, y, weights=weights),
            "fitted": fitted_and_leverage(model, x, y, weights=weights),
            "held out": model(AT, x, held_out, prior=HeldOut(hidden), weights=weights),
        }

    found = jax.device_get(computed(x, spoilt, held_out, weights))
    share = weights / weights.sum()
    curves, at_new = backfit(x, weights, order)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    close(found["prediction"], share @ y + at_new.sum(axis=0) @ y)
    close(found["curves"], np.concatenate([curves @ y, at_new @ y], axis=1).T)
    close(share @ found["curves"][:N], np.zeros(3))
    fitted, leverage = found["fitted"]
    hat = share + curves.sum(axis=0)
    close(fitted[weights > 0], (hat @ y)[weights > 0])
    close(leverage, np.diag(hat))
    seen = weights * ~hidden
    _, at_new = backfit(x, seen, order)
    close(found["held out"], (seen / seen.sum() + at_new.sum(axis=0)) @ y)


def noise_variance(hat, y, weights):
    """σ² of labels whose variances are σ² over their weights."""
    rest = np.eye(N) - hat
    counts = np.trace(rest.T @ np.diag(weights) @ rest / weights)
    return np.sum(weights * (rest @ y) ** 2) / counts


@pytest.mark.parametrize("component", ["b", slow(None)])
def test_bands_of_an_additive_fit_and_of_its_curves(x64, component, programs):
    x, y, weights = sample()
    share = weights / weights.sum()
    fit = known_fit(additive(), x, y, weights, ak.AICc).named(("a", "b", "c"), "wage")
    band = ak.bands(fit, AT, component=component, corrected=False, noise="constant")
    curves, at_new = backfit(x, weights, 1)
    rows = at_new[1] if component else share + at_new.sum(axis=0)
    variance = noise_variance(share + curves.sum(axis=0), y, weights)
    np.testing.assert_allclose(band.centre, rows @ y, rtol=1e-9)
    error = np.sqrt(variance * np.sum(rows**2 / weights, axis=1))
    np.testing.assert_allclose(band.standard_error, error, rtol=1e-8)
    if component:
        assert band.description == "95 % pointwise, curve of b"
        programs.clear()
        other = ak.bands(fit, AT, component=0, corrected=False, noise="constant")
        assert programs == []  # one serves all columns
        np.testing.assert_allclose(other.centre, at_new[0] @ y, rtol=1e-9)
        report = str(ak.summarise(fit))
        assert "additive, local linear" in report
        assert "lengthscale of b" in report


def test_bands_of_curves_that_do_not_exist_are_refused(x64):
    x, y, _ = sample()
    fit = known_fit(additive(), x, y).named(("a", "b", "c"), "wage")
    plain = known_fit(ak.KernelRegression(ak.Gaussian(0.3)), x, y)
    for each, options, sentence in (
        (fit, {"component": "d", "corrected": False}, "from 0 to 2, or one of .'a', 'b', 'c'"),
        (fit, {"component": 3, "corrected": False}, "got 3"),
        (fit, {"component": 0}, "corrected=False"),
        (plain, {"component": 0, "corrected": False}, "this fit is of a KernelRegression"),
    ):
        assert_raises(sentence, ak.bands, each, AT, noise="constant", **options)


@pytest.mark.slow
def test_lengthscales_by_aicc(x64):
    """The lengthscale of a column without effect is as long as can be."""
    x, y, _ = sample()
    with pytest.warns(ak.FitWarning, match=r"upper bound: kernels\[2\]\.lengthscale"):
        fit = ak.fit(additive(0), x, y, starts=1)
    ells = [float(kernel.lengthscale) for kernel in fit.model.kernels]
    assert ells[0] < 0.3
    assert ells[2] > 1.0


def test_leave_one_out_is_refused(x64):
    x, y, _ = sample()
    for model in (additive(), PartiallyLinear(ak.KernelRegression(ak.Gaussian(0.2)), linear=0)):
        assert_raises(r"objective=ak\.AICc", model, x, x, y, prior=ExcludeSelf())


def test_categories_enter_as_their_means(x64):
    """A bandwidth of 0 fits each category by itself: least squares with a mean for each."""
    x = np.c_[np.arange(N) % 2, np.arange(N) // 2 % 3].astype(float)
    y = np.random.default_rng(0).normal(size=N)
    model = ak.AdditiveRegression([LiRacine(ak.fixed(0.0))] * 2)
    design = np.c_[x[:, :1] == 0, x[:, :1] == 1, x[:, 1:] == 1, x[:, 1:] == 2].astype(float)
    expected = design @ np.linalg.lstsq(design, y)[0]
    np.testing.assert_allclose(model(x, x, y), expected, atol=1e-4)  # (I − S) is singular


def test_what_is_not_identified_is_refused(x64):
    x, y, _ = sample()
    model = PartiallyLinear(ak.KernelRegression(ak.Gaussian(0.2)), linear=(0, 1))
    twice = np.c_[x[:, 0], 2.0 * x[:, 0] + 1.0, x[:, 2]]
    assert_raises("linear combinations", additive(), x, twice, y)
    assert_raises("3 kernels", additive(), x[:, :2], x[:, :2], y)
    assert_raises("not identified", model.coefficients, twice, y)
    assert_raises("others for the smoother", model, x[:, :2], x[:, :2], y)
    assert_raises("up to 3000 rows", additive(), x, np.tile(x, (200, 1)), np.tile(y, 200))
    assert np.all(np.isnan(np.asarray(model(x, twice, y))))


def test_coefficients_are_those_of_robinson(x64):
    x, y, weights = sample()
    z = x[:, [0, 2]]
    model = PartiallyLinear(ak.KernelRegression(ak.Gaussian(0.2), order=1), linear=(0, 2))

    @jax.jit
    def computed(x, y, weights):
        robust = model.coefficients(x, y, weights=weights, noise="rows").standard_error
        found = model.coefficients(x, y, weights=weights)
        return found, robust, model(AT, x, y, weights=weights)

    found, robust, prediction = jax.device_get(computed(x, y, weights))
    own, new = (local_polynomial(q[:, 1], x[:, 1], 0.2, 1, weights=weights) for q in (x, AT))
    left = np.eye(N) - own
    zt = left @ z
    b = np.linalg.solve((zt.T * weights) @ zt, (zt.T * weights) @ left)
    np.testing.assert_allclose(found.estimate, b @ y, rtol=1e-9)
    expected = AT[:, [0, 2]] @ b @ y + new @ (y - z @ b @ y)
    np.testing.assert_allclose(prediction, expected, rtol=1e-9)
    hat = own + zt @ b
    error = np.sqrt(noise_variance(hat, y, weights) * np.sum(b**2 / weights, axis=1))
    np.testing.assert_allclose(found.standard_error, error, rtol=1e-8)
    expectation = 1 - 2 * np.diag(hat) + weights * (hat**2 @ (1 / weights))
    each = (y - hat @ y) ** 2 / expectation
    np.testing.assert_allclose(robust, np.sqrt(b**2 @ each), rtol=1e-8)
