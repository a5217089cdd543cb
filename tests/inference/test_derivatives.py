"""Bands of derivatives and average derivatives, against their formulas in NumPy."""

import dataclasses
import functools

import numpy as np
import pytest
from known_fits import known_fit
from least_squares import local_polynomial
from marks import slow
from scipy import stats

import attnkernel as ak

N, M, LENGTHSCALE = 61, 7, 0.35
X_NEW = np.linspace(-1.8, 1.8, M)
RNG = np.random.default_rng(5)
X = np.sort(RNG.uniform(-2, 2, N))
Y = np.sin(2 * X) + (0.1 + 0.1 * np.abs(X)) * RNG.normal(size=N)


def fitted(order):
    return known_fit(ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=order), X, Y)


@pytest.mark.parametrize(
    ("corrected", "degree"),
    [
        pytest.param(True, 2, id="corrected, second derivative"),
        slow(False, 1, id="not corrected"),
    ],
)
def test_a_band_of_a_derivative(x64, corrected, degree):
    """Residuals are those of the fit; the effective count is that of a value of the curve."""
    shorter = LENGTHSCALE * (N ** (1 / 5 - 1 / 4) if corrected else 1.0)
    order, factorial = (2 if corrected else 1), degree
    rows = factorial * local_polynomial(X_NEW, X, shorter, order, degree)
    hat = local_polynomial(X, X, LENGTHSCALE, 1)
    residuals = (Y - hat @ Y) / (1 - np.diag(hat))
    se = np.sqrt(rows**2 @ residuals**2)
    options = {"noise": "rows", "corrected": corrected, "level": 0.9}
    found = ak.bands(fitted(1), X_NEW, derivative=degree, **options)
    np.testing.assert_allclose(found.centre, rows @ Y, rtol=1e-8)
    np.testing.assert_allclose(found.standard_error, se, rtol=1e-8)
    np.testing.assert_allclose(found.upper, rows @ Y + stats.norm.ppf(0.95) * se, rtol=1e-8)
    count = 1 / np.sum(local_polynomial(X_NEW, X, shorter, order) ** 2, axis=1)
    np.testing.assert_allclose(found.effective_count, count, rtol=1e-9)
    assert np.all(np.abs(count - 3) > 0.01)
    np.testing.assert_array_equal(found.reliable, count >= 3)
    assert found.derivative == (degree,)
    name = f"{('first', 'second')[degree - 1]} derivative"
    assert str(found).splitlines()[0].endswith(f"{name}, {M} inputs")


def test_a_derivative_whose_weights_are_zero_has_no_standard_error(x64):
    """The local mean of a boxcar kernel is constant between inputs: its slope says nothing."""
    fit = known_fit(ak.KernelRegression(ak.kernels.Boxcar(0.5)), X, Y)
    found = ak.bands(fit, X_NEW, derivative=1, corrected=False, noise="constant")
    assert np.all(np.isnan(found.standard_error))
    assert not np.any(found.reliable)


def test_bands_of_derivatives_that_are_refused(x64):
    counts = ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Poisson(), order=1)
    for fit, options, sentence in (
        (fitted(1), {"derivative": (1, 0)}, r"one order for each of 1 columns.*got \(1, 0\)"),
        (fitted(1), {"derivative": 2, "corrected": False}, "order 1 has no derivative of order 2"),
        (fitted(2), {"derivative": 1}, "pass corrected=False"),
        (
            known_fit(counts, X, np.round(np.exp(Y))),
            {"derivative": 1},
            r"derivative= is defined for a KernelRegression.*Likeli",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            ak.bands(fit, X_NEW, **options)
    with pytest.raises(ValueError, match="undersmoothed=False"):
        ak.econometrics.average_derivative(fitted(2))


@pytest.mark.parametrize("order", [0, slow(1), slow(2)])
def test_average_derivatives_of_weighted_rows(x64, order):
    """The average, and the error, are those of the labels' weights; rows of weight 0 are none."""
    rng = np.random.default_rng(2)
    x, lengthscale = rng.uniform(-1, 1, (30, 2)), np.array([0.5, 0.6])
    y = np.sin(2 * x[:, 0]) + x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=30)
    weights, share = rng.uniform(0.5, 2.0, 30), rng.uniform(0, 1, 30)
    smoother = functools.partial(local_polynomial, x, x, lengthscale, order, weights=weights)
    hat = smoother()
    if order:
        slopes = [smoother(term=1), smoother(term=2)]
    else:  # the derivative of the weights, by the quotient rule
        away = (x - x[:, None]) / lengthscale**2
        means = np.einsum("qk,qkc->qc", hat, away)
        slopes = np.einsum("qk,qkc->cqk", hat, away - means[:, None])
    rows = share / share.sum() @ slopes
    residuals = (y - hat @ y) / (1 - np.diag(hat))
    model = ak.KernelRegression(ak.Gaussian(lengthscale), order=order)
    part = known_fit(model, x, y, weights)
    whole = known_fit(model, np.r_[x, x + 0.1], np.r_[y, y], np.r_[weights, np.zeros(30)])
    options = {"row_weights": share, "undersmoothed": False, "noise": "rows"}
    found = ak.econometrics.average_derivative(whole, **options)
    np.testing.assert_allclose(found.estimate, rows @ y, rtol=1e-9)
    np.testing.assert_allclose(found.standard_error, np.sqrt(rows**2 @ residuals**2), rtol=1e-9)
    again = ak.econometrics.average_derivative(part, **options)
    np.testing.assert_allclose(found.upper, again.upper, rtol=1e-9)
    frame = found.frame()
    assert frame.index.tolist() == ["x1", "x2"]
    upper = np.asarray(found.estimate) + 1.959964 * np.asarray(found.standard_error)
    np.testing.assert_allclose(frame["upper"], upper, rtol=1e-6)
    title, heads, *_ = str(found).splitlines()
    assert title == "average derivative of 30 rows, 95 % intervals"
    assert heads.split() == [*("along", "estimate", "standard", "error", "lower", "upper")]
    undersmoothed = dataclasses.replace(found, is_undersmoothed=True)
    assert str(undersmoothed).splitlines()[0] == f"{title}, undersmoothed"


def test_rows_whose_slope_is_not_determined_are_left_out_of_an_average(x64):
    """Two distinct inputs in reach determine a line; the last row has none but its own."""
    apart, slopes = np.r_[X[:-1], 9.0], []
    for q in X[:-1]:
        root = np.sqrt(np.maximum(0, 1 - ((apart - q) / 0.8) ** 2))
        slopes.append((np.linalg.pinv(root[:, None] * np.c_[apart**0, apart - q]) * root)[1] @ Y)
    fit = known_fit(ak.KernelRegression(ak.Epanechnikov(0.8), order=1), apart, Y)
    options = {"undersmoothed": False, "noise": "constant"}
    with pytest.warns(ak.local.ExtrapolationWarning, match=f"at {N} queries: at 1 the data do not"):
        found = ak.econometrics.average_derivative(fit, **options)
    assert found.rows == N - 1
    np.testing.assert_allclose(found.estimate, [np.mean(slopes)], rtol=1e-9)
    without = ak.econometrics.average_derivative(fit, row_weights=(apart < 9.0) * 1.0, **options)
    np.testing.assert_allclose(without.upper, found.upper, rtol=1e-12)
