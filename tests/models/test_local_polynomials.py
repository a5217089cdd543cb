"""Local polynomial regression against least squares in NumPy, statsmodels and R's np."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimates import fitted_and_leverage, local_fit, predict, prediction_variance
from least_squares import coefficient_weights, left_out, local_polynomial as by_numpy
from marks import slow
from refusals import assert_raises
from slopes import assert_slopes
from statsmodels.nonparametric.kernel_regression import KernelReg

import attnkernel as ak
from attnkernel.attention import Auto
from attnkernel.local import _moments
from attnkernel.local._moments import MAX_CENTRED_NUMBERS
from attnkernel.local._monomials import exponents
from attnkernel.methods import Blockwise, Dense
from attnkernel.models import _regression
from attnkernel.priors import ExcludeSelf, MaskFunction, ScoreFunction

N, M = 83, 31
# labels of a row that are summed by the weights of the fit
MANY = _regression.MIN_LABELS_BY_WEIGHTS + 1


def sample(dim, out=None, n=N, m=M):
    rng = np.random.default_rng(dim)
    shape = (n,) if out is None else (n, out)
    return rng.uniform(-2, 2, (n, dim)), rng.normal(size=shape), rng.uniform(-2.2, 2.2, (m, dim))


@pytest.mark.parametrize(("dim", "order"), [(3, 2), slow(2, 0), slow(2, 1), slow(1, 2)])
def test_coefficients_solve_weighted_least_squares(x64, dim, order):
    x, y, x_new = sample(dim, out=5)
    found = local_fit(ak.KernelRegression(ak.Gaussian(0.7), order=order), x_new, x, y)
    expected = coefficient_weights(x_new, x, 0.7, order) @ y
    np.testing.assert_allclose(found.coefficients, expected, rtol=1e-9, atol=1e-10)
    assert found.coefficients.shape[1] == len(exponents(dim, order))
    assert not np.any(found.deficient)


@eqx.filter_jit
def estimates(model, x_new, x, y, many, weights, variance):
    fitted, hat = fitted_and_leverage(model, x, y, weights=weights)
    seen = {"prior": ExcludeSelf(), "weights": weights}
    return {
        "fitted": fitted,
        "hat": hat,
        "left out": model(x, x, y, **seen),
        "many labels left out": model(x, x, many, **seen),
        "variance": prediction_variance(model, x_new, x, variance, weights=weights),
    }


@pytest.mark.parametrize(("order", "sink_mass"), [(1, 20.0), slow(0, 0.0), slow(2, 0.0)])
def test_hat_matrix_variance_and_leave_one_out(x64, order, sink_mass):
    """A weight counts a row, 0 times too. A sink does not change a polynomial of order 1 or 2."""
    x, y, x_new = sample(2)
    rng = np.random.default_rng(7)
    weights = rng.uniform(0.2, 3.0, N) * (rng.uniform(size=N) < 0.9)
    many, variance = 50.0 + rng.normal(size=(N, MANY)), rng.uniform(0.1, 2.0, (N, 2))
    rule = ak.Softmax(sink_mass=ak.fixed(sink_mass))
    model = ak.KernelRegression(ak.Gaussian(0.8), order=order, rule=rule)
    found = jax.device_get(estimates(model, x_new, x, y, many, weights, variance))
    hat = by_numpy(x, x, 0.8, order, weights=weights)
    rows = by_numpy(x_new, x, 0.8, order, weights=weights)
    expected = left_out(x, np.column_stack([y, many]), 0.8, order, weights=weights)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)
    close(found["fitted"], hat @ y)
    close(found["hat"], np.diag(hat))
    close(found["left out"], expected[:, 0])
    close(found["many labels left out"], expected[:, 1:])
    close(found["variance"], rows**2 @ variance)
    by_hat = (y - found["fitted"]) / (1 - found["hat"])
    np.testing.assert_allclose(y - found["left out"], by_hat, rtol=1e-8)


def half(score, i, j, head):
    return 0.5 * score


@pytest.mark.parametrize(
    ("order", "method", "labels"),
    [(2, Auto(), MANY), slow(1, Dense(), 1), slow(1, Auto(), MANY), slow(2, Blockwise(16, 16), 1)],
)
def test_gradients_equal_finite_differences(x64, order, method, labels, monkeypatch):
    """In the lengthscales, the inputs, the labels and the points of prediction. Those in the
    lengthscales alone are, about shared centres, means of two degrees more, except under a prior
    that changes scores: half of them are those of a √2 times longer lengthscale."""
    monkeypatch.setattr(_moments, "MAX_CENTRED_NUMBERS", 0)
    x, y, x_new = sample(4 - order, m=37)

    @jax.jit
    def slopes(*arguments):
        def loss(log_lengthscale, x, y, x_new, prior=None):
            kernel = ak.Gaussian(jnp.exp(log_lengthscale))
            model = ak.KernelRegression(kernel, order=order, method=method)
            copies = y[:, None] * np.ones((1, labels))
            return jnp.sum(jnp.sin(model(x_new, x, copies, prior=prior))) / labels

        shorter = arguments[0] - 0.5 * np.log(2), *arguments[1:]
        halved = jax.grad(loss)(*shorter, ScoreFunction(half))
        return jax.grad(loss, (0, 1, 2, 3))(*arguments), jax.grad(loss)(*arguments), halved

    def expected_loss(log_lengthscale, x, y, x_new):
        return np.sum(np.sin(by_numpy(x_new, x, np.exp(log_lengthscale), order) @ y))

    arguments = (np.log([0.9, 1.1, 1.2][order - 1 :]), x, y, x_new)
    found, *alone = jax.device_get(slopes(*arguments))
    np.testing.assert_allclose(alone, [found[0], found[0]], rtol=1e-9)
    assert_slopes(found, expected_loss, arguments, step=1e-6, rtol=1e-5, atol=1e-6)


def test_a_polynomial_is_reproduced(x64):
    """At any lengthscale, and wherever the data lie: at 1e6 too."""
    x = np.random.default_rng(3).uniform(-1, 1, (N, 2))
    y = 1.5 + x @ np.array([2.0, -3.0]) + 0.5 * x[:, 0] ** 2 - 2.0 * x[:, 0] * x[:, 1]

    @jax.jit
    def fitted(shift, lengthscale):
        return ak.KernelRegression(ak.Gaussian(lengthscale), order=2)(x + shift, x + shift, y)

    for shift, lengthscale in ((0.0, 0.4), (0.0, 30.0), (1e6, 0.4)):
        atol = 1e-6 * (1 + shift / 1e3)
        np.testing.assert_allclose(fitted(shift, lengthscale), y, atol=atol)


def is_of_equal_parity(i, j):
    return (i + j) % 2 == 0


@pytest.mark.parametrize(("dim", "order"), [(3, 2), slow(2, 1), slow(1, 1)])
def test_queries_about_a_shared_centre(x64, dim, order):
    """Above the limit of pairs, neighbouring queries share the centre of their moments.

    Queries are reordered for it: the prior stays with its query, and a query that is not finite
    does not change its neighbours, nor makes a slope NaN.
    """
    x, y, x_new = sample(dim, n=601, m=401)
    assert x_new.shape[0] * x.shape[0] * 5 > MAX_CENTRED_NUMBERS
    prior = MaskFunction(is_of_equal_parity) if dim > 1 else None
    weights = is_of_equal_parity(*np.ogrid[:401, :601]) if dim > 1 else 1.0
    fitted = by_numpy(x_new, x, 0.7, order, weights=weights) @ y
    model = ak.KernelRegression(ak.Gaussian(0.7), order=order)

    @eqx.filter_jit
    @eqx.filter_grad
    def slope(model, queries):
        return jnp.nansum(model(queries, x, y, prior=prior))

    for row, value in ((3, 0.0), (3, np.nan), (4, np.inf)):
        queries, expected = x_new.copy(), fitted.copy()
        queries[row] += value
        expected[row] += value - value  # NaN, if not finite
        found = predict(model, queries, x, y, prior=prior)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)
        assert np.isfinite(slope(model, queries).kernel.lengthscale_parameter.z)


@pytest.mark.slow
def test_a_shared_centre_far_from_its_queries(x64):
    """Moments that are moved by many lengthscales cancel: estimates and slopes stay finite."""
    rng = np.random.default_rng(2)
    rows, few = 300, 60
    x = rng.integers(0, 5, (rows, 3)) * np.array([1.0, 10.0, 0.1])
    y = rng.normal(size=rows)
    width = len(exponents(3, 2)) + len(exponents(3, 1))
    assert few * rows * width <= MAX_CENTRED_NUMBERS < rows * rows * width
    model = ak.KernelRegression(ak.Gaussian(np.array([3e-3, 4.0, 2e-3])), order=1)

    def total(model):
        local = model.local_fit(x, x, y)
        return jnp.sum(local.coefficients[:, 0]), local

    slope, shared = jax.device_get(eqx.filter_jit(eqx.filter_grad(total, has_aux=True))(model))
    alone = [local_fit(model, part, x, y).coefficients for part in np.split(x, rows // few)]
    assert np.all(shared.deficient)
    assert np.all(np.isfinite(shared.coefficients))
    assert np.all(np.isfinite(slope.kernel.lengthscale_parameter.z))
    np.testing.assert_allclose(shared.coefficients[:, 0], np.concatenate(alone)[:, 0], atol=1e-5)


@pytest.mark.slow
def test_slopes_in_lengthscales_form_each_weight_once(x64):
    """About shared centres: a gradient takes no more exponentials than its value."""
    x, y, _ = sample(2, n=1601)

    def total(width):
        return jnp.sum(ak.KernelRegression(ak.Gaussian(width), order=1)(x, x, y) ** 2)

    compiled = [jax.jit(each).lower(np.ones(2)).compile() for each in (total, jax.grad(total))]
    value, slope = (each.cost_analysis()["transcendentals"] for each in compiled)
    assert 0 < slope < 1.01 * value


def test_extremes_of_float32():
    """Units and lengthscales far from 1 give finite fits and slopes; equal rows give their mean."""
    x, y, _ = (part.astype("f") for part in sample(1))

    @jax.jit
    @jax.value_and_grad
    def error_and_slope(log_lengthscale, points):
        model = ak.KernelRegression(ak.Gaussian(jnp.exp(log_lengthscale)), order=1)
        return jnp.mean(model(points, points, y) ** 2)

    for scale, lengthscale in itertools.product((1e-30, 1.0, 1e15), (1e-3, 0.3, 1e3)):
        log_lengthscale = np.log(scale * lengthscale).astype("f")
        found = error_and_slope(log_lengthscale, np.float32(scale) * x)
        assert np.all(np.isfinite(found)), (scale, lengthscale)
    model = ak.KernelRegression(ak.Gaussian(0.3), order=2)
    # the ridge is the root of the precision, and rounding is divided by it
    np.testing.assert_allclose(predict(model, x[:5], np.ones_like(x), y), np.mean(y), atol=1e-3)


def test_rank_deficient_designs_are_reported(x64):
    x = np.array([0.0, 0.0, 5.0, 5.1, 5.2])
    y = np.array([1.0, 3.0, 4.0, 5.0, 6.0])
    x_new = np.array([0.3, 5.1, 20.0])
    model = ak.KernelRegression(ak.Epanechnikov(1.0), order=1)
    local = jax.device_get(local_fit(model, x_new, x, y))
    np.testing.assert_array_equal(local.deficient[:2], [True, False])
    assert local.condition[0] > 1e10 > local.condition[1]
    np.testing.assert_allclose(local.coefficients[0, :, 0], [2.0, 0.0], atol=1e-6)
    assert np.isneginf(local.log_mass[2])
    np.testing.assert_array_equal(np.isnan(predict(model, x_new, x, y)), [False, False, True])


@pytest.mark.parametrize("order", [1, slow(2)])
def test_variance_where_the_design_is_nearly_singular(order):
    """In a gap, beyond the data, and of one input: the sum of the squared weights of the fit."""
    x = np.r_[np.linspace(0, 1, 12), np.linspace(3, 4, 11)].astype("f")[:, None]
    x_new = np.array([0.5, 1.9, 2.2, 5.0, 9.0], "f")[:, None]
    far, alike = np.array([3.0, 10.0, 40.0, 50.0, 60.0], "f")[:, None], np.full_like(x, 3.0)

    @eqx.filter_jit
    def results(model, x_new, x):
        variance = prediction_variance(model, x_new, x, np.ones(23, "f"))
        mean = model(x_new, x, np.full(23, 1e6, "f"))
        return model(x_new, x, np.eye(23, dtype="f")), variance, mean

    model = ak.KernelRegression(ak.Gaussian(0.3), order=order)
    weights, variance, _ = jax.device_get(results(model, x_new, x))
    np.testing.assert_allclose(variance, np.sum(weights**2, axis=1), rtol=2e-3)
    _, variance, mean = jax.device_get(results(model, far, alike))
    np.testing.assert_allclose(variance, np.full(5, 1 / 23), rtol=1e-3)
    np.testing.assert_array_equal(mean, np.full(5, 1e6))


def statsmodels_test_data():
    """The 60 points of statsmodels' own test, of which R's np gives the bandwidths."""
    draw, n = np.random.RandomState(123456), 60
    draw.binomial(2, 0.7, size=(n, 1)), draw.binomial(3, 0.7, size=(n, 1))
    first, second = draw.normal(size=(n, 1)), draw.normal(10, 1, size=(n, 1))
    draw.normal(10, 2, size=(n, 1))
    y = 0.3 + 1.2 * first + 3.7 * second + draw.normal(size=(n, 1))
    return np.hstack([first, second]), y[:, 0]


@pytest.mark.parametrize(
    ("order", "bandwidths"), [slow(0, [0.6163835, 0.1649656]), slow(1, [1.717891, 2.449415])]
)
def test_leave_one_out_bandwidths_of_np(x64, order, bandwidths):
    model = ak.KernelRegression(ak.Gaussian(np.ones(2)), order=order)
    fit = ak.fit(model, *statsmodels_test_data(), objective=ak.LeaveOneOut(), starts=1)
    np.testing.assert_allclose(fit.model.kernel.lengthscale, bandwidths, rtol=2e-6)


# statsmodels warns of its own future random numbers, which nothing here draws
@pytest.mark.filterwarnings("ignore:After 0.17:FutureWarning")
@pytest.mark.parametrize(("order", "name"), [(0, "lc"), (1, "ll")])
def test_estimates_and_slopes_of_statsmodels(x64, order, name):
    x, y = statsmodels_test_data()
    bandwidths = np.array([0.7, 0.9])
    expected, slopes = KernelReg(y, x, "cc", reg_type=name, bw=bandwidths).fit(x)
    found = local_fit(ak.KernelRegression(ak.Gaussian(bandwidths), order=order), x, x, y)
    coefficients = np.asarray(found.coefficients)[..., 0]
    np.testing.assert_allclose(coefficients[:, 0], expected, rtol=1e-11)
    if order:
        np.testing.assert_allclose(coefficients[:, 1:], slopes, rtol=1e-9, atol=1e-10)


def test_unsupported_orders_and_rules_are_refused():
    assert_raises(r"order.*0.*1.*2.*got 3", ak.KernelRegression, ak.Gaussian(1.0), order=3)
    entmax = ak.KernelRegression(ak.Gaussian(1.0), rule=ak.Entmax(1.5))
    assert_raises(r"Softmax.*got Entmax", fitted_and_leverage, entmax, *np.eye(2))


def test_no_queries_give_no_predictions():
    x, y = np.random.default_rng(0).normal(size=(2, 9, 2))
    model = ak.KernelRegression(ak.Gaussian(1.0), order=1)
    none = np.zeros((0, 2))
    assert model(none, x, y[:, 0]).shape == (0,)
    assert local_fit(model, none, x, y[:, 0]).condition.shape == (0,)
