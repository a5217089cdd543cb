"""The default of `KernelRegressor`: candidates by order and kind of lengthscales, against NumPy;
its search on a sample of the rows; the checks of scikit-learn."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from least_squares import local_polynomial
from marks import slow
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import attnkernel as ak
from attnkernel.sklearn import KernelClassifier, KernelRegressor
from attnkernel.sklearn._candidates import fit_on_line

# the lengthscale of a column without effect ends on its upper bound, which is a warning
pytestmark = pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")


def curve(x, rng):
    return np.sin(9 * x[:, 0]) + 0.1 * rng.normal(size=len(x))  # column 1 has no effect


def ripple(x, rng):  # without the penalty, two lengthscales would be chosen
    return np.sin(6 * np.hypot(*(x.T - 0.5))) + 0.1 * rng.normal(size=len(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "is_common", "order", "objective"),
    [(ripple, True, 1, ak.LeaveOneOut()), slow(curve, False, None, ak.AICc())],
)
def test_auto_takes_the_least_penalised_criterion(of, is_common, order, objective):
    """A common lengthscale is in standard deviations: the units of columns do not matter."""
    draw = np.random.default_rng(3)
    x = draw.uniform(size=(40, 2))
    y = of(x, draw)
    units = np.array([1e-3, 1e3])
    options = {"starts": 2, "objective": objective}
    model = KernelRegressor(**options).fit(x * units, y)
    criteria, deviation = {}, x.std(0)
    for p in (0, 1):
        for per_dimension in (False, True):
            # inputs with standard deviations of 1
            one = KernelRegressor(order=p, per_dimension=per_dimension, **options)
            loss = float(one.fit(x / deviation, y).fit_.loss)
            log = loss if isinstance(objective, ak.AICc) else np.log(loss)
            criteria[p, per_dimension] = log + (1 + per_dimension) * np.log(40) / 40
    best = min(criteria, key=criteria.get)
    assert best[1] is not is_common
    assert order is None or best[0] == order
    assert model.order_ == best[0]
    relative = model.lengthscale_ / (units * deviation)
    assert np.isclose(*relative, rtol=1e-12, atol=0) == is_common
    inside = draw.uniform(0.3, 0.7, (7, 2))
    expected = local_polynomial(inside, x, relative * deviation, model.order_) @ y
    np.testing.assert_allclose(model.predict(inside * units), expected, rtol=1e-6)
    assert pickle.loads(pickle.dumps(model)).order_ == model.order_


@pytest.mark.parametrize("is_inside", [True, False])
def test_the_minimum_on_a_line_is_that_of_its_profile(x64, is_inside):
    draw = np.random.default_rng(1)
    x = draw.uniform(size=(50, 2))
    y = np.sin(5 * x[:, 0]) + 0.2 * draw.normal(size=50)
    scale, interval = np.array([1.0, 3.0]), (0.02, 1.0) if is_inside else (0.3, 1.0)

    def model(t):
        return ak.KernelRegression(ak.Gaussian(t * scale))

    fit = fit_on_line(model, interval, jnp.asarray(x), jnp.asarray(y), ak.LeaveOneOut())
    at = np.geomspace(*interval, 2000)
    losses = []
    for t in at:
        weights = np.exp(-0.5 * np.sum(((x[:, None] - x) / (t * scale)) ** 2, axis=2))
        np.fill_diagonal(weights, 0.0)
        losses.append(np.mean((weights @ y / weights.sum(1) - y) ** 2))
    np.testing.assert_allclose(fit.loss, min(losses), rtol=1e-6)
    expected = at[np.argmin(losses)] * scale
    np.testing.assert_allclose(fit.model.kernel.lengthscale, expected, rtol=5e-3)
    results = ak.fitting.Result
    assert fit.starts.result[0] == (results.CONVERGED if is_inside else results.AT_BOUND)


def test_auto_compares_criteria_with_a_logarithm():
    class Shifted(ak.objectives.Objective):
        def __call__(self, model, x, y, *, key=None):
            return ak.LeaveOneOut()(model, x, y) - 100.0

    with pytest.raises(ValueError, match=r'"auto".*logarithm.*got Shifted'):
        KernelRegressor(objective=Shifted()).fit(*draw(31, 2))
    assert KernelRegressor(lengthscale=0.5).fit(*draw(31, 2)).order_ == 0


ROWS, PART = 230, 60


def draw(n, dim, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n, dim))
    return x, np.sin(6 * x[:, 0]) + x[:, -1] + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize(
    ("options", "bias"),
    [
        ({"order": 0}, 2),
        slow({"order": 2}, 4),
        slow({"order": 1, "iterations": 2, "objective": "gcv"}, 4),
    ],
)
def test_lengthscales_of_a_sample_shrink_at_the_rate_of_the_best_ones(options, bias):
    x, y = draw(ROWS, 2)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, ROWS)
    options = {"per_dimension": False, "starts": 1, **options}
    model = KernelRegressor(subsample=PART, **options).fit(x, y, sample_weight=weights)
    order = np.lexsort(x.T[::-1])
    of_sample = [np.flatnonzero(np.all(x == row, axis=1))[0] for row in np.array(model.fit_.x)]
    first_of_part = np.arange(PART + 1) * ROWS // PART
    part = np.searchsorted(first_of_part, np.argsort(order)[of_sample], "right")
    assert list(part) == list(range(1, PART + 1))  # one row of each of PART equal parts
    rows = x[of_sample], y[of_sample], weights[of_sample]
    of_rows = KernelRegressor(subsample=None, **options).fit(*rows)
    shrunk = of_rows.lengthscale_ * (PART / ROWS) ** (1 / (2 + 2 * bias))
    np.testing.assert_allclose(model.lengthscale_, shrunk, rtol=1e-9)
    if "iterations" not in options:  # predictions are from all rows
        at = np.random.default_rng(2).uniform(0.3, 0.7, (5, 2))
        every_row = (x, model.lengthscale_, options["order"])
        expected = local_polynomial(at, *every_row, weights=weights) @ y
        np.testing.assert_allclose(model.predict(at), expected, rtol=1e-7)


@pytest.mark.slow
def test_a_sample_of_a_grid_holds_every_value_of_its_second_column():
    grid = np.stack(np.meshgrid(np.arange(60.0), np.arange(4.0), indexing="ij"), -1).reshape(-1, 2)
    model = KernelRegressor(order=0, starts=1, subsample=60).fit(grid, grid[:, 1] ** 2)
    counts = np.unique(np.array(model.fit_.x)[:, 1], return_counts=True)[1]
    assert len(counts) == 4
    assert min(counts) > 5


@pytest.mark.slow
def test_rows_are_sampled_only_where_no_fast_sum_applies():
    x, y = draw(2500, 1)
    few = {"starts": 1, "subsample": PART}
    assert len(KernelRegressor(order=0, **few).fit(x, y).fit_.x) == len(x)
    assert len(KernelRegressor("cauchy", order=0, **few).fit(x, y).fit_.x) == PART


def test_another_number_of_rows_compiles_nothing_in_the_search(programs):
    model = KernelRegressor(order=0, starts=1, subsample=PART)
    model.fit(*draw(ROWS, 2))
    programs.clear()
    model.fit(*draw(ROWS + 60, 2, seed=4))
    assert len(programs) == 0


def test_a_sample_of_two_rows_is_refused():
    with pytest.raises(ValueError, match="subsample"):
        KernelRegressor(subsample=2).fit(*draw(ROWS, 1))


# without a search in most checks: a hundred fits have shapes of their own, and are compiled
ESTIMATORS = [kind(lengthscale=0.5) for kind in (KernelRegressor, KernelClassifier)]
SEARCHED = {
    "check_classifiers_one_label_sample_weights",
    "check_classifiers_train",
    "check_dtype_object",
    "check_fit_idempotent",
    "check_regressors_train",
    "check_sample_weight_equivalence_on_dense_data",
}
REPRESENTATIVE = {
    # parameters and tags
    "check_estimator_tags_renamed",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    # validation of data
    "check_complex_data",
    "check_estimators_unfitted",
    # a fit of weights of rows
    "check_classifiers_one_label_sample_weights",
}
EVERY_CHECK = parametrize_with_checks(ESTIMATORS)
CASES = [
    case if case[1].func.__name__ in REPRESENTATIVE else slow(*case) for case in EVERY_CHECK.args[1]
]


def test_representative_checks_exist():
    names = {check.func.__name__ for _, check in EVERY_CHECK.args[1]}
    assert names >= REPRESENTATIVE | SEARCHED


@pytest.mark.parametrize(("estimator", "check"), CASES, ids=EVERY_CHECK.kwargs["ids"])
def test_check_of_scikit_learn(estimator, check):
    if check.func.__name__ in SEARCHED:
        options = {"order": 0, "starts": 1, "subsample": PART}
        estimator = clone(estimator).set_params(lengthscale=None, **options)
    check(estimator)
