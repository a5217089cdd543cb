"""Objectives: what a fit minimises, one number for a model and labelled data; scores of rows."""

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import Scalar, as_real_array, can_use_numpy, index_on_host, is_concrete
from .._core.pandas_frames import is_frame
from .._core.rows import Inputs, Labels, as_valid_weights, is_positive, pad_rows
from .._core.validation import require_function, require_shape
from ..losses import CheckLoss, absolute_error, require_same_shape, squared_error, sum_over_labels
from ..models import Smoother


def log_score(prediction: Any, y: Float[Array, "..."]) -> Float[Array, " n"]:
    r"""The negative log-likelihood of each row under a normal distribution, in nats.

    $$ S_i = \tfrac12 \log 2 \pi \hat\sigma_i^2 + \frac{(y_i - \hat\mu_i)^2}{2 \hat\sigma_i^2} $$

    ```python
    >>> ak.objectives.log_score((jnp.zeros(1), jnp.ones(1)), jnp.zeros(1))
    Array([0.9189385], dtype=float32)
    ```

    **Arguments:** `prediction`: (means, variances), as `MeanVarianceRegression` returns them, each
    of the shape of `y`, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` if the prediction is no such pair, or the shapes differ.

    **Source:** Gneiting and Raftery, *Strictly proper scoring rules, prediction, and estimation*
    (2007).
    """
    if not isinstance(prediction, tuple | list) or len(prediction) != 2:
        shape = getattr(prediction, "shape", type(prediction).__name__)
        raise ValueError(
            f"log_score needs a model that predicts a mean and a variance, such as "
            f"ak.MeanVarianceRegression; the prediction is {shape}, not such a pair."
        )
    y = as_real_array("y", y)
    mean, variance = (require_same_shape(part, y) for part in prediction)
    scores = 0.5 * (jnp.log(2.0 * math.pi * variance) + (y - mean) ** 2 / variance)
    return sum_over_labels(scores)


@runtime_checkable
class HasDeviance(Protocol):
    """A model with a score of its own, by which `LeaveOneOut`, `KFold` and `HoldOut` judge it.

    ```python
    >>> model = ak.LocalLikelihood(ak.Gaussian(0.3), family=ak.Poisson())
    >>> isinstance(model, ak.objectives.HasDeviance)
    True

    ```
    """

    def deviance(self, prediction: Any, y: Array) -> Float[Array, " n"]:
        """Returns the score of each row, from predictions and labels; lower is better."""
        ...


def default_score(model: Any) -> Callable[[Any, Array], Array]:
    """Returns the score of each row by default, a function of predictions and labels.

    It is the method `deviance` of a model that has one, else `squared_error`.
    """
    return model.deviance if isinstance(model, HasDeviance) else squared_error


def _as_row_weights(weights: ArrayLike | None) -> Float[Array, "*fits n"] | None:
    """Returns the weights as a floating or Boolean array, or None if they are None.

    **Raises:** `ValueError` for a frame of pandas, and unless weights are valid (`Objective`).
    """
    if weights is None:
        return None
    if is_frame(weights):
        raise ValueError(
            "An objective cannot match the index of weights with that of the data: pass them as "
            "ak.fit(..., weights=...), or as an array in the order of the rows."
        )
    return as_valid_weights(weights)


class Objective(eqx.Module):
    r"""A criterion $L(f, x, y) \in \mathbb{R}$ of a model f on n labelled rows.

    To add one, subclass it and write `__call__`; set `is_stochastic` if it draws at random. Name
    fields with an entry for each row in `row_fields`: rows are sorted, chosen and padded with them.

    ```python
    class AbsoluteError(ak.objectives.Objective):
        def __call__(self, model, x, y, *, key=None):
            return jnp.mean(jnp.abs(y - model(x, x, y, prior=ak.priors.ExcludeSelf())))
    ```

    A stochastic objective draws random numbers: `fit` passes it a new key at each step.

    **Arguments:** `weights`: one number per row, shape (n,), at least 0: inverse variances of the
    labels up to a factor. Squared errors are averaged with them; `fit(..., weights=)` sets them,
    also of objectives that do not take this argument, such as `ak.HoldOut`.

    **Raises:** `ValueError` for weights that are negative, not finite, or all 0.
    """

    weights: Float[Array, "*fits n"] | Bool[Array, "*fits n"] | None = eqx.field(
        default=None, kw_only=True, converter=_as_row_weights
    )
    is_stochastic: ClassVar[bool] = False  # whether it draws at random
    is_logarithm: ClassVar[bool] = False  # whether the criterion is a logarithm, as AICc
    # Whether the criterion ignores rows that have False in `weights`, up to rounding. A fit then
    # pads its rows to a `bucket_size`, so that data sets of similar size share compiled programs.
    can_pad_rows: ClassVar[bool] = False
    row_fields: ClassVar[tuple[str, ...]] = ("weights",)  # fields with one entry per row

    @abc.abstractmethod
    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        """Returns the criterion, lower is better, of inputs of shape (n, dim) and their labels.

        `key`: for the random numbers of a stochastic objective; others ignore it.
        """

    def check(self, n: int) -> None:
        """Raises `ValueError` if the objective cannot be evaluated on n rows."""
        self.check_row_fields(n)

    def check_row_fields(self, n: int) -> None:
        """Raises `ValueError` unless each of the `row_fields` has one entry for each of n rows.

        Fields that are None are not checked.
        """
        for name in self.row_fields:
            found = getattr(self, name)
            if found is not None and found.shape[-1:] != (n,):
                raise ValueError(
                    f"The objective has {name} of shape {found.shape}, and there are {n} rows: "
                    f"give one of the {name} per row."
                )

    def with_rows(self, rows: Int[np.ndarray, " rows"] | Int[Array, " rows"]) -> "Objective":
        """Returns the objective with its `row_fields` at `rows`: indices of rows, not a `Rows`."""
        given = [name for name in self.row_fields if getattr(self, name) is not None]
        if not given:
            return self
        where = lambda objective: [getattr(objective, name) for name in given]  # noqa: E731
        chosen = [index_on_host(part, (..., rows)) for part in where(self)]
        return eqx.tree_at(where, self, chosen)

    def with_weights(self, weights: Array) -> "Objective":
        """Returns the objective with these row weights, which are not checked."""
        where = lambda objective: objective.weights  # noqa: E731
        return eqx.tree_at(where, self, weights, is_leaf=lambda leaf: leaf is None)

    def weight_kwargs(self) -> dict[str, Any]:
        """Returns `{"weights": weights}` for the call of a model; `{}` without weights."""
        return {} if self.weights is None else {"weights": self.weights}

    def masked_by_weight(self, values: Float[Array, " n"]) -> Float[Array, " n"]:
        """Returns the values, 0 in rows of zero weight."""
        return values if self.weights is None else jnp.where(is_positive(self.weights), values, 0.0)

    def is_squared_error(self, model: Any) -> bool:
        """Whether the criterion of this model is in squared units of the labels. Default: no."""
        return False

    def mean(self, scores: Float[Array, " n"]) -> Scalar:
        """Returns the weighted mean over rows.

        ```python
        >>> ak.LeaveOneOut(weights=jnp.array([1.0, 3.0])).mean(jnp.array([4.0, 0.0]))
        Array(1., dtype=float32)
        ```
        """
        if self.weights is None:
            return jnp.sum(scores) / len(scores)
        has_weight, weights = is_positive(self.weights), self.weights.astype(scores.dtype)
        return jnp.sum(jnp.where(has_weight, weights * scores, 0.0)) / jnp.sum(weights)

    def subsample(self, x: Float[Array, "n dim"], y: Array, starts: int) -> "Sample | None":
        """Returns some of the rows, with an objective of nearly the same minima and curvature.

        A search from this number of `starts` begins on them. None, the default: it begins on all.
        """
        return None


class Sample(NamedTuple):
    """Labelled rows, and the objective that is evaluated on them.

    ```python
    >>> x = jnp.linspace(0.0, 1.0, 2000)[:, None]
    >>> ak.LeaveOneOut().subsample(x, x[:, 0], starts=10).x.shape
    (512, 1)
    ```
    """

    x: Float[Array, "*batch n dim"]
    y: Float[Array, "*rows"]
    objective: Objective

    def sorted_by_input(self) -> "Sample":
        """Returns the sample sorted by input, with its weights: neighbours are then adjacent.

        A deterministic objective keeps its value; streaming sums then skip blocks of distant pairs.
        """
        return self._at_rows(input_order(self.x))

    def padded(self, model: Any, objectives: int | None = None) -> "Sample":
        """Returns the sample with rows of weight 0 appended, up to a `bucket_size`.

        Unchanged unless the model is a `Smoother`, model and objective have `can_pad_rows`, and
        each array is on a single device. Unchanged too inside `jit` and above 8192 rows.
        `objectives`: the number of objectives that are stacked along the leading axis of the arrays
        of `objective`. None: `objective` is a single one.
        """
        x, y, objective = self
        can_pad = isinstance(model, Smoother) and model.can_pad_rows and objective.can_pad_rows
        if not (can_pad and can_use_numpy(model, x, y, objective)):
            return self
        axis, n = x.ndim - 2, x.shape[-2]
        x, y, weights = pad_rows(x, y, objective.weights, axis=axis)
        if weights is None:
            return self
        if x.shape[-2] > n:
            objective = objective.with_rows(np.minimum(np.arange(x.shape[-2]), n - 1))
        if objectives is not None and objective.weights is None:
            weights = jax.device_put(np.tile(np.asarray(weights), (objectives, 1)))
        return Sample(x, y, objective.with_weights(weights))

    def without_weightless_rows(self) -> "Sample":
        """Returns the sample of the rows with positive weight.

        Unchanged if weights are traced, as inside `jit`, or are not one for each row.
        """
        weights = self.objective.weights
        if weights is None or not is_concrete(weights):
            return self
        if not len(weights) == len(self.x) == len(self.y):
            return self
        rows = np.flatnonzero(np.asarray(weights) > 0)
        return self if len(rows) == len(self.x) else self._at_rows(rows)

    def _at_rows(self, rows: Any) -> "Sample":
        x, y, objective = self
        return Sample(index_on_host(x, rows), index_on_host(y, rows), objective.with_rows(rows))


def input_order(x: Float[Array, "n dim"]) -> Int[Array, " n"]:
    """Returns the indices that sort the rows by their first input, ties by the next ones."""
    if is_concrete(x):  # NumPy sorts many times faster than XLA
        return jax.device_put(np.lexsort(np.asarray(x).T[::-1]))
    return jnp.lexsort(jax.lax.stop_gradient(x.T[::-1]))


class Validation(Objective):
    r"""A weighted mean of scores of labels that the prediction has not seen.

    $$ L = \sum_i w_i\, S(\hat f_{-i}(x_i), y_i) \Big/ \sum_i w_i $$

    **Arguments:** `score`: S, from predictions and labels to one number for each row; lower is
    better. Default: the `deviance` of a model that has one (`HasDeviance`), as `LocalLikelihood`
    does; else `squared_error`. Beside outliers: `absolute_error`. For a quantile: `CheckLoss`.
    For models that predict a variance: `log_score`.
    """

    saved_functions: ClassVar[dict[str, Callable]] = {
        "squared_error": squared_error,
        "absolute_error": absolute_error,
        "log_score": log_score,
    }
    score: Callable[[Any, Array], Array] | None = eqx.field(default=None, kw_only=True, static=True)

    def __check_init__(self):
        if self.score is not None:
            require_function("score", self.score)

    @property
    def can_pad_rows(self) -> bool:  # type: ignore[override]
        """Whether rows with False in `weights` are ignored: by deterministic objectives whose score
        is the default or one of the library's."""
        return not self.is_stochastic and self._has_known_score()

    def is_squared_error(self, model: Any) -> bool:
        """Whether the score is `squared_error`: the given one, or else the default of this model.

        False for a score of the user's own.
        """
        return (default_score(model) if self.score is None else self.score) is squared_error

    def row_scores(self, model: Any, predicted: Any, y: Array) -> Float[Array, " n"]:
        """Returns the score of each row; `ValueError` if `score` gives another shape."""
        hint, expected = "Sum over the labels of a row.", f"one number for each of {len(y)} rows"
        score = default_score(model) if self.score is None else self.score
        return require_shape("score", score(predicted, y), (len(y),), expected, hint)

    def _has_known_score(self) -> bool:
        """Whether the score is one of the library's, or the default, that of the model."""
        own = self.saved_functions.values()
        return self.score is None or isinstance(self.score, CheckLoss) or self.score in own
