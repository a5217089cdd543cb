"""Objectives: the criterion that a fit minimises, one number for a model and labelled data."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.host_arrays import index_on_host
from .._core.pandas_frames import is_frame
from .._core.regression_data import as_valid_weights, is_positive
from .._core.validation import require_function, require_shape
from ..losses import CheckLoss, absolute_error, squared_error
from ._scores import default_score, log_score


def _as_row_weights(weights: ArrayLike | None) -> Float[Array, "*fits n"] | None:
    """Returns the weights as a checked array, or None; `ValueError` for a frame of pandas."""
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

    To add one, subclass it, set `is_stochastic` and write `__call__`:

    ```python
    class AbsoluteError(ak.objectives.Objective):
        is_stochastic = False

        def __call__(self, model, x, y, *, key=None):
            return jnp.mean(jnp.abs(y - model(x, x, y, prior=ak.priors.ExcludeSelf())))
    ```

    A stochastic objective draws random numbers: `fit` passes it a new key at each step.

    **Arguments:** `weights`: one number per row, shape (n,), at least 0: inverse variances of the
    labels up to a factor. Squared errors are averaged with them; `fit(..., weights=)` sets them.

    **Raises:** `ValueError` for weights that are negative, not finite, or all 0.
    """

    weights: Float[Array, "*fits n"] | Bool[Array, "*fits n"] | None = eqx.field(
        default=None, kw_only=True, converter=_as_row_weights
    )
    is_stochastic: ClassVar[bool]
    row_fields: ClassVar[tuple[str, ...]] = ("weights",)  # fields with one entry per row

    @abc.abstractmethod
    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        """Returns the criterion; lower is better."""

    def check(self, n: int) -> None:
        """Raises `ValueError` if the objective cannot be evaluated on n rows."""
        self.check_row_fields(n)

    def check_row_fields(self, n: int) -> None:
        """Raises `ValueError` unless each of the `row_fields` has one entry for each of n rows."""
        for name in self.row_fields:
            found = getattr(self, name)
            if found is not None and found.shape[-1:] != (n,):
                raise ValueError(
                    f"The objective has {name} of shape {found.shape}, and there are {n} rows: "
                    f"give one of the {name} per row."
                )

    def with_rows(self, rows: Int[np.ndarray, " rows"] | Int[Array, " rows"]) -> "Objective":
        """Returns the objective of these rows, given by their numbers."""
        given = [name for name in self.row_fields if getattr(self, name) is not None]
        if not given:
            return self
        where = lambda objective: [getattr(objective, name) for name in given]  # noqa: E731
        chosen = [index_on_host(part, (..., rows)) for part in where(self)]
        return eqx.tree_at(where, self, chosen)

    def with_weights(
        self, weights: Float[Array, "*fits n"] | Bool[Array, "*fits n"]
    ) -> "Objective":
        """Returns the objective with these row weights."""
        where = lambda objective: objective.weights  # noqa: E731
        return eqx.tree_at(where, self, weights, is_leaf=lambda leaf: leaf is None)

    @property
    def can_pad_rows(self) -> bool:
        """Whether the criterion ignores rows that have False in `weights`, up to rounding.

        A fit then pads its rows to a `bucket_size`, so that data sets of similar size share
        compiled programs. Default: no.
        """
        return False

    def weight_kwargs(self) -> dict[str, Any]:
        """Returns `{"weights": weights}` for the call of a model; `{}` without weights."""
        return {} if self.weights is None else {"weights": self.weights}

    def masked_by_weight(self, values: Float[Array, " n"]) -> Float[Array, " n"]:
        """Sets the values of rows with zero weight to 0."""
        return values if self.weights is None else jnp.where(is_positive(self.weights), values, 0.0)

    def mean_square(self, error: Float[Array, "n"] | Float[Array, "n out"]) -> Float[Array, ""]:
        """Returns the weighted mean over rows of squared errors, summed over labels."""
        return self.mean(squared_error(error, jnp.zeros_like(error)))

    def mean(self, scores: Float[Array, " n"]) -> Float[Array, ""]:
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
        """Returns a cheaper objective with nearly the same minima and curvature, or None.

        A search from this number of starts begins on the sample.
        """
        return None


class Sample(NamedTuple):
    """An objective and the labelled data on which it is evaluated.

    ```python
    >>> x = jnp.linspace(0.0, 1.0, 2000)[:, None]
    >>> ak.LeaveOneOut().subsample(x, x[:, 0], starts=10).x.shape
    (1024, 1)
    ```
    """

    objective: Objective
    x: Float[Array, "rows dim"]
    y: Array


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
    def can_pad_rows(self) -> bool:
        """Whether the score is one of the library's, each of which scores a row by itself."""
        return not self.is_stochastic and self._has_own_score()

    def row_scores(self, model: Any, predicted: Any, y: Array) -> Float[Array, " n"]:
        """Returns the score of each row; `ValueError` if `score` gives another shape."""
        hint, expected = "Sum over the labels of a row.", f"one number for each of {len(y)} rows"
        score = default_score(model) if self.score is None else self.score
        return require_shape("score", score(predicted, y), (len(y),), expected, hint)

    def _has_own_score(self) -> bool:
        """Whether the score is one of the library's, or that of the model."""
        own = self.saved_functions.values()
        return self.score is None or isinstance(self.score, CheckLoss) or self.score in own
