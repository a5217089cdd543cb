"""Bands of derivatives and average derivatives, against their formulas in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow
from scipy import stats

import attnkernel as ak

N, M, LENGTHSCALE = 61, 7, 0.35
X_NEW = np.linspace(-1.8, 1.8, M)
STILL = {"optimizer": optax.sgd(0.0), "steps": 1}  # a fit whose lengthscale is known


def sample():
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(-2, 2, N))
    return x, np.sin(2 * x) + (0.1 + 0.1 * np.abs(x)) * rng.normal(size=N)


def rows_of(x_new, x, lengthscale, order, term):
    rows = []
    for q in x_new:
        root = np.exp(-0.25 * ((x - q) / lengthscale) ** 2)
        basis = root[:, None] * (x - q)[:, None] ** np.arange(order + 1)
        rows.append(np.linalg.pinv(basis)[term] * root)
    return np.array(rows)


@functools.cache
def fitted(order):
    x, y = sample()
    model = ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=order)
    return ak.fit(model, x, y, objective=ak.GCV(), **STILL)


@pytest.mark.parametrize(
    ("corrected", "degree"),
    [
        pytest.param(True, 2, id="corrected, second derivative"),
        pytest.param(False, 1, id="not corrected"),
        slow(True, 1),
    ],
)
def test_a_band_of_a_derivative(x64, corrected, degree):
    """Residuals are those of the fit; `reliable` is by the labels in a value of the curve."""
    fit, (x, y) = fitted(1), sample()
    shorter = LENGTHSCALE * (N ** (1 / 5 - 1 / 4) if corrected else 1.0)
    order, factorial = (2 if corrected else 1), degree
    rows = factorial * rows_of(X_NEW, x, shorter, order, degree)
    hat = rows_of(x, x, LENGTHSCALE, 1, 0)
    residuals = (y - hat @ y) / (1 - np.diag(hat))
    se = np.sqrt(rows**2 @ residuals**2)
    options = {"noise": "rows", "corrected": corrected, "level": 0.9}
    found = ak.bands(fit, X_NEW, derivative=degree, **options)
    np.testing.assert_allclose(found.centre, rows @ y, rtol=1e-8)
    np.testing.assert_allclose(found.standard_error, se, rtol=1e-8)
    np.testing.assert_allclose(found.upper, rows @ y + stats.norm.ppf(0.95) * se, rtol=1e-8)
    of_mean = ak.bands(fit, X_NEW, **options)
    np.testing.assert_allclose(found.effective_count, of_mean.effective_count, rtol=1e-9)
    np.testing.assert_array_equal(found.reliable, of_mean.reliable)
    assert found.derivative == (degree,)
    name = f"{('first', 'second')[degree - 1]} derivative"
    assert str(found).splitlines()[0].endswith(f"{name}, {M} inputs")


@pytest.mark.slow
def test_a_simultaneous_band_of_a_derivative(x64):
    """c is a quantile of the largest of M correlated variables, drawn here by NumPy."""
    fit, (x, _), key = fitted(1), sample(), jax.random.PRNGKey(0)
    options = {"noise": "constant", "draws": 20000, "key": key, "corrected": False}
    found = ak.bands(fit, X_NEW, kind="simultaneous", derivative=1, **options)
    rows = rows_of(X_NEW, x, LENGTHSCALE, 1, 1)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    noise = np.random.default_rng(1).normal(size=(N, 20000))
    left = np.eye(N) - rows_of(x, x, LENGTHSCALE, 1, 0)
    sd = np.sqrt(np.sum((left @ noise) ** 2, axis=0) / np.trace(left.T @ left))
    expected = np.quantile(np.max(np.abs(units @ noise), axis=0) / sd, 0.95)
    c = (found.upper - found.centre) / found.standard_error
    np.testing.assert_allclose(c, np.full(M, expected), rtol=0.02)


def test_a_derivative_whose_weights_are_zero_has_no_standard_error(x64):
    """The local mean of a boxcar kernel is constant between inputs: its slope says nothing."""
    fit = dataclasses.replace(fitted(1), model=ak.KernelRegression(ak.Boxcar(0.5)))
    found = ak.bands(fit, X_NEW, derivative=1, corrected=False, noise="constant")
    assert np.all(np.isnan(found.standard_error))
    assert not np.any(found.reliable)


def test_bands_of_derivatives_that_are_refused(x64):
    fit = fitted(1)
    with pytest.raises(ValueError, match=r"one order for each of 1 columns.*got \(1, 0\)"):
        ak.bands(fit, X_NEW, derivative=(1, 0))
    with pytest.raises(ValueError, match="order 1 has no derivative of order 2"):
        ak.bands(fit, X_NEW, derivative=2, corrected=False)
    with pytest.raises(ValueError, match="pass corrected=False"):
        ak.bands(fitted(2), X_NEW, derivative=1)
    counts = ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Poisson(), order=1)
    of_counts = dataclasses.replace(fit, model=counts, y=jnp.round(jnp.exp(fit.y)))
    with pytest.raises(ValueError, match=r"derivative= is defined for a KernelRegression.*Likeli"):
        ak.bands(of_counts, X_NEW, derivative=1)
    with pytest.raises(ValueError, match="undersmoothed=False"):
        ak.inference.average_derivative(fitted(2))


@pytest.mark.parametrize("order", [0, slow(1), slow(2)])
def test_average_derivatives_of_weighted_rows(x64, order):
    """The average, and the error, are those of the labels' weights; rows of weight 0 are none."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (30, 2))
    y = np.sin(2 * x[:, 0]) + x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=30)
    weights, share = rng.uniform(0.5, 2.0, 30), rng.uniform(0, 1, 30)
    model = ak.KernelRegression(ak.Gaussian(np.array([0.5, 0.6])), order=order)
    part = ak.fit(model, x, y, weights=weights, **STILL)
    more = np.r_[x, x + 0.1], np.r_[y, y], np.r_[weights, np.zeros(30)]
    whole = ak.fit(model, *more[:2], weights=more[2], **STILL)
    found = ak.inference.average_derivative(
        whole, row_weights=share, undersmoothed=False, noise="rows"
    )

    @jax.jit
    def slopes(x, y):
        columns = [model.derivative(c) for c in ((1, 0), (0, 1))]
        return [each(x, x, y, weights=weights) for each in columns]

    rows = np.stack([share @ np.asarray(each) / share.sum() for each in slopes(x, np.eye(30))])
    residuals = np.asarray(model.left_out_residuals(x, y, weights=weights))
    np.testing.assert_allclose(found.estimate, rows @ y, rtol=1e-9)
    np.testing.assert_allclose(found.standard_error, np.sqrt(rows**2 @ residuals**2), rtol=1e-9)
    again = ak.inference.average_derivative(
        part, row_weights=share, undersmoothed=False, noise="rows"
    )
    np.testing.assert_allclose(found.upper, again.upper, rtol=1e-9)
    frame = found.frame()
    assert frame.index.tolist() == ["x1", "x2"]
    np.testing.assert_allclose(frame["upper"], found.estimate + 1.959964 * found.standard_error)


def test_undersmoothed_averages_are_of_a_local_linear_fit(x64):
    fit, (x, y) = fitted(0), sample()
    shorter = LENGTHSCALE * N ** (1 / 5 - 2 / 7)
    rows = np.mean(rows_of(x, x, shorter, 1, 1), axis=0)
    kernel = np.exp(-0.5 * ((x[:, None] - x[None, :]) / LENGTHSCALE) ** 2)
    hat = kernel / kernel.sum(axis=1, keepdims=True)
    variance = np.sum((y - hat @ y) ** 2) / np.trace((np.eye(N) - hat).T @ (np.eye(N) - hat))
    found = ak.inference.average_derivative(fit, noise="constant")
    np.testing.assert_allclose(found.estimate, [rows @ y], rtol=1e-9)
    np.testing.assert_allclose(found.standard_error, [np.sqrt(rows @ rows * variance)], rtol=1e-9)
    title, heads, _ = str(found).splitlines()
    assert title == f"average derivative of {N} rows, 95 % intervals, undersmoothed"
    assert heads.split() == [*("along", "estimate", "standard", "error", "lower", "upper")]


def test_rows_whose_slope_is_not_determined_are_left_out_of_an_average(x64):
    """Two distinct inputs in reach determine a line; the last row has none but its own."""
    fit, (x, y) = fitted(1), sample()
    apart = np.r_[x[:-1], 9.0]
    model = ak.KernelRegression(ak.Epanechnikov(0.8), order=1)
    fit = dataclasses.replace(fit, model=model, x=jnp.asarray(apart)[:, None])
    options = {"undersmoothed": False, "noise": "constant"}
    with pytest.warns(ak.ExtrapolationWarning, match=f"at {N} queries: at 1 the data do not"):
        found = ak.inference.average_derivative(fit, **options)
    assert found.rows == N - 1
    slopes = model.derivative(1)(x[:-1], apart, y)
    np.testing.assert_allclose(found.estimate, [np.mean(slopes)], rtol=1e-9)
    without = ak.inference.average_derivative(fit, row_weights=(apart < 9.0) * 1.0, **options)
    np.testing.assert_allclose(without.upper, found.upper, rtol=1e-12)
