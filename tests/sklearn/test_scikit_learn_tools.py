"""Tools of scikit-learn that take the estimators: searches, pipelines, frames, copies."""

import copy
import pickle

import numpy as np
import pandas
import pytest
from marks import slow
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import attnkernel as ak
from attnkernel.sklearn import KernelClassifier, KernelRegressor

# the lengthscale of a column without effect ends on its upper bound, which is a warning
pytestmark = pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")

N = 31
rng = np.random.default_rng(0)
X, X_NEW = rng.uniform(-2, 2, (N, 2)), rng.uniform(-2, 2, (7, 2))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=N)
KIND = np.array(["a", "b", "c"], object)[np.digitize(Y, [-0.5, 0.5])]


@pytest.mark.filterwarnings("ignore::attnkernel.local.ExtrapolationWarning")  # of unshuffled folds
@pytest.mark.slow
def test_grid_search_over_order_and_kernel():
    grid = {"order": [0, 1], "kernel": ["gaussian", "epanechnikov"]}
    search = GridSearchCV(KernelRegressor(lengthscale=1.0), grid, cv=3).fit(X[:30], Y[:30])
    assert search.best_params_["order"] == 1
    assert search.best_score_ == np.max(search.cv_results_["mean_test_score"])


def test_pipeline_searches_in_scaled_units():
    far = X * [1e-4, 1e6] + [0, 1e8]
    scaled = make_pipeline(StandardScaler(), KernelRegressor(order=0, starts=2)).fit(far, Y)
    lengthscale = scaled[-1].lengthscale_ * scaled[0].scale_
    plain = KernelRegressor(lengthscale=lengthscale).fit(far, Y)
    np.testing.assert_allclose(scaled.predict(far), plain.predict(far), rtol=1e-6)


def test_names_of_the_columns_of_a_data_frame_are_kept():
    frame = pandas.DataFrame(X, columns=["age", "wage"])
    labels = pandas.Series(Y)
    model = KernelRegressor(lengthscale=0.5).fit(frame, labels)
    assert list(model.feature_names_in_) == ["age", "wage"]
    found = model.predict(frame)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, KernelRegressor(lengthscale=0.5).fit(X, Y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["wage", "age"]])
    scaler = StandardScaler().set_output(transform="pandas")
    named = make_pipeline(scaler, KernelRegressor(lengthscale=0.5)).fit(frame, labels)
    assert list(named[-1].feature_names_in_) == ["age", "wage"]


def by_pickle(model):
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("copied", [by_pickle, copy.deepcopy])
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


def test_clone_is_unfitted_with_the_same_parameters():
    parameters = {"order": 1, "objective": ak.KFold(4), "on_empty": "mean", "starts": 1}
    model = KernelRegressor(ak.Gaussian(0.4), **parameters)
    assert repr(clone(model)) == repr(model)
    assert {name: clone(model).get_params()[name] for name in parameters} == parameters
    fitted = model.set_params(objective=None).fit(X, Y)
    copied = clone(fitted)
    assert not hasattr(copied, "model_")
    np.testing.assert_array_equal(copied.fit(X, Y).predict(X_NEW), fitted.predict(X_NEW))
