r"""The base of the estimators for scikit-learn: lengthscale search, prediction, pickling.

$$ \hat\ell = \arg\min_\ell L(\hat f_\ell; x, \bar y, W), \qquad x \text{ the distinct inputs} $$

Everything is computed in float64, whatever `jax_enable_x64` is.

Rows with equal inputs are merged into one: the mean of their labels, the sum of their weights.

$$ W_u = \sum_{i : x_i = x_u} w_i, \qquad \bar y_u = \frac1{W_u} \sum_{i : x_i = x_u} w_i\, y_i $$

A linear smoother of the merged rows equals that of the given rows. Leave-one-out then leaves out an
input with all its rows, so that a weight of 2 equals a row given twice. The work is done in NumPy,
as the number of rows depends on the data.
"""

import dataclasses
import re
import warnings
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from .. import kernels, objectives
from .._core.arrays import as_float64, require_unmasked
from .._core.double_precision import enable_x64
from .._core.rows import Rows
from .._core.validation import as_integer, require_bool
from ..fitting import Fit, fit, sums_all_pairs
from ..kernels import rescaled
from ..local import ExtrapolationWarning
from ..methods import Votes
from ..models import BiasReduced, KernelRegression, known_policy, votes_of_predictions
from ..objectives import Objective, merge_equal_rows, spread_indices
from ._candidates import AUTO, fit_candidates, require_comparable


class DistinctRows(NamedTuple):
    """Distinct inputs, sorted, and for each given row with weight its input, share and label."""

    x: Float[np.ndarray, "n dim"]
    y: Float[np.ndarray, "n"] | Float[np.ndarray, "n out"]
    weights: Float[np.ndarray, " n"] | None  # None: all equal
    group: Int[np.ndarray, " given"]  # index of the distinct input of each given row
    share: Float[np.ndarray, " given"]  # of the weight of its input
    labels: Float[np.ndarray, "given"] | Float[np.ndarray, "given out"]
    given: Int[np.ndarray, " given"]  # their numbers among all rows, of which some have no weight

    def variance_of_means(
        self, variance: Float[np.ndarray, "given out"]
    ) -> Float[np.ndarray, "n out"]:
        r"""Returns $\sum_i (w_i / W_u)^2 \sigma_i^2$ of each $\bar y_u$, for independent labels."""
        sums = np.zeros((len(self.x), variance.shape[1]))
        np.add.at(sums, self.group, self.share[:, None] ** 2 * variance)
        return sums


def merge_duplicates(
    x: Float[np.ndarray, "rows dim"],
    y: Float[np.ndarray, "rows"] | Float[np.ndarray, "rows out"],
    weights: Float[np.ndarray, " rows"] | None,
) -> DistinctRows:
    """Returns the rows with equal inputs merged; rows with zero weight are ignored.

    **Raises:** `ValueError` if a weight is negative or not finite, or all are 0.
    """
    if weights is None:
        weights = np.ones(len(x))
    if not np.all(np.isfinite(weights) & (weights >= 0)) or not np.any(weights):
        raise ValueError(
            f"sample_weight must be finite, none negative and not all 0; got {weights.min()} to "
            f"{weights.max()}."
        )
    given = np.flatnonzero(weights > 0)
    x, y, weights = (part[given] for part in (x, y, weights))
    first, group, total, means = merge_equal_rows(x, y.reshape(len(y), -1), weights)
    means, share = means.reshape(-1, *y.shape[1:]), weights / total[group]
    is_equal = np.all(total == total[0])
    return DistinctRows(x[first], means, None if is_equal else total, group, share, y, given)


KERNELS = {name.replace("_", "-"): kind for name, kind in kernels.BY_NAME.items()}
OBJECTIVES = {name.replace("_", "-"): kind for name, kind in objectives.BY_NAME.items()}

Matrix = Float[np.ndarray, "rows columns"]
SearchData = tuple[Matrix, np.ndarray, np.ndarray | None]  # inputs, labels, weights


class KernelEstimator(BaseEstimator):
    """The parameters and the fit of both estimators; see `attnkernel.sklearn.KernelRegressor`."""

    DEFAULT_ORDER: ClassVar[Any] = AUTO

    def __init__(
        self,
        kernel: Any = "gaussian",
        *,
        order: Any = None,
        iterations: Any = 1,
        objective: Any = "leave-one-out",
        lengthscale: Any = None,
        per_dimension: Any = AUTO,
        on_empty: Any = "nearest",
        starts: Any = None,
        subsample: Any = 2048,
    ):  # Any: scikit-learn validates parameters in `fit`
        self.kernel = kernel
        self.order = order
        self.iterations = iterations
        self.objective = objective
        self.lengthscale = lengthscale
        self.per_dimension = per_dimension
        self.on_empty = on_empty
        self.starts = starts
        self.subsample = subsample

    def _fit_smoother(self, x: Matrix, y: np.ndarray, sample_weight: Any) -> None:
        """Sets `model_`, `fit_`, `order_` and `lengthscale_` from numeric inputs and labels.

        Sets also `_columns`, which columns the kernel uses, and `_rows`, the distinct rows with
        these columns. `lengthscale_` is not set if the kernel has none. Gives the warnings of the
        search. Raises `ValueError` for parameters and weights that are not valid.
        """
        is_auto = len(self._orders()) > 1 or self._is_auto(self.per_dimension)
        if not self._is_auto(self.per_dimension):
            require_bool("per_dimension", self.per_dimension)
        self.order_ = self._orders()[0]
        if sample_weight is not None:
            require_unmasked("sample_weight", sample_weight)
            sample_weight = _check_sample_weight(sample_weight, x, dtype=np.float64)
        objective = self.objective
        if objective is not None and not isinstance(objective, Objective):
            objective = _class_of_name("objective", objective, OBJECTIVES)()
        if objective is not None and objective.is_stochastic:
            raise ValueError(
                f"objective must be deterministic; {type(objective).__name__} draws at random. Try "
                f"ak.KFold(5), or ak.fit, which takes an optimiser."
            )
        if objective is not None and is_auto:
            require_comparable(objective)
        on_empty = known_policy(self.on_empty)
        with enable_x64(True):
            rows = merge_duplicates(x, y, sample_weight)
            self._columns = self._active_columns(rows.x)
            self._rows = rows._replace(x=self._select_columns(rows.x))
            kernel = self._starting_kernel(self._rows.x)
            self.model_ = self.smoother(kernel, on_empty)
            self.fit_: Fit | None = None
            varies = np.any(self._rows.x != self._rows.x[:1]) and np.any(rows.y != rows.y[:1])
            has_parameters = jax.tree.leaves(eqx.filter(kernel, eqx.is_inexact_array))
            searches = self.lengthscale is None and varies and len(rows.x) >= 3
            if objective is not None and searches and has_parameters:
                data = self._search_rows(kernel)
                # what it holds of each row, such as groups; `fit` refuses it if rows were merged
                objective.check_row_fields(len(x))
                objective = objective.with_rows(self._rows.given[np.argsort(self._rows.group)])
                # a criterion needs a finite prediction for an empty neighbourhood
                policy = "mean" if on_empty == "mean" else "nearest"
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    if is_auto and not isinstance(self.kernel, kernels.Kernel):
                        found = self._choose(data, objective, policy)
                    else:
                        start, (x, y, weights) = self.smoother(kernel, policy), data
                        parts = {"objective": objective, "weights": weights, "starts": self.starts}
                        self.fit_ = fit(start, x, y, **parts)
                        found = self.fit_.model.kernel
                for each in caught:
                    warnings.warn(self._in_own_words(each.message), each.category, stacklevel=3)
                self.model_ = self.smoother(self._for_all_rows(found, len(data[0])), on_empty)
            self._set_lengthscale()

    def _in_own_words(self, warning: Any) -> str:
        """Returns the text of a warning of `ak.fit`, with names of columns and of arguments of this
        estimator."""
        number = len(self._columns)
        names = getattr(self, "feature_names_in_", [f"column {i}" for i in range(number)])

        def lengthscale(found: re.Match[str]) -> str:
            place = (
                "" if found[1] is None else f" of {np.asarray(names)[self._columns][int(found[1])]}"
            )
            return f"lengthscale{place}"

        text = re.sub(r"(?:\w+\.)+lengthscale(?:\[(\d+)\])?", lengthscale, str(warning))
        return text.replace("widen bounds= of ak.fit", "give lengthscale=")

    def _search_rows(self, kernel: kernels.Kernel) -> SearchData:
        """Returns the distinct rows from which a search selects: all, or a sample of them.

        A sample if there are more than `subsample` and the criterion of a candidate sums all pairs.
        """
        x, y, weights = self._rows[:3]
        size = None if self.subsample is None else as_integer("subsample", self.subsample, 3)
        if size is None or len(x) <= size:
            return x, y, weights
        models = [self.smoother(kernel, "nearest", order) for order in self._orders()]
        if not any(sums_all_pairs(model, x, weights) for model in models):
            return x, y, weights
        rows = spread_indices(size, len(x))  # of rows sorted by the first column
        return x[rows], y[rows], None if weights is None else weights[rows]

    def _for_all_rows(self, kernel: kernels.Kernel, rows: int) -> kernels.Kernel:
        r"""Returns the kernel, selected on m = `rows` rows, with lengthscales that suit all n rows.

        $$ \ell_n = \ell_m \Big( \frac m n \Big)^{1/(d + 2b)}, \qquad
           b = 2 k \Big( \Big\lfloor \frac p 2 \Big\rfloor + 1 \Big) $$

        b is the power of ℓ in the bias of a fit of order p after k iterations of bias reduction. d
        is the number of columns, without those of categories.
        """
        n, dim = self._rows.x.shape
        if rows == n:
            return kernel
        columns = dim - len(self.model_.category_counts(dim))
        bias = 2 * self.iterations * (self.order_ // 2 + 1)
        return rescaled(kernel, (rows / n) ** (1 / (columns + 2 * bias)))

    def _choose(self, data: SearchData, objective: Objective, policy: Any) -> kernels.Kernel:
        """Returns the kernel of the best candidate, and sets `fit_` and `order_`.

        `data`: the rows of the search; `policy`: the prediction where no row has weight during it.
        """
        sides = (False, True) if self._is_auto(self.per_dimension) else (self.per_dimension,)
        sides = sides if self._rows.x.shape[1] > 1 else (True,)
        best = fit_candidates(
            lambda kernel, order: self.smoother(kernel, policy, order),
            KERNELS[self.kernel],
            data,
            self._orders(),
            sides,
            objective,
            self.starts,
        )
        self.fit_, self.order_ = best.fit, best.order
        return best.fit.model.kernel

    def _orders(self) -> tuple[Any, ...]:
        """Returns the orders among which to choose: 0 and 1 for "auto"."""
        order = self.DEFAULT_ORDER if self.order is None else self.order
        return (0, 1) if self._is_auto(order) else (order,)

    @staticmethod
    def _is_auto(parameter: Any) -> bool:
        """Whether a parameter is "auto"."""
        return isinstance(parameter, str) and parameter == AUTO

    def smoother(
        self, kernel: kernels.Kernel, on_empty: Any, order: Any = None
    ) -> KernelRegression | BiasReduced:
        """Returns the model of an order, bias-reduced if `iterations` is above 1.

        `order`: default: `order_`.
        """
        order = self.order_ if order is None else order
        model = KernelRegression(kernel, order=order, on_empty=on_empty)
        iterations = as_integer("iterations", self.iterations, 1)
        return model if iterations == 1 else BiasReduced(model, iterations)

    def _active_columns(self, x: Matrix) -> Bool[np.ndarray, " columns"]:
        """Returns which columns the kernel uses.

        All for a given kernel; those with a finite given lengthscale; else those that vary.
        `ValueError` if the lengthscale is not positive or has another shape.
        """
        if isinstance(self.kernel, kernels.Kernel):
            return np.ones(x.shape[1], bool)
        if self.lengthscale is None:
            return np.any(x != x[:1], axis=0)
        given = as_float64("lengthscale", self.lengthscale, "a positive number")
        if not np.all(given > 0):
            raise ValueError(f"lengthscale must be positive; got {given.tolist()}.")
        if given.shape not in ((), (x.shape[1],)):
            raise ValueError(
                f"lengthscale must be one number or one per column, shape ({x.shape[1]},); got "
                f"shape {given.shape}."
            )
        return np.broadcast_to(given != np.inf, x.shape[1:])

    def _starting_kernel(self, x: Matrix) -> kernels.Kernel:
        """Returns the given kernel in float64, or a kernel of the given name.

        Its lengthscale is the given one, else that of Scott's rule, from which a search starts. For
        two rows it is an eighth of their distance. `x`: the distinct inputs, in the columns that
        the kernel uses. `ValueError` if both a kernel and a lengthscale are given.
        """
        if isinstance(self.kernel, kernels.Kernel):
            if self.lengthscale is not None:
                raise ValueError(f"{self.kernel!r} has its own lengthscale; leave out lengthscale.")
            return jax.tree.map(
                lambda leaf: leaf.astype(float) if eqx.is_inexact_array(leaf) else leaf, self.kernel
            )
        kernel = _class_of_name("kernel", self.kernel, KERNELS)
        if self.lengthscale is not None:
            given = np.asarray(self.lengthscale, np.float64)
            if self._columns.any():
                return kernel(given[self._columns] if given.ndim else given)
            return kernel(1.0)
        n, dim = x.shape
        # for two inputs an eighth of their distance: the other label then has no weight
        lengthscale = np.std(x, axis=0) * n ** (-1 / (dim + 4)) if n > 2 else np.ptp(x, axis=0) / 8
        if not self.per_dimension:
            lengthscale = np.sqrt(np.mean(lengthscale**2))
        return kernel(np.where(lengthscale > 0, lengthscale, 1.0))

    def _set_lengthscale(self) -> None:
        """Sets `lengthscale_`, infinite for columns that the kernel does not use.

        Deletes it if the kernel has none.
        """
        self.__dict__.pop("lengthscale_", None)
        found = getattr(self.model_.kernel, "lengthscale", None)
        if found is not None:
            found = np.array(found)
            if not self._columns.all():
                each = np.full(self._columns.shape, np.inf)
                each[self._columns] = found if self._columns.any() else np.inf
                found = each
            self.lengthscale_ = found if found.ndim else float(found)

    def _select_columns(self, x: Matrix) -> Float[np.ndarray, "rows active"]:
        """Returns the columns of x that the kernel uses (`_active_columns`), or one column of zeros
        if it uses none."""
        return x[:, self._columns] if self._columns.any() else np.zeros((len(x), 1))

    def _read_queries(self, X: Any) -> Matrix:
        """Returns the columns of the queries that the kernel uses (`_select_columns`).

        Raises `NotFittedError` before `fit`, and `ValueError` for queries that are not valid.
        """
        check_is_fitted(self)
        require_unmasked("X", X)
        checked = validate_data(self, X, reset=False, dtype=np.float64)
        return self._select_columns(np.asarray(checked))

    def _predict(self, X: Any) -> tuple[Matrix, np.ndarray]:
        """Returns the queries as `_read_queries` gives them, and the predictions.

        Gives the warnings of the model, but no `ExtrapolationWarning` if
        `_is_mostly_deficient`.
        """
        q, (x, y, weights) = self._read_queries(X), self._rows[:3]
        with enable_x64(True), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = np.array(self.model_(q, x, y, weights=weights))
            is_own = any(issubclass(each.category, ExtrapolationWarning) for each in caught)
            is_own = is_own and self._is_mostly_deficient()
        for each in caught:
            if not (is_own and issubclass(each.category, ExtrapolationWarning)):
                warnings.warn(each.message, each.category, stacklevel=3)
        return q, found

    def votes(self, X: Any, k_largest: int = 10) -> Votes:
        """Returns the rows of `fit` whose labels weigh most in each prediction, and their weights.

        An `ak.methods.Votes` of NumPy arrays: rows are counted as given to `fit`.
        """
        q, rows = self._read_queries(X), self._rows
        count = as_integer("k_largest", k_largest, 1)
        each = rows.share if rows.weights is None else rows.share * rows.weights[rows.group]
        with enable_x64(True):
            of_rows = Rows.read(rows.x[rows.group], rows.labels, each)
            found = votes_of_predictions(self.model_, jnp.asarray(q), of_rows, count)
        found = jax.tree.map(np.asarray, found)
        return dataclasses.replace(found, indices=rows.given[found.indices])

    def _is_mostly_deficient(self) -> bool:
        """Returns whether the local design is rank-deficient at over half of the fitted rows.

        At most 100 rows are checked. One-hot columns do this: near a row, a category is constant.
        Predictions need no slope along such a column, and each of them would warn.
        """
        x, y, weights = self._rows[:3]
        rows = x[spread_indices(min(100, len(x)), len(x))]
        found = self.model_.estimate(jnp.asarray(rows), Rows.read(x, y, weights))
        return bool(np.mean(found.support.deficient) > 0.5)

    def __getstate__(self) -> Any:
        pack = lambda leaf: _Packed(np.asarray(leaf)) if isinstance(leaf, jax.Array) else leaf  # noqa: E731
        return jax.tree.map(pack, super().__getstate__())

    def __setstate__(self, state: Any) -> None:
        unpack = lambda leaf: jax.device_put(leaf.array) if isinstance(leaf, _Packed) else leaf  # noqa: E731
        with enable_x64(True):
            super().__setstate__(jax.tree.map(unpack, state))


class _Packed:
    """An array of JAX in a pickle: JAX unpickles float64 as float32 where x64 is off."""

    def __init__(self, array: np.ndarray):
        self.array = array


def _class_of_name(argument: str, name: Any, known: dict[str, Any]) -> Any:
    """Returns `known[name]`; an unknown name raises `ValueError`, which names the argument."""
    if not isinstance(name, str) or name not in known:
        raise ValueError(
            f"{argument} must be an object of attnkernel or one of {', '.join(map(repr, known))}; "
            f"got {name!r}."
        )
    return known[name]
