"""Bands of curves and of derivatives, average derivatives, variances and conformal intervals:
formulas in NumPy, special cases of data, tables, and R's loess. The formulas of most functions are
in `test_every_function.py`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_fits import known_fit
from least_squares import left_out, local_polynomial
from marks import slow
from refusals import assert_raises
from scipy import stats

import attnkernel as ak

N, M, LENGTHSCALE = 61, 7, 0.35
X_NEW = np.linspace(-2, 2, M)
RNG = np.random.default_rng(5)
X = np.sort(RNG.uniform(-2, 2, N))
Y = np.sin(2 * X) + (0.1 + 0.1 * np.abs(X)) * RNG.normal(size=N)
SHORTER = LENGTHSCALE * N ** (1 / 5 - 1 / 4)
KEY = jax.device_put(np.array([0, 0], np.uint32))


def fitted(order=0, x=X, y=Y):
    return known_fit(ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=order), x, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "options", "rows"),
    [
        (0, {}, local_polynomial(X_NEW, X, SHORTER, 2)),
        (1, {"derivative": 1, "corrected": False}, local_polynomial(X_NEW, X, LENGTHSCALE, 1, 1)),
    ],
    ids=["of the curve", "of its derivative"],
)
def test_simultaneous_bands_cover_all_inputs_at_once(x64, order, options, rows):
    """c is a quantile of the largest of M correlated Student t variables, drawn here by NumPy."""
    options = {"kind": "simultaneous", "noise": "constant", "key": KEY, "draws": 20000} | options
    found = ak.bands(fitted(order), X_NEW, **options)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    noise = np.random.default_rng(1).normal(size=(N, 20000))
    left = np.eye(N) - local_polynomial(X, X, LENGTHSCALE, order)
    sd = np.sqrt(np.sum((left @ noise) ** 2, axis=0) / np.trace(left.T @ left))
    expected = np.quantile(np.max(np.abs(units @ noise), axis=0) / sd, 0.95)
    assert expected > 1.01 * np.quantile(np.max(np.abs(units @ noise), axis=0), 0.95)
    c = (np.asarray(found.upper) - np.asarray(found.centre)) / np.asarray(found.standard_error)
    np.testing.assert_allclose(c, np.full(M, expected), rtol=0.02)
    column = ak.bands(fitted(order, y=Y[:, None]), X_NEW, **options).upper
    np.testing.assert_allclose(column, np.asarray(found.upper)[:, None], rtol=1e-9)


def test_bands_are_nan_where_no_label_has_weight(x64):
    fit = known_fit(ak.KernelRegression(ak.Epanechnikov(0.8), on_empty="nearest"), X, Y)
    found = ak.bands(fit, np.array([0.0, 9.0]), corrected=False, noise="constant")
    assert np.all(np.isfinite(found.centre))
    np.testing.assert_array_equal(np.isnan(found.lower), [False, True])
    np.testing.assert_array_equal(np.isnan(found.standard_error), [False, True])


def test_bands_tell_where_they_are_not_reliable(x64):
    """35 inputs in [-2, 0] and 5 in [1.5, 2]: the effective count is small between and outside."""
    rng = np.random.default_rng(0)
    x = np.sort(np.r_[rng.uniform(-2, 0, 35), rng.uniform(1.5, 2, 5)])
    fit = fitted(x=x, y=np.sin(2 * x) + 0.1 * rng.normal(size=40))
    at = np.array([-1.0, -0.5, 0.75, 1.75, 3.0])
    with pytest.warns(ak.local.ExtrapolationWarning, match="at 5 queries: at 1 it extrapolates"):
        found = ak.bands(fit, at, noise="rows")
    count = 1 / np.sum(local_polynomial(at, x, LENGTHSCALE * 40 ** (1 / 5 - 1 / 4), 2) ** 2, axis=1)
    np.testing.assert_allclose(found.effective_count, count, rtol=1e-6)
    assert abs(count[3] - 3) > 0.01
    np.testing.assert_array_equal(found.reliable, [True, True, False, count[3] >= 3, False])
    assert found.frame()["reliable"].tolist() == np.asarray(found.reliable).tolist()


CORNERS = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
DIAGONAL = np.repeat([[0.0], [0.3], [0.6], [1.0]], 2, axis=1)


@pytest.mark.parametrize(
    ("inputs", "reliable"),
    [
        pytest.param(CORNERS, [True, False], id="extrapolates"),
        # two equal columns: S is singular, and yet nothing extrapolates along their line
        pytest.param(DIAGONAL, [False, False], id="deficient"),
    ],
)
def test_bands_of_many_labels_are_not_reliable_where_the_polynomial_is_not(x64, inputs, reliable):
    x, at = np.repeat(inputs, 15, axis=0), np.array([[0.5, 0.5], [0.5, 1.4]])
    model = ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=1)
    fit = known_fit(model, x, np.random.default_rng(0).normal(size=len(x)))
    with pytest.warns(ak.local.ExtrapolationWarning):
        found = ak.bands(fit, at, corrected=False, noise="constant")
    assert np.all(np.asarray(found.effective_count) > 3)
    np.testing.assert_array_equal(found.reliable, reliable)


def test_the_noise_far_from_all_labels_is_constant(x64):
    """Within 64 lengthscales of 0.25 the mean is local; beyond, each label counts alike."""
    x, weights = np.sqrt(np.arange(60) / 59), 1.0 + np.arange(60) % 3
    y = np.sin(6 * x) + 0.3 * np.cos(37 * x**2)
    fit = known_fit(ak.KernelRegression(ak.Epanechnikov(0.25)), x, y, weights)
    kernel = np.maximum(0.0, 1 - ((x[:, None] - x) / 0.25) ** 2) * weights
    hat = kernel / kernel.sum(axis=1, keepdims=True)
    squares = weights * (y - hat @ y) ** 2
    expected = 1 - 2 * np.diag(hat) + weights * np.sum(hat**2 / weights, axis=1)
    near, far = np.asarray(ak.noise_variance(fit, np.array([0.5, 20.0])))
    np.testing.assert_allclose(far, squares.sum() / expected.sum(), rtol=1e-9)
    assert abs(near / far - 1) > 0.01


# R 4.2: loess(y ~ x, weights = w, span = 0.5, degree = 1,
#              control = loess.control(surface = "direct", statistics = "exact"))
LOESS_FIT = (0.889444971711, 0.13900228676, -0.931929747714)
LOESS_ERROR = (0.0889709405335, 0.0550068079301, 0.0535593055692)
LOESS_DELTA, LOESS_TRACE = 55.5405571734, 4.57786968757


@pytest.mark.slow
def test_standard_errors_are_those_of_loess(x64):
    """But for R's divisor, the trace of (I - L)(I - L)ᵀ: with weights it is not the mean of the
    weighted sum of squares, by which ours divides it."""
    x, weights = np.sqrt(np.arange(60) / 59), 1.0 + np.arange(60) % 3
    y = np.sin(6 * x) + 0.3 * np.cos(37 * x**2)
    kernel = ak.NearestNeighbours(ak.kernels.Tricube(1.0), fraction=0.5)
    fit = known_fit(ak.KernelRegression(kernel, order=1), x, y, weights)
    distance = np.abs(x - x[:, None])
    tricube = np.maximum(0, 1 - (distance / np.sort(distance)[:, [29]]) ** 3) ** 3
    left = np.eye(60) - local_polynomial(x, x, order=1, weights=weights * tricube)
    np.testing.assert_allclose(np.trace(left @ left.T), LOESS_DELTA, rtol=1e-9)
    freedom = ak.degrees_of_freedom(fit)
    np.testing.assert_allclose(freedom.trace, LOESS_TRACE, rtol=1e-9)
    residual = weights @ np.diag(left @ np.diag(1 / weights) @ left.T)
    np.testing.assert_allclose(freedom.residual, residual, rtol=1e-9)
    assert 0.005 < abs(residual / LOESS_DELTA - 1) < 0.03
    found = ak.bands(fit, np.array([0.2, 0.5, 0.8]), noise="constant", corrected=False)
    np.testing.assert_allclose(found.centre, LOESS_FIT, rtol=1e-9)
    ours = np.asarray(found.standard_error) * np.sqrt(residual / LOESS_DELTA)
    np.testing.assert_allclose(ours, LOESS_ERROR, rtol=1e-9)


def test_the_conformal_rank_is_not_raised_by_rounding(x64):
    """100 · 0.55 is 55, and 55.000000000000007 in floating point."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, 99)
    y = np.sin(6.0 * x) + 0.1 * rng.normal(size=99)
    fit = known_fit(ak.KernelRegression(ak.Gaussian(0.1)), x, y)
    residuals = np.sort(np.abs(y - left_out(x, y, 0.1)))
    band = ak.conformal(fit, x[:1], level=0.55)
    width = np.asarray(band.upper) - np.asarray(band.centre)
    np.testing.assert_allclose(width, residuals[54], rtol=1e-9)
    assert band.reliable is None
    assert np.all(np.isinf(ak.conformal(fit, x[:1], level=0.999).upper))


def test_arguments_of_bands_that_are_refused(x64):
    heads = ak.MultiheadKernelRegression(ak.PerHead(ak.Gaussian(np.array([0.3, 0.5]))))
    for model, options, sentence in (
        (None, {"kind": "simultaneous"}, "key="),
        (None, {"kind": "simultaneous", "draws": 1, "key": KEY}, "draws=1 is too few"),
        (heads, {}, r"linear smoother.*MultiheadKernelRegression"),
    ):
        fit = fitted() if model is None else dataclasses.replace(fitted(), model=model)
        assert_raises(sentence, ak.bands, fit, np.zeros(1), **options)


def test_a_band_prints_its_first_and_last_rows(x64):
    x = np.linspace(-2.0, 9.0, 23)
    numbers = jax.device_put((x[:, None], np.sin(x), x**0, np.sin(x) - 1, np.sin(x) + 1))
    reliable = np.arange(23) % 2 > 0
    flags = jax.device_put((x**0, reliable))
    named = {"is_bias_corrected": True}
    lines = str(ak.inference.Bands(*numbers, 0.95, "pointwise", *flags, **named)).splitlines()
    assert lines[0] == "95 % pointwise, bias-corrected, 23 inputs"
    assert lines[1].split() == ["x", "centre", "lower", "upper", "reliable"]
    assert len(lines) == 13
    assert lines[2].split() == ["-2", "-0.909297", "-1.9093", "0.0907026", "no"]
    assert lines[7].split() == ["..."] * 5
    assert lines[-1].split()[0] == "9"


def test_a_label_of_a_row_without_weight_is_none_inside_jit():
    """There the row stays, with a label of any size, in float32."""
    x = np.linspace(0.0, 1.0, 40, dtype=np.float32)
    fit = known_fit(ak.KernelRegression(ak.Gaussian(0.1), order=1), x, np.sin(6 * x))

    @jax.jit
    def upper(label):
        objective = fit.objective.with_weights(jnp.ones(40).at[7].set(0.0))
        weighted = dataclasses.replace(fit, y=fit.y.at[7].set(label), objective=objective)
        return ak.bands(weighted, np.array([0.3, 0.5])).upper

    of_own = upper(0.5)
    for label in (1e8, np.nan):
        np.testing.assert_allclose(upper(label), of_own, rtol=1e-5)


@pytest.mark.parametrize(("columns", "power"), [(1, 1 / 5 - 1 / 4), (2, 1 / 6 - 1 / 5)])
def test_lengthscale_of_the_correction_shrinks_at_the_rate_without_categories(x64, columns, power):
    """A column of categories has no smoothing bias of its own, and no part in the rate."""
    kernel = ak.Gaussian(0.3 * np.ones(columns)).on(*range(columns))
    mixed = ak.KernelRegression(kernel * ak.kernels.LiRacine(0.2).on(columns), order=1)
    corrected = mixed.bias_corrected(100, columns + 1)
    lengthscales = [leaf for leaf in jax.tree.leaves(corrected.kernel) if leaf.shape == (columns,)]
    np.testing.assert_allclose(np.exp(lengthscales[0]), 0.3 * 100**power, rtol=1e-12)
    assert corrected.order == 2


def test_a_band_of_a_derivative(x64):
    """Residuals are those of the fit; the effective count is that of a value of the curve."""
    rows = 2 * local_polynomial(X_NEW, X, SHORTER, 2, 2)
    hat = local_polynomial(X, X, LENGTHSCALE, 1)
    residuals = (Y - hat @ Y) / (1 - np.diag(hat))
    se = np.sqrt(rows**2 @ residuals**2)
    found = ak.bands(fitted(1), X_NEW, derivative=2, noise="rows", level=0.9)
    np.testing.assert_allclose(found.centre, rows @ Y, rtol=1e-8)
    np.testing.assert_allclose(found.standard_error, se, rtol=1e-8)
    np.testing.assert_allclose(found.upper, rows @ Y + stats.norm.ppf(0.95) * se, rtol=1e-8)
    count = 1 / np.sum(local_polynomial(X_NEW, X, SHORTER, 2) ** 2, axis=1)
    np.testing.assert_allclose(found.effective_count, count, rtol=1e-9)
    assert np.all(np.abs(count - 3) > 0.01)
    np.testing.assert_array_equal(found.reliable, count >= 3)
    assert found.derivative == (2,)
    assert str(found).splitlines()[0].endswith(f"second derivative, {M} inputs")


def test_a_derivative_whose_weights_are_zero_has_no_standard_error(x64):
    """The local mean of a boxcar kernel is constant between inputs: its slope says nothing."""
    fit = known_fit(ak.KernelRegression(ak.kernels.Boxcar(0.5)), X, Y)
    found = ak.bands(fit, X_NEW, derivative=1, corrected=False, noise="constant")
    assert np.all(np.isnan(found.standard_error))
    assert not np.any(found.reliable)


def test_bands_of_derivatives_that_are_refused(x64):
    counts = ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Poisson(), order=1)
    of_counts = known_fit(counts, X, np.round(np.exp(Y)))
    for fit, options, sentence in (
        (fitted(1), {"derivative": (1, 0)}, r"one order for each of 1 columns.*got \(1, 0\)"),
        (fitted(1), {"derivative": 2, "corrected": False}, "order 1 has no derivative of order 2"),
        (fitted(2), {"derivative": 1}, "pass corrected=False"),
        (of_counts, {"derivative": 1}, "derivative= is defined for a KernelRegression.*Likeli"),
    ):
        assert_raises(sentence, ak.bands, fit, X_NEW, **options)
    assert_raises("undersmoothed=False", ak.econometrics.average_derivative, fitted(2))


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
    assert str(found).startswith("average derivative of 30 rows, 95 % intervals\n")


def test_rows_whose_slope_is_not_determined_are_left_out_of_an_average(x64):
    """Two distinct inputs in reach determine a line; the last row has none but its own."""
    apart = np.r_[X[:-1], 9.0]
    near = np.maximum(0, 1 - ((apart - X[:-1, None]) / 0.8) ** 2)
    slopes = local_polynomial(X[:-1], apart, order=1, term=1, weights=near) @ Y
    fit = known_fit(ak.KernelRegression(ak.Epanechnikov(0.8), order=1), apart, Y)
    options = {"undersmoothed": False, "noise": "constant"}
    with pytest.warns(ak.local.ExtrapolationWarning, match=f"at {N} queries: at 1 the data do not"):
        found = ak.econometrics.average_derivative(fit, **options)
    assert found.rows == N - 1
    np.testing.assert_allclose(found.estimate, [np.mean(slopes)], rtol=1e-9)
    without = ak.econometrics.average_derivative(fit, row_weights=(apart < 9.0) * 1.0, **options)
    np.testing.assert_allclose(without.upper, found.upper, rtol=1e-12)
