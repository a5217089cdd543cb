"""Regressors of scikit-learn, and this package's own for it, each with everything it chooses."""

import warnings
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from .driver import optional_import
from .regressor import Fitted, Prediction, Regressor, format_numbers


def gaussian_process(restarts: int, seed: int) -> Regressor:
    """scikit-learn's: a Gaussian kernel with one lengthscale per column, and white noise."""
    process, kernels = (
        optional_import("sklearn.gaussian_process"),
        optional_import("sklearn.gaussian_process.kernels"),
    )
    prepared = _make_standardising_pipeline()

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        kernel = kernels.ConstantKernel() * kernels.RBF(np.ones(x.shape[1]))
        model = prepared(
            process.GaussianProcessRegressor(
                kernel + kernels.WhiteKernel(),
                normalize_y=True,
                n_restarts_optimizer=restarts,
                random_state=seed,
            )
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parameters that end on a bound
            model.fit(x, y)

        def predict(at: np.ndarray, level: float) -> Prediction:
            centre, sd = model.predict(at, return_std=True)
            width = NormalDist().inv_cdf(0.5 + 0.5 * level) * sd
            return Prediction(centre, centre - width, centre + width)

        return Fitted(predict, str(model[-1].kernel_))

    return fit


def nearest_neighbours(seed: int) -> Regressor:
    """scikit-learn's: the number of neighbours by five folds, inputs in standard deviations."""
    selection = optional_import("sklearn.model_selection")
    make = optional_import("sklearn.neighbors").KNeighborsRegressor
    prepared = _make_standardising_pipeline()

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        grid = [k for k in (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70) if k <= 0.7 * len(x)]
        search = selection.GridSearchCV(
            prepared(make()),
            {"kneighborsregressor__n_neighbors": grid},
            scoring="neg_mean_squared_error",
            cv=selection.KFold(5, shuffle=True, random_state=seed),
        ).fit(x, y)
        (best,) = search.best_params_.values()
        return Fitted(lambda at, level: Prediction(search.predict(at)), f"k = {best}")

    return fit


def ridge() -> Regressor:
    """scikit-learn's: the penalty by leave-one-out, inputs in standard deviations."""
    make = optional_import("sklearn.linear_model").RidgeCV
    prepared = _make_standardising_pipeline()

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        model = prepared(make(np.logspace(-3, 3, 25))).fit(x, y)
        return Fitted(lambda at, level: Prediction(model.predict(at)), f"{model[-1].alpha_:.3g}")

    return fit


def kernel_regressor() -> Regressor:
    """`attnkernel.sklearn.KernelRegressor` with its defaults."""
    make = optional_import("attnkernel.sklearn").KernelRegressor

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of lengthscales that end on a bound
            model = make().fit(x, y)

        def predict(at: np.ndarray, level: float) -> Prediction:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of extrapolation
                return Prediction(model.predict(at))

        lengthscales = format_numbers(model.lengthscale_)
        return Fitted(predict, f"order {model.order_}, {lengthscales}")

    return fit


def _make_standardising_pipeline() -> Callable[[Any], Any]:
    """Returns a function that puts a `StandardScaler` of the inputs before a scikit-learn model."""
    pipeline, scaler = (
        optional_import("sklearn.pipeline"),
        optional_import("sklearn.preprocessing").StandardScaler,
    )
    return lambda model: pipeline.make_pipeline(scaler(), model)
