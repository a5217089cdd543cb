"""Estimators of scikit-learn: their numbers against NumPy, parameters that are refused, and tools:
searches, pipelines, frames, copies."""

import copy
import pickle
import re

import jax
import numpy as np
import pandas
import pytest
from least_squares import left_out, local_polynomial
from marks import slow
from refusals import assert_raises
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import attnkernel as ak
from attnkernel.local import ExtrapolationWarning
from attnkernel.sklearn import KernelClassifier, KernelRegressor
from attnkernel.sklearn._base import merge_duplicates

# the lengthscale of a column without effect ends on its upper bound, which is a warning
pytestmark = pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")

N, M, D = 31, 7, 2
rng = np.random.default_rng(0)
X, X_NEW = rng.uniform(-2, 2, (N, D)), rng.uniform(-2, 2, (M, D))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=N)
PRODUCT = ak.Gaussian(0.7) * ak.Laplace(2.0)
KIND = np.array(["a", "b", "c"], object)[np.digitize(Y, [-0.5, 0.5])]


@pytest.mark.parametrize("order", [0, slow(1)])
def test_predictions_equal_least_squares_at_the_fitted_lengthscales(order):
    model = KernelRegressor(order=order, per_dimension=True, starts=2).fit(X, Y)
    assert model.lengthscale_.shape == (D,)
    found = model.predict(X_NEW)
    assert found.dtype == np.float64
    expected = local_polynomial(X_NEW, X, model.lengthscale_, order) @ Y
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert model.score(X, Y) > 0.9


def test_search_minimises_the_error_of_left_out_rows():
    model = KernelRegressor(order=0, per_dimension=False).fit(X, Y)

    def loss(lengthscale):
        return np.mean((left_out(X, Y, lengthscale) - Y) ** 2)

    assert isinstance(model.lengthscale_, float)
    least = loss(model.lengthscale_)
    np.testing.assert_allclose(model.fit_.loss, least, rtol=1e-9)
    assert least <= min(loss(length) for length in np.geomspace(0.05, 20, 60)) * (1 + 1e-9)


def test_numbers_are_float64_with_and_without_the_flag_of_jax():
    with jax.enable_x64(False):
        plain = KernelRegressor(lengthscale=0.3).fit(X, Y).predict(X_NEW)
    with jax.enable_x64(True):
        wide = KernelRegressor(lengthscale=0.3).fit(X, Y).predict(X_NEW)
    np.testing.assert_array_equal(plain, wide)


@pytest.mark.parametrize("order", [0, slow(1)])
def test_standard_deviations_are_sums_of_squared_weights(order):
    y = np.c_[Y, Y**2]
    model = KernelRegressor(order=order, lengthscale=[0.8, 1.5]).fit(X, y)
    weights = local_polynomial(X_NEW, X, [0.8, 1.5], order)
    mean, std = model.predict(X_NEW, return_std=True)
    np.testing.assert_allclose(mean, weights @ y, rtol=1e-9)
    residuals = y - left_out(X, y, [0.8, 1.5], order)
    np.testing.assert_allclose(std, np.sqrt(weights**2 @ residuals**2), rtol=1e-8)


def test_standard_deviations_of_rows_of_the_same_input():
    """Each row has its own noise; rows of one input leave it out together."""
    x, y = np.array([0.0, 0.0, 1.0, 2.0])[:, None], np.array([1.0, 2.0, 5.0, 4.0])
    w = np.array([1.0, 3.0, 1.0, 2.0])
    model = KernelRegressor(lengthscale=0.7).fit(x, y, w)
    unseen = left_out(x, y, 0.7, groups=np.array([0, 0, 1, 2]), weights=w)
    expected = local_polynomial([[0.4]], x, 0.7, weights=w) ** 2 @ (y - unseen) ** 2
    _, std = model.predict([[0.4]], return_std=True)
    np.testing.assert_allclose(std, np.sqrt(expected), rtol=1e-9)


@pytest.mark.parametrize("policy", ["nearest", "mean", "nan"])
def test_policies_of_predictions_where_no_row_has_weight(policy):
    x, y, w = np.arange(4.0)[:, None], np.array([1.0, 2.0, 4.0, 9.0]), np.array([2, 1, 1, 1])
    model = KernelRegressor("epanechnikov", lengthscale=1.5, on_empty=policy).fit(x, y, w)
    mean, std = model.predict([[9.0]], return_std=True)
    unseen = [2.0, (2 * 1 + 4) / 3, (2 + 9) / 2, 4.0]  # the mean of the neighbours
    squares = (y - unseen) ** 2
    expected = {"nearest": (9.0, squares[3]), "mean": (17 / 5, (w / 5) ** 2 @ squares)}
    expected = expected.get(policy, (np.nan, np.nan))
    np.testing.assert_allclose([mean[0], std[0] ** 2], expected, rtol=1e-12)


def test_policy_raise_where_no_row_has_weight():
    model = KernelRegressor("boxcar", lengthscale=0.1, on_empty="raise").fit(X, Y)
    with pytest.raises(RuntimeError, match="no label within reach"):
        model.predict([[50.0, 50.0]])


@pytest.mark.parametrize("objective", ["leave-one-out", slow(ak.KFold(4), id="4 folds")])
def test_weight_of_two_equals_a_row_given_twice(objective):
    counts = rng.integers(0, 4, N)
    parts = {"order": 0, "per_dimension": True, "objective": objective, "starts": 2}
    weighted = KernelRegressor(**parts).fit(X, Y, counts)
    repeated = KernelRegressor(**parts).fit(X.repeat(counts, 0), Y.repeat(counts))
    np.testing.assert_allclose(weighted.lengthscale_, repeated.lengthscale_, rtol=1e-12)
    weights = local_polynomial(X_NEW, X, weighted.lengthscale_, weights=counts)
    np.testing.assert_allclose(weighted.predict(X_NEW), weights @ Y, rtol=1e-9)
    times_ten = clone(weighted).fit(X, Y, 10.0 * counts)
    np.testing.assert_allclose(times_ten.lengthscale_, weighted.lengthscale_, rtol=1e-6)


def test_groups_of_an_objective_follow_their_rows():
    groups, found = np.arange(N) // 4, []
    for rows in (np.arange(N), np.argsort(X[:, 0])):
        parts = {"per_dimension": True, "objective": ak.objectives.GroupKFold(groups[rows])}
        found.append(KernelRegressor(order=0, **parts).fit(X[rows], Y[rows]).lengthscale_)
    np.testing.assert_allclose(*found, rtol=1e-9)


def test_rows_of_one_input_are_their_mean_with_the_sum_of_their_weights():
    x = np.array([[1.0, 0.0], [0.0, 5.0], [1.0, -0.0], [0.0, 4.0], [7.0, 7.0]])
    y, weights = np.array([1.0, 2.0, 4.0, 8.0, 99.0]), np.array([1.0, 2.0, 3.0, 1.0, 0.0])
    rows = merge_duplicates(x, y, weights)
    np.testing.assert_array_equal(rows.x, [[0, 4], [0, 5], [1, 0]])
    np.testing.assert_allclose(rows.y, [8, 2, 3.25], rtol=1e-15)
    np.testing.assert_array_equal(rows.weights, [1, 2, 4])
    np.testing.assert_allclose(rows.variance_of_means(np.ones((4, 1))), [[1], [1], [10 / 16]])
    assert_raises(r"not all 0.*0\.0 to 0\.0", merge_duplicates, x, x[:, 0], np.zeros(5))


def test_constant_column_is_ignored():
    padded = np.c_[X[:, 0], np.full(N, 3.0), X[:, 1]]
    parts = {"order": 0, "per_dimension": True, "starts": 2}
    model, without = KernelRegressor(**parts).fit(padded, Y), KernelRegressor(**parts).fit(X, Y)
    np.testing.assert_array_equal(model.lengthscale_[[0, 2]], without.lengthscale_)
    assert model.lengthscale_[1] == np.inf
    far = np.c_[X_NEW[:, 0], np.full(M, -50.0), X_NEW[:, 1]]
    # two programs, of 3 columns and of 2
    np.testing.assert_allclose(model.predict(far), without.predict(X_NEW), rtol=1e-14)
    again = KernelRegressor(lengthscale=model.lengthscale_).fit(padded, Y)
    np.testing.assert_allclose(again.predict(far), without.predict(X_NEW), rtol=1e-14)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (X, np.full(N, 2.5), 2.5),
        (np.ones((N, D)), Y, Y.mean()),
        (X[:1], Y[:1], Y[0]),
        (np.repeat([[0.0, 0.0], [9.0, 9.0]], 5, 0), Y[:10], Y[:5].mean()),
    ],
    ids=["constant labels", "constant inputs", "one row", "two distinct inputs"],
)
def test_data_without_a_search(x, y, expected):
    model = KernelRegressor().fit(x, y)
    assert model.fit_ is None
    np.testing.assert_allclose(model.predict([[0.1, -0.1]]), [expected], rtol=1e-12)


def test_a_kernel_of_fixed_numbers_is_used_without_a_search():
    x, y = np.linspace(0.0, 1.0, 9)[:, None], np.arange(9.0) ** 2
    model = KernelRegressor(kernel=ak.Gaussian(ak.fixed(0.3))).fit(x, y)
    assert model.fit_ is None
    assert model.lengthscale_ == 0.3


def test_kernels_of_the_library():
    model = KernelRegressor(PRODUCT, starts=2).fit(X, Y)
    as_given = KernelRegressor(PRODUCT, objective=None).fit(X, Y)
    assert model.score(X, Y) > as_given.score(X, Y)
    assert not hasattr(model, "lengthscale_")
    fixed = KernelRegressor(ak.Gaussian(np.array([0.5, 2.0])), objective=None).fit(X, Y)
    np.testing.assert_allclose(fixed.lengthscale_, [0.5, 2.0], rtol=1e-6)  # it was float32
    scott = KernelRegressor(objective=None).fit(X, Y)
    np.testing.assert_allclose(scott.lengthscale_, X.std(0) * N ** (-1 / 6), rtol=1e-12)


def test_masked_entries_are_refused():
    """As by `ak.fit`: scikit-learn itself takes the numbers below the mask."""
    hidden = lambda array: np.ma.masked_greater(array, 1.0)  # noqa: E731
    fitted, ones = KernelRegressor(lengthscale=1.0).fit(X, Y), np.ma.masked_equal([1.0] * N, 1.0)
    for call, name in (
        (lambda: KernelRegressor().fit(hidden(X), Y), "X"),
        (lambda: KernelRegressor().fit(X, hidden(Y)), "y"),
        (lambda: KernelRegressor().fit(X, Y, ones), "sample_weight"),
        (lambda: KernelClassifier().fit(hidden(X), KIND), "X"),
        (lambda: fitted.predict(hidden(X_NEW)), "X"),
    ):
        assert_raises(rf"^{name} has \d+ masked entries", call)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": "gausian"}, r"kernel.*'gaussian'.*got 'gausian'"),
        ({"objective": "loo"}, r"objective.*'leave-one-out'.*got 'loo'"),
        ({"objective": ak.HoldOut(3)}, r"HoldOut.*KFold"),
        ({"lengthscale": [1.0, 2.0, 3.0]}, r"lengthscale.*\(2,\).*\(3,\)"),
        ({"lengthscale": -1.0}, "must be positive"),
        ({"kernel": ak.Gaussian(1.0), "lengthscale": 1.0}, "Gaussian.*lengthscale"),
        ({"on_empty": "zero"}, "on_empty"),
        ({"order": 3}, "order"),
    ],
)
def test_parameters_that_are_refused(parameters, message):
    assert_raises(message, KernelRegressor(**parameters).fit, X, Y)


def test_probabilities_are_weighted_frequencies_of_classes():
    model = KernelClassifier(starts=2).fit(X, KIND)
    np.testing.assert_array_equal(model.classes_, ["a", "b", "c"])
    assert model.classes_.dtype == object
    one_hot = (KIND[:, None] == model.classes_).astype(float)
    expected = local_polynomial(X_NEW, X, model.lengthscale_) @ one_hot
    np.testing.assert_allclose(model.predict_proba(X_NEW), expected, rtol=1e-9, atol=1e-15)
    np.testing.assert_array_equal(model.predict(X_NEW), model.classes_[expected.argmax(1)])
    errors = left_out(X, one_hot, model.lengthscale_) - one_hot
    brier = np.mean(np.sum(errors**2, axis=1))
    np.testing.assert_allclose(model.fit_.loss, brier, rtol=1e-9)


@pytest.mark.filterwarnings(
    "ignore::attnkernel.local.ExtrapolationWarning"
)  # far enough to be clipped
def test_probabilities_of_local_lines_are_clipped():
    proba = KernelClassifier(order=1, lengthscale=1.0).fit(X, KIND).predict_proba(3 * X_NEW)
    raw = local_polynomial(3 * X_NEW, X, 1.0, 1) @ (KIND[:, None] == ["a", "b", "c"])
    assert raw.min() < 0
    cut = np.clip(raw, 0, 1)
    np.testing.assert_allclose(proba, cut / cut.sum(1, keepdims=True), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("policy", "expected"), [("nearest", [0.0, 1.0]), ("mean", [3 / 4, 1 / 4])]
)
def test_policies_of_classes_where_no_row_has_weight(policy, expected):
    x, kinds = np.array([[0.0], [1.0], [2.0], [2.5]]), np.array([5, 5, 5, 7])
    model = KernelClassifier("boxcar", lengthscale=0.1, on_empty=policy).fit(x, kinds)
    np.testing.assert_allclose(model.predict_proba([[9.0]]), [expected], rtol=1e-14)
    assert_raises(r"on_empty.*nearest", KernelClassifier(on_empty="nan").fit, x, kinds)


# the lengthscale of a column without effect ends on its upper bound, which is a warning


@pytest.mark.filterwarnings("ignore::attnkernel.local.ExtrapolationWarning")  # of unshuffled folds
@pytest.mark.slow
def test_grid_search_over_orders():
    search = GridSearchCV(KernelRegressor(lengthscale=1.0), {"order": [0, 1]}, cv=3)
    assert search.fit(X[:30], Y[:30]).best_params_ == {"order": 1}


def test_pipeline_searches_in_scaled_units():
    far = X * [1e-4, 1e6] + [0, 1e8]
    scaled = make_pipeline(StandardScaler(), KernelRegressor(order=0, starts=2)).fit(far, Y)
    lengthscale = scaled[-1].lengthscale_ * scaled[0].scale_
    plain = KernelRegressor(lengthscale=lengthscale).fit(far, Y)
    np.testing.assert_allclose(scaled.predict(far), plain.predict(far), rtol=1e-6)


@pytest.mark.filterwarnings("default::attnkernel.FitWarning")
def test_warnings_of_a_fit_name_columns_and_arguments_of_the_estimator():
    frame = pandas.DataFrame(np.c_[X[:, 0] * 0 + 1, X], columns=["one", "slope", "curve"])
    with pytest.warns(ak.FitWarning, match="bound") as caught:
        KernelRegressor(order=0, per_dimension=True, starts=1).fit(frame, np.sin(3 * X[:, 1]))
    (text,) = [str(each.message) for each in caught]
    assert "On its upper bound: lengthscale of slope." in text
    assert text.endswith("Or give lengthscale=.")
    assert not re.search(r"bounds=|kernel\.|\[\d", text)


@pytest.mark.slow
def test_a_column_for_each_category_is_no_reason_to_warn_at_each_prediction():
    """Each of them is constant in reach, so that the line along it is not determined."""
    kind = np.arange(60) % 3
    x = np.c_[np.eye(3)[kind], np.linspace(0, 5, 60)]
    y = 10.0 * kind + np.sin(x[:, 3])
    lengthscale = [0.1, 0.1, 0.1, 0.5]
    model = KernelRegressor(order=1, lengthscale=lengthscale).fit(x, y)
    np.testing.assert_allclose(model.predict(x), y, atol=0.2)  # a warning is an error
    curve = KernelRegressor(order=1, lengthscale=0.3).fit(x[:, 3:], y)
    with pytest.warns(ExtrapolationWarning, match="Predict nearer the data"):
        curve.predict([[9.0]])


def test_names_of_the_columns_of_a_data_frame_are_kept():
    frame = pandas.DataFrame(X, columns=["age", "wage"])
    labels = pandas.Series(Y)
    model = KernelRegressor(lengthscale=0.5).fit(frame, labels)
    assert list(model.feature_names_in_) == ["age", "wage"]
    found = model.predict(frame)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, KernelRegressor(lengthscale=0.5).fit(X, Y).predict(X))
    assert_raises("feature names", model.predict, frame[["wage", "age"]])
    scaler = StandardScaler().set_output(transform="pandas")
    named = make_pipeline(scaler, KernelRegressor(lengthscale=0.5)).fit(frame, labels)
    assert list(named[-1].feature_names_in_) == ["age", "wage"]


@pytest.mark.parametrize("copied", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy])
@pytest.mark.parametrize(
    "model",
    [
        slow(KernelRegressor(starts=2)),
        KernelRegressor(ak.Gaussian(0.7) * ak.Laplace(2.0), starts=1),
        KernelClassifier(lengthscale=0.3),
    ],
    ids=["named kernel", "product of kernels", "classifier"],
)
def test_copy_of_a_fitted_estimator_predicts_the_same_to_the_bit(model, copied):
    model = clone(model).fit(X, KIND if isinstance(model, KernelClassifier) else Y)
    other = copied(model)
    np.testing.assert_array_equal(other.predict(X_NEW), model.predict(X_NEW))
    if hasattr(model, "lengthscale_"):
        np.testing.assert_array_equal(other.lengthscale_, model.lengthscale_)
    if model.fit_ is not None:
        assert other.fit_.x.dtype == model.fit_.x.dtype == np.float64
        np.testing.assert_array_equal(other.fit_.history["loss"], model.fit_.history["loss"])
