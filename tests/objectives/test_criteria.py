"""GCV, AICc, k-fold cross-validation, weights of rows, absolute and check loss, against NumPy,
loops and R's np; criteria of rows with repeated inputs, summed over the distinct ones."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimates import fitted_and_leverage
from known_fits import known_fit
from least_squares import left_out, local_polynomial
from marks import slow
from refusals import assert_raises

import attnkernel as ak
from attnkernel.data import load
from attnkernel.losses import CheckLoss, absolute_error
from attnkernel.objectives import Sample, at_distinct_inputs

N = 53
FOLDS = (2, 5, N)


def sample():
    """Inputs of two columns in no order, one label, and weights."""
    rng = np.random.default_rng(11)
    x = rng.uniform(-2, 2, (N, 2))
    y = np.sin(2 * x[:, 0]) + np.cos(2 * x[:, 1]) + 0.3 * rng.normal(size=N)
    return x, y, rng.uniform(0.3, 2.0, N)


def test_gcv_and_aicc_equal_their_formulas(x64):
    """For one label and for three, with weights of rows and without."""
    x, y, weights = sample()
    labels = {"one label": y, "three labels": np.stack([y, y**2, x[:, 1]], axis=1)}

    def expected(y, weights):
        hat = local_polynomial(x, x, 0.7, weights=weights)
        residuals = (y - hat @ y).reshape(N, -1)
        mean_square = np.sum(weights[:, None] * residuals**2) / np.sum(weights)
        trace = np.trace(hat)
        aicc = np.log(mean_square) + (1 + trace / N) / (1 - (trace + 2) / N)
        return mean_square / (1 - trace / N) ** 2, aicc

    @jax.jit
    def computed(x, labels, weights):
        model = ak.KernelRegression(ak.Gaussian(0.7))

        def of(y, **given):
            return ak.GCV(**given)(model, x, y), ak.AICc(**given)(model, x, y)

        return {name: (of(y), of(y, weights=weights)) for name, y in labels.items()}

    for name, (plain, weighted) in computed(x, labels, weights).items():
        np.testing.assert_allclose(plain, expected(labels[name], np.ones(N)), rtol=1e-10)
        np.testing.assert_allclose(weighted, expected(labels[name], weights), rtol=1e-10)


def test_k_fold_leaves_out_folds_that_are_spread_over_the_inputs(x64):
    """Row r in the order of the inputs is in fold r mod k; of n folds each is one row."""
    x, y, weights = sample()
    order = np.lexsort((x[:, 1], x[:, 0]))
    model = ak.KernelRegression(ak.Gaussian(0.7), order=1)

    @jax.jit
    def computed(x, y, weights):
        weighted = [ak.KFold(folds, weights=weights)(model, x, y) for folds in FOLDS]
        return weighted, ak.KFold(N)(model, x, y), ak.LeaveOneOut()(model, x, y)

    weighted, of_each_row, of_left_out = computed(x, y, weights)
    for folds, found in zip(FOLDS, weighted, strict=True):
        fold = np.empty(N, int)
        fold[order] = np.arange(N) % folds
        errors = y - left_out(x, y, 0.7, 1, groups=fold, weights=weights)
        expected = np.sum(weights * errors**2) / np.sum(weights)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(of_each_row, of_left_out)


@pytest.mark.parametrize(
    "criteria", [[(ak.GCV, 0), (ak.KFold, 0)], slow([(ak.AICc, 1), (ak.LeaveOneOut, 1)])]
)
def test_rows_of_weight_zero_do_not_count(x64, criteria):
    """Nor where they have no neighbour, in value and in gradient."""
    x, y, weights = sample()

    @jax.jit
    def computed(x, y, weights):
        def criterion(log_length, kind, order):
            model = ak.KernelRegression(ak.Epanechnikov(jnp.exp(log_length)), order=order)
            return kind(weights=weights)(model, x, y)

        return [jax.value_and_grad(criterion)(np.log(2.0), *case) for case in criteria]

    more = (np.concatenate([x, x + 0.1, x + 99.0]), np.concatenate([y, y, y]))
    padded = np.concatenate([weights, np.zeros(2 * N)])
    np.testing.assert_allclose(computed(*more, padded), computed(x, y, weights), rtol=1e-9)


def test_gcv_and_aicc_are_infinite_where_every_label_is_fitted(x64):
    x, y, _ = sample()
    exact = ak.KernelRegression(ak.Gaussian(1e-3))
    found = jax.jit(lambda x, y: (ak.AICc()(exact, x, y), ak.GCV()(exact, x, y)))(x, y)
    assert np.all(np.isposinf(found))


@pytest.mark.parametrize(
    "objective",
    [ak.LeaveOneOut(), slow(ak.GCV()), slow(ak.AICc()), slow(ak.KFold(4))],
    ids=lambda o: type(o).__name__,
)
def test_weights_of_a_fit_are_those_of_its_criterion_and_of_its_predictions(x64, objective):
    x, y, _ = sample()
    model = ak.KernelRegression(ak.Gaussian(np.ones(2)))
    weights = np.r_[np.ones(N - 4), 0.0, 0.0, 2.0, 2.0]
    fit = ak.fit(model, x, y, objective=objective, weights=weights, starts=3)
    np.testing.assert_array_equal(fit.objective.weights, weights[weights > 0])
    x_new = x[:3] + 0.1

    @jax.jit
    def computed(model, x_new, x, y, weights):
        log = model.kernel.lengthscale_parameter.z
        steps = np.array([[0.0, 0.0], [0.01, 0.0], [-0.01, 0.0], [0.0, 0.01], [0.0, -0.01]])

        def criterion(step, weights):
            moved = eqx.tree_at(lambda m: m.kernel.lengthscale_parameter.z, model, log + step)
            return objective.with_weights(weights)(moved, x, y)

        criteria = jax.vmap(jax.vmap(criterion, (0, None)), (None, 0))(steps, weights)
        return criteria, model(x_new, x, y, weights=weights[0])

    both = np.stack([weights, np.ones(N)])
    (weighted, unweighted), predicted = jax.device_get(computed(fit.model, x_new, x, y, both))
    np.testing.assert_allclose(fit.loss, weighted[0], rtol=1e-9)
    assert np.argmin(weighted) == 0
    assert abs(unweighted[0] - weighted[0]) > 1e-6
    np.testing.assert_allclose(fit(x_new), predicted, rtol=1e-12)
    lengthscale = np.asarray(fit.model.kernel.lengthscale)
    expected = local_polynomial(x_new, x, lengthscale, weights=weights) @ y
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)


@pytest.mark.slow
def test_aicc_of_wage1_equals_that_of_np(x64):
    """Mixed local linear regression: R's np prints these figures for these bandwidths."""
    data = load("wage1", x=("female", "married", "educ", "exper", "tenure"))
    assert data.categories == (("Female", "Male"), ("Married", "Notmarried"), None, None, None)
    binary, bandwidths = ak.kernels.AitchisonAitken, [7.84663015, 8.43548175, 41.6054606]
    kernel = binary(0.0197827503, 2).on(0) * binary(0.152288866, 2).on(1)
    kernel *= ak.Gaussian(np.array(bandwidths)).on(2, 3, 4)
    model = ak.KernelRegression(kernel, order=1)
    x, y = np.asarray(data.x), np.asarray(data.y)
    both = jax.jit(lambda x, y: (ak.AICc()(model, x, y), fitted_and_leverage(model, x, y)[0]))
    found, fitted = jax.device_get(both(x, y))
    np.testing.assert_allclose(found, -0.85702836, rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.mean((y - fitted) ** 2)), 0.370342, rtol=2e-6)
    a, b = y - np.mean(y), fitted - np.mean(y)
    np.testing.assert_allclose((a @ b) ** 2 / ((a @ a) * (b @ b)), 0.514814, rtol=2e-6)


def test_criteria_that_are_refused():
    x, y, _ = sample()
    assert_raises(r"folds.*at least 2.*got 1", ak.KFold, 1)
    model = ak.KernelRegression(ak.Gaussian(1.0))
    assert_raises(r"KFold\(60\).*53", ak.fit, model, x, y, objective=ak.KFold(60))
    heads = ak.MultiheadKernelRegression(ak.PerHead(ak.Gaussian(np.array([0.3, 0.5]))))
    message = r"GCV.*MultiheadKernelRegression.*LeaveOneOut"
    assert_raises(message, ak.GCV(), heads, *jax.device_put((x, y)))


ROWS = 100


def noisy():
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0, 1, ROWS))
    return x, np.sin(9 * x) + 0.3 * rng.normal(size=ROWS), rng


def rho(r, level):
    return np.where(r < 0, (level - 1) * r, level * r)


def test_values_are_those_of_loops(x64):
    """Leave-one-out with and without weights, folds, and several labels."""
    x, y, rng = noisy()
    weights = rng.integers(0, 3, ROWS) * 1.0
    model = ak.KernelRegression(ak.Gaussian(0.05))

    @jax.jit
    def computed(x, y, two):
        found = {}
        scores = {"absolute": absolute_error, "check": CheckLoss(0.8)}
        for name, score in scores.items():
            found[name] = ak.LeaveOneOut(score=score)(model, x, y)
            found[name, 1] = ak.LeaveOneOut(score=score, weights=weights)(model, x, y)
            found[name, 2] = ak.KFold(ROWS, score=score)(model, x, y)
        none = jnp.zeros_like(two)
        of_two = absolute_error(two, none), CheckLoss(0.3)(none, two)
        return list(found.values()), of_two

    two = np.stack([y, 2 * y], axis=1)
    found, (absolute, check) = jax.device_get(computed(x[:, None], y, two))
    found = iter(found)
    rows = weights > 0
    weighted = left_out(x, y, 0.05, weights=weights)[rows]
    for score in (np.abs, lambda r: rho(r, 0.8)):
        all_rows = np.mean(score(y - left_out(x, y, 0.05)))
        of_rows = np.average(score(y[rows] - weighted), weights=weights[rows])
        np.testing.assert_allclose([next(found) for _ in range(3)], [all_rows, of_rows, all_rows])
    np.testing.assert_allclose(absolute, 3 * np.abs(y))
    np.testing.assert_allclose(check, 3 * rho(y, 0.3))


def test_the_default_score_of_a_robust_model_is_the_absolute_error(x64):
    x, y, _ = noisy()
    robust = ak.RobustRegression(ak.KernelRegression(ak.Gaussian(0.1)))

    @jax.jit
    def computed(x, y):
        return ak.LeaveOneOut()(robust, x, y), ak.LeaveOneOut(score=absolute_error)(robust, x, y)

    np.testing.assert_allclose(*computed(x[:, None], y), rtol=1e-12)


def test_check_losses_are_saved_compared_and_checked(tmp_path, x64):
    x, y, _ = noisy()
    make, kernel = functools.partial(ak.LeaveOneOut, score=CheckLoss(0.8)), ak.Gaussian(0.1)
    fit, objective = known_fit(ak.KernelRegression(kernel), x, y, objective=make), make()
    ak.save(tmp_path / "fit", fit)
    back = ak.load(tmp_path / "fit")
    assert back.objective.score == CheckLoss(0.8) != CheckLoss(0.7)
    assert hash(back.objective.score) == hash(CheckLoss(0.8))
    assert objective.can_pad_rows
    long = np.linspace(0, 1, 2000)
    rows = jax.device_put((long[:, None], long))
    sampled = [each.subsample(*rows, starts=10) for each in (objective, ak.LeaveOneOut())]
    longer = ak.KernelRegression(ak.Gaussian(0.1 / (2000 / 512) ** 0.2))
    value, square = eqx.filter_jit(
        lambda sampled: [each.objective(longer, each.x, each.y) for each in sampled]
    )(sampled)
    assert abs(float(value) - float(square)) > 0.1 * float(square)  # the score, not the square
    assert_raises("level must be between 0 and 1", CheckLoss, 1.0)
    with pytest.raises(ValueError, match="must have the same shape"):
        absolute_error(*jax.device_put((np.zeros(3), np.zeros(4))))


@pytest.fixture
def rows(x64):
    """Inputs of which three do not repeat, two labels each, and weights, which repeat too."""
    rng = np.random.default_rng(0)
    distinct = rng.uniform(size=(13, 2)) + np.arange(13)[:, None] / 5
    of_row = np.append(rng.integers(0, 10, 50), [10, 11, 12])
    weights = np.where(of_row % 2, 0.5, 2.0)
    arrays = distinct[of_row], rng.normal(size=(len(of_row), 2)), weights
    return jax.device_put(arrays)


@pytest.mark.parametrize("order", [0, slow(1)])
def test_criteria_and_their_slopes_are_those_of_all_rows(rows, order):
    x, y, weights = rows
    objectives = [ak.LeaveOneOut(), *(of(weights=weights) for of in (ak.LeaveOneOut, ak.GCV))]
    objectives.append(ak.AICc())
    start = ak.KernelRegression(ak.Gaussian(1.0), order=order)
    merged = [at_distinct_inputs(start, Sample(x, y, of)).padded(start) for of in objectives]
    assert all(len(of.x) == 16 for of in merged)

    def criteria(lengthscale):
        model = ak.KernelRegression(ak.Gaussian(lengthscale), order=order)
        of_all = [of(model, x, y) for of in objectives]
        return of_all, [of.objective(model, of.x, of.y) for of in merged]

    for of_all, of_distinct in jax.jit(lambda at: jax.jvp(criteria, (at,), (1.0,)))(0.4):
        np.testing.assert_allclose(of_distinct, of_all, rtol=1e-9)


def test_sums_over_labels_are_of_double_precision():
    """1000 labels near 10⁴ at each of three inputs, in float32."""
    x = jax.device_put(np.repeat(np.arange(3.0, dtype="float32"), 1000)[:, None])
    y = np.random.default_rng(0).normal(1e4, 0.1, 3000).astype("float32")
    model, objective = ak.KernelRegression(ak.Gaussian(1.0)), ak.LeaveOneOut()
    merged = at_distinct_inputs(model, Sample(x, jax.device_put(y), objective))
    groups = y.astype(float).reshape(3, 1000)
    expected = np.sum((groups - groups.mean(1, keepdims=True)) ** 2, axis=1)
    np.testing.assert_allclose(merged.objective.squares, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "objective"),
    [
        (ak.KernelRegression(ak.Gaussian(1.0), rule=ak.Entmax(1.5)), ak.LeaveOneOut()),
        (ak.KernelRegression(ak.Gaussian(1.0)), ak.LeaveOneOut(score=ak.losses.absolute_error)),
        (ak.KernelRegression(ak.Gaussian(1.0)), ak.KFold(5)),
        (ak.LocalQuantile(ak.Gaussian(1.0)), ak.LeaveOneOut()),
    ],
)
def test_what_has_no_such_formula_keeps_all_rows(rows, model, objective):
    data = Sample(*rows[:2], objective)
    assert at_distinct_inputs(model, data) is data
