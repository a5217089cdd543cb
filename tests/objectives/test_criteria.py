"""GCV, AICc, k folds and weights, from their formulas; the figures of R's np and of wage1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
from attnkernel.data import load

N = 53


def sample(out=None):
    rng = np.random.default_rng(11)
    x = rng.uniform(-2, 2, (N, 2))
    shape = (N,) if out is None else (N, out)
    signal = np.sin(2 * x[:, 0]) + np.cos(2 * x[:, 1])
    y = (signal if out is None else signal[:, None]) + 0.3 * rng.normal(size=shape)
    return x, y, rng.uniform(0.3, 2.0, N)


def hat_matrix(x, lengthscale, weights):
    scores = -0.5 * np.sum(((x[:, None] - x[None, :]) / lengthscale) ** 2, axis=2)
    raw = weights * np.exp(scores)
    return raw / raw.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("out", [None, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_criteria_by_their_formulas(x64, weighted, out):
    x, y, weights = sample(out)
    weights = weights if weighted else np.ones(N)
    hat = hat_matrix(x, 0.7, weights)
    residuals = (y - hat @ y).reshape(N, -1)
    mean_square = np.sum(weights[:, None] * residuals**2) / np.sum(weights)
    trace = np.trace(hat)
    expected = {
        ak.GCV: mean_square / (1 - trace / N) ** 2,
        ak.AICc: np.log(mean_square) + (1 + trace / N) / (1 - (trace + 2) / N),
    }
    model = ak.KernelRegression(ak.Gaussian(0.7))
    for objective, value in expected.items():
        given = {"weights": jnp.asarray(weights)} if weighted else {}
        np.testing.assert_allclose(
            objective(**given)(model, jnp.asarray(x), jnp.asarray(y)), value, rtol=1e-10
        )


@pytest.mark.parametrize("folds", [2, 5, N])
def test_folds_are_spread_over_the_inputs(x64, folds):
    x, y, weights = sample()
    order = np.lexsort((x[:, 1], x[:, 0]))
    fold = np.empty(N, int)
    fold[order] = np.arange(N) % folds
    model = ak.KernelRegression(ak.Gaussian(0.7), order=1)
    errors = np.empty(N)
    for f in range(folds):
        inside = fold == f
        predicted = model(x[inside], x[~inside], y[~inside], weights=weights[~inside])
        errors[inside] = y[inside] - predicted
    found = ak.KFold(folds, weights=jnp.asarray(weights))(model, jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(found, np.sum(weights * errors**2) / np.sum(weights), rtol=1e-9)
    if folds == N:
        left_out = ak.LeaveOneOut()(model, jnp.asarray(x), jnp.asarray(y))
        np.testing.assert_allclose(ak.KFold(N)(model, jnp.asarray(x), jnp.asarray(y)), left_out)


@pytest.mark.parametrize("criterion", [ak.GCV, ak.AICc])
@pytest.mark.parametrize("order", [0, 1])
def test_rows_of_weight_0_are_none(x64, criterion, order):
    """Nor those without a neighbour, in value and in gradient."""
    x, y, weights = (jnp.asarray(array) for array in sample())
    more = (jnp.concatenate([x, x + 0.1, x + 99.0]), jnp.concatenate([y, y, y]))
    padded = jnp.concatenate([weights, jnp.zeros(2 * N)])

    def evaluated(weights, x, y):
        def of(log_length):
            model = ak.KernelRegression(ak.Epanechnikov(jnp.exp(log_length)), order=order)
            return criterion(weights=weights)(model, x, y)

        return jax.value_and_grad(of)(jnp.log(2.0))

    found, expected = evaluated(padded, *more), evaluated(weights, x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_infinite_where_nothing_is_left(x64):
    x, y, _ = sample()
    exact = ak.KernelRegression(ak.Gaussian(1e-3))
    assert np.isposinf(ak.AICc()(exact, jnp.asarray(x), jnp.asarray(y)))
    assert np.isposinf(ak.GCV()(exact, jnp.asarray(x), jnp.asarray(y)))


@pytest.mark.parametrize(
    "objective",
    [ak.LeaveOneOut(), ak.GCV(), ak.AICc(), ak.KFold(4)],
    ids=lambda o: type(o).__name__,
)
def test_a_fit_with_weights(x64, objective):
    """A weight of 1 for all is none; of a fit they are those of its predictions too."""
    x, y, _ = sample()
    model = ak.KernelRegression(ak.Gaussian(np.ones(2)))
    weights = np.r_[np.ones(N - 4), 0.0, 0.0, 2.0, 2.0]
    fit = ak.fit(model, x, y, objective=objective, weights=weights, starts=3)
    plain = ak.fit(model, x, y, objective=objective, weights=np.ones(N), starts=3)
    unweighted = ak.fit(model, x, y, objective=objective, starts=3)
    np.testing.assert_allclose(plain.loss, unweighted.loss, rtol=1e-7)
    assert abs(float(fit.loss - plain.loss)) > 1e-6
    assert fit.objective.weights is not None
    x_new = x[:3] + 0.1
    direct = fit.model(x_new, x, y, weights=weights)
    np.testing.assert_allclose(fit(x_new), direct, rtol=1e-12)


def test_hold_out_weighs_its_rows(x64):
    x, y, weights = sample()
    key = jax.random.PRNGKey(4)
    rows = np.asarray(jax.random.permutation(key, N))[:9]
    kept = np.setdiff1d(np.arange(N), rows)
    model = ak.KernelRegression(ak.Gaussian(0.7))
    predicted = model(x[rows], x[kept], y[kept], weights=weights[kept])
    expected = np.sum(weights[rows] * (y[rows] - predicted) ** 2) / np.sum(weights[rows])
    objective = ak.HoldOut(9).weighted(jnp.asarray(weights))
    found = objective(model, jnp.asarray(x), jnp.asarray(y), key=key)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_wage1_with_the_bandwidths_of_np(x64):
    """Mixed local linear regression: R's np prints these figures for these bandwidths."""
    data = load("wage1", x=("female", "married", "educ", "exper", "tenure"))
    assert data.categories == (("Female", "Male"), ("Married", "Notmarried"), None, None, None)
    x, y = data.x, data.y
    kernel = (
        ak.AitchisonAitken(0.0197827503, 2).on(0)
        * ak.AitchisonAitken(0.152288866, 2).on(1)
        * ak.Gaussian(np.array([7.84663015, 8.43548175, 41.6054606])).on(2, 3, 4)
    )
    model = ak.KernelRegression(kernel, order=1)
    np.testing.assert_allclose(ak.AICc()(model, x, y), -0.85702836, rtol=1e-8)
    fitted, _ = model.smooth(x, y)
    np.testing.assert_allclose(jnp.sqrt(jnp.mean((y - fitted) ** 2)), 0.370342, rtol=2e-6)
    a, b = y - jnp.mean(y), fitted - jnp.mean(y)
    r_squared = jnp.sum(a * b) ** 2 / (jnp.sum(a * a) * jnp.sum(b * b))
    np.testing.assert_allclose(r_squared, 0.514814, rtol=2e-6)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (np.ones(N + 1), r"one number per row, shape \(53,\); got \(54,\)"),
        (-np.ones(N), "none below 0"),
        (np.zeros(N), "not all 0"),
        (np.full(N, np.nan), "must be finite"),
    ],
)
def test_weights_that_are_none(weights, sentence):
    x, y, _ = sample()
    model = ak.KernelRegression(ak.Gaussian(1.0))
    with pytest.raises(ValueError, match=sentence):
        ak.fit(model, x, y, objective=ak.LeaveOneOut(), weights=weights)


def test_folds_that_are_none():
    x, y, _ = sample()
    with pytest.raises(ValueError, match="at least 2 folds"):
        ak.KFold(1)
    with pytest.raises(ValueError, match=r"KFold\(60\) needs as many rows; there are 53"):
        ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), x, y, objective=ak.KFold(60))
    heads = ak.MultiheadKernelRegression(ak.Gaussian(jnp.array([0.3, 0.5])))
    with pytest.raises(ValueError, match="needs the hat matrix of a linear smoother"):
        ak.GCV()(heads, jnp.asarray(x), jnp.asarray(y))
