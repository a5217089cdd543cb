"""Iterated bias reduction: residuals are smoothed again, against powers of matrices; its models are
chosen, reported, drawn, saved, and estimators of scikit-learn.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimates import fitted_and_leverage, prediction_variance
from known_fits import known_fit
from least_squares import local_polynomial
from marks import slow
from refusals import assert_raises

import attnkernel as ak
import attnkernel.plot
from attnkernel.kernels import AitchisonAitken, Tricube
from attnkernel.methods import Blockwise
from attnkernel.models import BiasReduced, Rows, _bias_reduced
from attnkernel.priors import ExcludeSelf, HeldOut
from attnkernel.sklearn import KernelClassifier

N, K = 24, 5


def sample():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (N, 2))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 3.0, rng.uniform(-2, 2, (K, 2))


def model_of(order=0, iterations=4, kernel=None, **options):
    kernel = ak.Gaussian(np.array([0.9, 1.4])) if kernel is None else kernel
    model = ak.KernelRegression(kernel, order=order, **options)
    return model if iterations == 1 else ak.models.BiasReduced(model, iterations)


def by_matrices(order, iterations, q, x, y, lengthscale=(0.9, 1.4), counts=1.0):
    """The fit as the sum of powers, and its weights."""
    own, new = (local_polynomial(at, x, lengthscale, order, weights=counts) for at in (x, q))
    powers = sum(np.linalg.matrix_power(np.eye(len(x)) - own, i) for i in range(iterations))
    return new @ powers @ y, new @ powers


def left_out_by_matrices(order, iterations, x, y, **options):
    """The prediction of each row from all others."""
    others = [np.arange(len(x)) != i for i in range(len(x))]
    found = [
        by_matrices(order, iterations, x[~other], x[other], y[other], **options)[0]
        for other in others
    ]
    return np.concatenate(found)


@pytest.fixture
def data(x64):
    return sample()


@eqx.filter_jit
def estimates(model, q, x, y, many, variance, weights=None):
    fitted, hat = fitted_and_leverage(model, x, y, weights=weights)
    return {
        "predicted": model(q, x, y, weights=weights),
        "many labels": None if many is None else model(q, x, many, weights=weights),
        "variance": prediction_variance(model, q, x, variance, weights=weights),
        "fitted": fitted,
        "hat": hat,
    }


@pytest.mark.parametrize(
    ("order", "iterations", "weighted"),
    [(0, 2, False), (0, 9, True), slow(1, 4, True), slow(2, 3, False)],
)
def test_iterations_sum_powers_of_the_residual_matrix(data, order, iterations, weighted):
    """Prediction, variance and hat matrix; a row of weight 2 counts twice, one of 0 not at all."""
    x, y, q = data
    counts = np.array([2.0, 0.0, 1.0] * (N // 3)) if weighted else np.ones(N)
    many = np.stack([y, y**2, -y] * 8, axis=1)  # a polynomial sums so many by its weights
    variance = np.linspace(0.5, 2, N)
    rows = counts > 0
    spoilt = np.where(rows, y, 1e300)
    given = (None, variance, counts) if weighted else (many, variance)
    found = estimates(model_of(order, iterations), q, x, spoilt, *given)
    found = jax.device_get(found)
    expected, weights = by_matrices(order, iterations, q, x, y, counts=counts)
    np.testing.assert_allclose(found["predicted"], expected, rtol=1e-9)
    if not weighted:
        np.testing.assert_allclose(found["many labels"], weights @ many, rtol=1e-9)
    np.testing.assert_allclose(found["variance"], weights**2 @ variance, rtol=1e-8)
    expected, weights = by_matrices(order, iterations, x, x, y, counts=counts)
    np.testing.assert_allclose(found["fitted"], expected, rtol=1e-9)
    np.testing.assert_allclose(found["hat"], np.diag(weights), rtol=1e-8, atol=1e-15)
    assert np.all(found["hat"][~rows] == 0)


SINK = ak.Softmax(sink_mass=ak.fixed(2.0))
MIXED = ak.Gaussian(0.8).on(0) * AitchisonAitken(0.2, 3).on(1)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        slow(MIXED, {"order": 1}, id="numbers and categories"),
        slow(ak.NearestNeighbours(Tricube(1.0), fraction=0.6), {}, id="nearest neighbours"),
        slow(ak.Gaussian(0.8), {"rule": SINK, "order": 1}, id="sink, order 1"),
        slow(ak.Gaussian(0.8), {"rule": ak.Entmax(1.5)}, id="entmax"),
        slow(ak.Gaussian(0.8), {"method": Blockwise()}, id="blockwise"),
    ],
)
def test_iterations_of_other_kernels_rules_and_methods(data, kernel, options):
    x, y, q = data
    if kernel is MIXED:
        x, q = (np.column_stack([part[:, 0], np.arange(len(part)) % 3]) for part in (x, q))

    @eqx.filter_jit
    def weights_and_fit(once, model):
        return once(np.concatenate([x, q]), x, np.eye(N)), model(q, x, y)

    once = ak.KernelRegression(kernel, **options)
    models = [once, BiasReduced(once, 4)]
    weights, found = jax.device_get(weights_and_fit(*models))
    left = np.eye(N) - weights[:N]
    powers = sum(np.linalg.matrix_power(left, i) for i in range(4))
    np.testing.assert_allclose(found, weights[N:] @ powers @ y, rtol=1e-8)


def test_hidden_rows_are_in_no_iteration(data):
    """Each query iterates over the rows that it may see."""
    x, y, q = data
    hidden, counts = np.arange(N) < 4, np.linspace(0.5, 2, N)
    spoilt = np.where(hidden, 1e3, y)

    @eqx.filter_jit
    def results(model):
        held_out = {"prior": HeldOut(jnp.asarray(hidden))}
        weighted = model(q, x, spoilt, **held_out, weights=counts)
        others = model.estimate(x, Rows.read(x, y), prior=ExcludeSelf())
        left_out = model(x, x, y, prior=ExcludeSelf()), others.value, others.weights
        return left_out, model(q, x, spoilt, **held_out), weighted

    (*left_out, matrix), held_out, weighted = jax.device_get(results(model_of()))
    for found in (*left_out, matrix @ y):
        np.testing.assert_allclose(found, left_out_by_matrices(0, 4, x, y), rtol=1e-8)
    expected, _ = by_matrices(0, 4, q, x[4:], y[4:])
    np.testing.assert_allclose(held_out, expected, rtol=1e-8)
    expected, _ = by_matrices(0, 4, q, x[4:], y[4:], counts=counts[4:])
    np.testing.assert_allclose(weighted, expected, rtol=1e-8)


def criterion_by_matrices(objective, lengthscale, x, y):
    options = {"lengthscale": (lengthscale,) * 2}
    if isinstance(objective, ak.LeaveOneOut):
        return np.mean((left_out_by_matrices(0, 3, x, y, **options) - y) ** 2)
    fitted, weights = by_matrices(0, 3, x, x, y, **options)
    mean_square, trace = np.mean((y - fitted) ** 2), np.trace(weights)
    return np.log(mean_square) + (1 + trace / N) / (1 - (trace + 2) / N)


@pytest.mark.parametrize("objective", [ak.LeaveOneOut(), slow(ak.AICc())])
def test_criteria_and_their_slopes(data, objective):
    """Against matrices of fits without the rows, and finite differences of them."""
    x, y, _ = data

    @jax.jit
    def value_and_slope(log):
        def loss(log):
            model = model_of(0, 3, ak.Gaussian(jnp.exp(log)))
            return objective(model, jnp.asarray(x), jnp.asarray(y))

        return jax.value_and_grad(loss)(log)

    step, at = 1e-5, 0.2
    value, slope = value_and_slope(at)
    ells = np.exp([at - step, at, at + step])
    low, middle, high = (criterion_by_matrices(objective, ell, x, y) for ell in ells)
    np.testing.assert_allclose(value, middle, rtol=1e-8)
    np.testing.assert_allclose(slope, (high - low) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("order", [0, slow(1)])
def test_queries_without_neighbours_and_rows_of_weight_zero(x64, order):
    """A prediction out of reach is NaN; the hat matrix is that of the rows with weight."""
    x = np.linspace(0, 1, 40)
    near = x < 0.3
    spoilt, away = np.where(near, np.sin(9 * x), 1e8), np.array([0.5, 9.0])

    @eqx.filter_jit
    def results(model, narrow):
        return (
            model(away, x, x),
            prediction_variance(model, away, x, np.ones(40)),
            fitted_and_leverage(narrow, x, spoilt, weights=near.astype(float)),
            fitted_and_leverage(narrow, x[near], spoilt[near]),
        )

    kernels = ak.Epanechnikov(0.5), ak.Epanechnikov(0.04)
    models = [model_of(order, iterations, k) for iterations, k in zip((2, 3), kernels, strict=True)]
    predicted, variance, weighted, expected = jax.device_get(results(*models))
    np.testing.assert_array_equal(np.isnan(predicted), [False, True])
    assert variance[1] == 0
    np.testing.assert_allclose(weighted[0][near], expected[0], atol=1e-12)
    hat = np.concatenate([expected[1], np.zeros(40 - near.sum())])
    np.testing.assert_allclose(weighted[1], hat, atol=1e-12)


@pytest.mark.slow
def test_iterations_that_store_no_weights(x64):
    """Above the limit of stored weights: one label; many at order 1; float32."""
    rows = 1031
    assert rows**2 > _bias_reduced.MAX_STORED_WEIGHTS
    rng = np.random.default_rng(2)
    x, q = rng.uniform(-2, 2, (rows, 1)), rng.uniform(-2, 2, (K, 1))
    y = np.sin(2 * x[:, 0]) + 3.0
    many = np.stack([y, y**2] * 8, axis=1)

    all_labels = [y, many, y.astype("f")]
    results = eqx.filter_jit(lambda model: [model(q, x, labels) for labels in all_labels])
    found = results(model_of(1, 4, ak.Gaussian(0.3)))
    _, weights = by_matrices(1, 4, q, x, y, lengthscale=0.3)
    for one, labels in zip(found, all_labels, strict=True):
        rtol = 1e-9 if labels.dtype == float else 1e-6
        np.testing.assert_allclose(one, weights @ labels, rtol=rtol)


def test_unsupported_uses_are_refused(data):
    x, y, q = data
    fit = known_fit(model_of(), x, y)
    assert_raises(r"4.*corrected=False", ak.bands, fit, q)
    message = r"a LocalQuantile, or a smoother whose weights.*4 iterations"
    assert_raises(message, ak.quantiles, fit, q, 0.5)
    assert_raises(r"variance.*4 iterations", ak.MeanVarianceRegression, model_of(), model_of())
    for iterations in (1, 0, -1, True):
        message = f"iterations.*at least 2.*{iterations}"
        assert_raises(message, BiasReduced, model_of(iterations=1), iterations)
    for labels in (y[:1], y[:-1]):
        message = rf"same n; got x \(24, 2\) and y \({len(labels)},\)"
        assert_raises(message, model_of(), q, x, labels)


def test_a_classifier_takes_iterations(data):
    x, y, q = data
    found = KernelClassifier(iterations=3, lengthscale=0.7).fit(x, y > 3).predict_proba(q)
    expected, _ = by_matrices(0, 3, q, x, 1.0 * (y > 3), lengthscale=(0.7, 0.7))
    np.testing.assert_allclose(found[:, 1], np.clip(expected, 0, 1), rtol=1e-8)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
