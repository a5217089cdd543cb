"""Regressors to compare: each from labelled data to predictions, with everything it has to choose.

Bandwidths, orders and numbers of neighbours are chosen from the rows that a regressor is given and
by its own criterion, so that the rows of the left-out fold do not affect it.
"""

from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from .driver import Unavailable, optional_import


class Fitted(NamedTuple):
    """What predicts at new inputs, shape (m, dim), for a level; and what was chosen, in words.

    A prediction has the row of means; then, of a regressor with intervals, those of both ends.
    """

    predict: Callable[[np.ndarray, float], Sequence[np.ndarray]]
    chosen: str
    bandwidth: np.ndarray | None = None  # one per column, of a kernel regression


Regressor = Callable[[np.ndarray, np.ndarray], Fitted]  # of x, shape (n, dim), and y


def format_numbers(values: Any) -> str:
    """Returns numbers as text: four significant digits each, separated by commas."""
    return ", ".join(f"{value:.4g}" for value in np.ravel(np.asarray(values)))


def gaussian_process(restarts: int, seed: int) -> Regressor:
    """scikit-learn's: a Gaussian kernel with one lengthscale per column, and white noise."""
    process = optional_import("sklearn.gaussian_process")
    kernels = optional_import("sklearn.gaussian_process.kernels")

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        kernel = kernels.ConstantKernel() * kernels.RBF(np.ones(x.shape[1]))
        model = _standardised(
            process.GaussianProcessRegressor(
                kernel + kernels.WhiteKernel(),
                normalize_y=True,
                n_restarts_optimizer=restarts,
                random_state=seed,
            )
        )
        model.fit(x, y)

        def predict(at: np.ndarray, level: float) -> Sequence[np.ndarray]:
            centre, sd = model.predict(at, return_std=True)
            width = NormalDist().inv_cdf(0.5 + 0.5 * level) * sd
            return centre, centre - width, centre + width

        return Fitted(predict, str(model[-1].kernel_))

    return fit


def nearest_neighbours(seed: int) -> Regressor:
    """scikit-learn's, without intervals: the number of neighbours by five folds, inputs in standard
    deviations.
    """
    selection = optional_import("sklearn.model_selection")
    make = optional_import("sklearn.neighbors").KNeighborsRegressor

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        grid = [k for k in (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70) if k <= 0.7 * len(x)]
        search = selection.GridSearchCV(
            _standardised(make()),
            {"kneighborsregressor__n_neighbors": grid},
            scoring="neg_mean_squared_error",
            cv=selection.KFold(5, shuffle=True, random_state=seed),
        ).fit(x, y)
        (best,) = search.best_params_.values()
        return Fitted(lambda at, level: [search.predict(at)], f"k = {best}")

    return fit


def ridge() -> Regressor:
    """scikit-learn's, without intervals: the penalty by leave-one-out, inputs in standard
    deviations.
    """
    make = optional_import("sklearn.linear_model").RidgeCV

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        model = _standardised(make(np.logspace(-3, 3, 25))).fit(x, y)
        return Fitted(lambda at, level: [model.predict(at)], f"{model[-1].alpha_:.3g}")

    return fit


def kernel_regressor() -> Regressor:
    """`attnkernel.sklearn.KernelRegressor` with its defaults, without intervals."""
    make = optional_import("attnkernel.sklearn").KernelRegressor

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        model = make().fit(x, y)
        chosen = f"order {model.order_}, {format_numbers(model.lengthscale_)}"
        return Fitted(lambda at, level: [model.predict(at)], chosen)

    return fit


def _standardised(model: Any) -> Any:
    """Returns a scikit-learn model with a `StandardScaler` of the inputs before it."""
    scaler = optional_import("sklearn.preprocessing").StandardScaler()
    return optional_import("sklearn.pipeline").make_pipeline(scaler, model)


def attnkernel(orders: Sequence[int], starts: int) -> Regressor:
    """Local polynomials, one lengthscale per column, all by leave-one-out; conformal intervals.

    The order is the one with the minimum leave-one-out error.
    """

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        models = (ak.KernelRegression(_rule_of_thumb_kernel(x), order=order) for order in orders)
        return _select_best_fit(
            ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=starts) for model in models
        )

    return fit


def attnkernel_bias_reduced(iterations: Sequence[int], starts: int) -> Regressor:
    """Local constant and linear fits, plain and with bias reduction, all by AICc.

    One iteration is the plain fit. More iterations have longer lengthscales: each search begins
    at 1.3 times the lengthscale of the one before.
    """

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        fits = []
        for order in (0, 1):
            kernel = _rule_of_thumb_kernel(x)
            for number in iterations:
                model = ak.KernelRegression(kernel, order=order)
                model = model if number == 1 else ak.models.BiasReduced(model, number)
                fits.append(ak.fit(model, x, y, objective=ak.AICc(), starts=starts))
                kernel = ak.kernels.rescaled(fits[-1].model.kernel, 1.3)
        return _select_best_fit(fits)

    return fit


def _rule_of_thumb_kernel(x: np.ndarray) -> ak.Gaussian:
    """Returns the Gaussian kernel with the lengthscales sd(x) n^(−1/(d + 4)), one for each column
    of x, shape (n, d).
    """
    return ak.Gaussian(x.std(axis=0) * len(x) ** (-1 / (x.shape[1] + 4)))


def _select_best_fit(fits: Iterable[ak.Fit]) -> Fitted:
    """Returns the fit with the lowest criterion, as a `Fitted` that predicts with conformal
    intervals.
    """
    best = min(fits, key=lambda fit: float(fit.loss))

    def predict(at: np.ndarray, level: float) -> Sequence[np.ndarray]:
        band = ak.conformal(best, at, level=level)
        return tuple(map(np.asarray, (band.centre, band.lower, band.upper)))

    lengthscales = format_numbers(best.model.kernel.lengthscale)
    return Fitted(predict, f"{best.model.description}, {lengthscales}")


def statsmodels(kind: str) -> Regressor:
    """`KernelReg`, local constant ("lc") or linear ("ll"), by its leave-one-out ("cv_ls")."""
    KernelReg = optional_import("statsmodels.nonparametric.kernel_regression").KernelReg

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        model = KernelReg(y, x, "c" * x.shape[1], reg_type=kind, bw="cv_ls")
        return _of_bandwidth(lambda at: model.fit(at)[0], model.bw)

    return fit


def kerneljax(degree: int) -> Regressor:
    """`select_bandwidth` by its leave-one-out ("cv_ls"), and `local_poly`."""
    kj = optional_import("kerneljax")
    criterion = kj.RegressionCriterion(method="cv_ls", degree=degree)

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        train, labels = jnp.asarray(x), jnp.asarray(y)
        found = kj.select_bandwidth(train, criterion, y=labels)
        predict = lambda at: kj.local_poly(train, labels, found, at=jnp.asarray(at)).mean  # noqa: E731
        return _of_bandwidth(predict, found.bandwidth.h)

    return fit


def hessband() -> Regressor:
    """`select_nw_bandwidth` by leave-one-out, with its derivatives; of one column."""
    package = optional_import("hessband")

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        column = x[:, 0]
        found = float(package.select_nw_bandwidth(column, y, method="analytic", folds=len(y)))
        return _of_bandwidth(lambda at: package.nw_predict(column, y, at[:, 0], found), [found])

    return fit


def _of_bandwidth(predict: Callable[[np.ndarray], Any], bandwidth: Any) -> Fitted:
    """Returns a kernel regression without intervals, which has chosen this bandwidth."""
    chosen = np.asarray(bandwidth)
    return Fitted(lambda at, level: [np.asarray(predict(at))], format_numbers(chosen), chosen)


def fastlowess(columns: int, seed: int) -> Regressor:
    """`Lowess` without robust iterations: the share of rows by five folds.

    **Raises:** `Unavailable` for more than one column.
    """
    Lowess = optional_import("fastlowess").Lowess
    if columns > 1:
        raise Unavailable("fastlowess: takes one input")
    # a fit to all rows, a share of 1, has no predictions in version 5.0
    shares = [0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.67, 0.99]

    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        tried = [one for one in shares if one * len(x) > 4]
        folds = {"method": "kfold", "k": 5, "fractions": tried}
        model = Lowess(iterations=0, cv=folds, seed=seed, retain_model=True).fit(x[:, 0], y)

        def predict(at: np.ndarray, level: float) -> Sequence[np.ndarray]:
            band = model.predict(at[:, 0], intervals={"prediction": level}, extrapolation="linear")
            return band.y, band.prediction_lower, band.prediction_upper

        return Fitted(predict, f"{model.fraction_used:.3g} of the rows")

    return fit


BOTH = LOCAL_POLYNOMIALS, BIAS_REDUCED = ("attnkernel", "attnkernel, bias reduced")
KERNEL_REGRESSOR = "KernelRegressor"
OURS = (*BOTH, KERNEL_REGRESSOR)
# by name, from the config of `Peers` and the number of columns of the data; one whose package is
# not installed raises `Unavailable`
REGRESSORS: dict[str, Callable[[Any, int], Regressor]] = {
    LOCAL_POLYNOMIALS: lambda study, _: attnkernel(study.orders, study.starts),
    BIAS_REDUCED: lambda study, _: attnkernel_bias_reduced(study.iterations, study.starts),
    "statsmodels lc": lambda *_: statsmodels("lc"),
    "statsmodels ll": lambda *_: statsmodels("ll"),
    "kerneljax lc": lambda *_: kerneljax(0),
    "kerneljax ll": lambda *_: kerneljax(1),
    "Gaussian process": lambda study, _: gaussian_process(study.restarts, study.seed),
    "neighbours": lambda study, _: nearest_neighbours(study.seed),
    KERNEL_REGRESSOR: lambda *_: kernel_regressor(),
    "ridge": lambda *_: ridge(),
    "fastlowess": lambda study, columns: fastlowess(columns, study.seed),
}
