"""Objectives: what a fit minimises. Each is a number for a model and labelled data."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._core.arrays import as_real_array, is_concrete
from .._core.regression_data import require_valid_weights
from .._core.validation import as_integer, as_integer_tuple, require_function, require_shape
from ..priors import HeldOut
from ._scores import squared_error


def _reals(weights: ArrayLike | None) -> Float[Array, " n"] | None:
    if weights is None:
        return None
    array = as_real_array("weights", weights)
    require_valid_weights(array)
    return array


class Objective(eqx.Module):
    """A criterion of a model on data (x, y). To add one, write `__call__`.

    `is_stochastic` says whether it draws random numbers: then `fit` needs a key, and takes a
    fresh one at every step. `weights`, of each row, are what `fit(..., weights=)` was given:
    inverse variances of the labels, up to a factor, by which squared errors are averaged.
    """

    weights: Float[Array, " n"] | None = eqx.field(default=None, kw_only=True, converter=_reals)
    is_stochastic: ClassVar[bool]

    @abc.abstractmethod
    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        """The criterion, to be minimised."""

    def check(self, n: int) -> None:
        """Raise `ValueError` if the objective cannot be evaluated on n rows."""

    def weighted(self, weights: Float[Array, " n"]) -> "Objective":
        """The objective with weights of rows in place of its own."""
        where = lambda objective: objective.weights  # noqa: E731
        return eqx.tree_at(where, self, weights, is_leaf=lambda leaf: leaf is None)

    def given(self) -> dict[str, Any]:
        """The weights, if there are any, as an argument of a model."""
        return {} if self.weights is None else {"weights": self.weights}

    def counted(self, of_rows: Float[Array, " n"]) -> Float[Array, " n"]:
        """A number of each row, 0 where its weight is: such a row is none."""
        return of_rows if self.weights is None else jnp.where(self.weights > 0, of_rows, 0.0)

    def mean_square(self, error: Float[Array, "n"] | Float[Array, "n out"]) -> Float[Array, ""]:
        """The mean over rows, by weight, of squared errors, summed over labels."""
        return self.mean(squared_error(error, jnp.zeros_like(error)))

    def mean(self, scores: Float[Array, " n"]) -> Float[Array, ""]:
        """The mean over rows, by weight."""
        if self.weights is None:
            return jnp.sum(scores) / len(scores)
        weights = self.weights.astype(scores.dtype)
        return jnp.sum(jnp.where(weights > 0, weights * scores, 0.0)) / jnp.sum(weights)

    def on_sample(self, x: Float[Array, "n dim"], y: Array, starts: int) -> "Sample | None":
        """A much cheaper objective, its minima near those of this one, and as curved; or None.

        A search from so many starts begins on it.
        """
        return None


class Sample(NamedTuple):
    """An objective, and the labelled data that it is of."""

    objective: Objective
    x: Float[Array, "rows dim"]
    y: Array


def arranged(
    x: Float[Array, "n dim"], y: Array, objective: Objective
) -> tuple[Float[Array, "n dim"], Array, Objective]:
    """The rows with neighbours side by side: far blocks of pairs then weigh nothing.

    Of no consequence to a deterministic objective, but that streaming sums pass over these blocks.
    """
    order = by_input(x)
    if objective.weights is not None:
        objective = objective.weighted(jnp.take(objective.weights, order))
    return jnp.take(x, order, axis=0), jnp.take(y, order, axis=0), objective


def that_count(
    x: Float[Array, "n dim"], y: Array, objective: Objective
) -> tuple[Float[Array, "rows dim"], Array, Objective]:
    """The rows whose weight is above 0: another is none.

    Where weights have no value to look at, inside `jit` or `vmap`, all rows stay.
    """
    weights = objective.weights
    if weights is None or not is_concrete(weights) or not len(weights) == len(x) == len(y):
        return x, y, objective
    rows = np.flatnonzero(np.asarray(weights) > 0)
    if len(rows) == len(x):
        return x, y, objective
    x, y, weights = (jnp.take(part, rows, axis=0) for part in (x, y, weights))
    return x, y, objective.weighted(weights)


def by_input(x: Float[Array, "n dim"]) -> Int[Array, " n"]:
    """The rows by their first input, then the others."""
    # ties by the other inputs: from last to first
    if is_concrete(x):  # NumPy's is many times faster than XLA's
        return jnp.asarray(np.lexsort(np.asarray(x).T[::-1]))
    return jnp.lexsort(jax.lax.stop_gradient(x.T[::-1]))


class Validation(Objective):
    """A mean of scores of labels that a prediction has not seen.

    `score` takes predictions and labels to a number for each row, less being better. Default:
    `squared_error`; of models that say how sure they are, `log_score`.
    """

    score: Callable[[Any, Array], Array] = eqx.field(
        default=squared_error, kw_only=True, static=True
    )

    def __check_init__(self):
        require_function("score", self.score)

    def scored(self, predicted: Any, y: Array) -> Float[Array, " n"]:
        """The score of each row."""
        hint, expected = "Sum over the labels of a row.", f"one number for each of {len(y)} rows"
        return require_shape("score", self.score(predicted, y), (len(y),), expected, hint)


class HoldOut(Validation):
    r"""Masked hold-out: the error at h random rows, predicted from all others.

    $$ L = \frac1h \sum_{i \in \mathcal{H}} \big\| y_i - \hat f_{-\mathcal{H}}(x_i) \big\|^2,
       \qquad \mathcal{H} \text{ the first } h \text{ of a random permutation of the rows} $$

    or another score in place of the square: the Gaussian likelihood is `score=ak.log_score`.

    A hold-out is a mask on the keys, not a data set of a new shape: `size` may be an array, and
    many sizes then share one compiled program. h queries are evaluated, not n.

    **Arguments:**

    - `size`: h, from 1 to n − 1. An int, or an integer array (traced) together with `at_most`.
    - `at_most`: an upper bound on an array `size`; that many queries are evaluated and those
      beyond h ignored. Default: `size`.
    - `score`: see `squared_error` (default) and `log_score`.

    **Raises:** `ValueError` if h is less than 1, n or more, or above `at_most`.

    **Source:** P. Czyż, *From kernel regression to the transformer* (2024).
    """

    size: int | Int[Array, "..."]
    at_most: int = eqx.field(static=True)
    is_stochastic: ClassVar[bool] = True

    def __init__(
        self,
        size: int | ArrayLike,
        at_most: int | None = None,
        *,
        score: Callable[[Any, Array], Array] = squared_error,
    ):
        sizes: Any = size
        if not isinstance(size, jax.Array):
            sizes = np.asarray(as_integer_tuple("size", size, 1))
        if not jnp.issubdtype(sizes.dtype, jnp.integer):
            raise ValueError(f"size must be an integer number of rows, at least 1; got {size!r}.")
        if at_most is not None:
            at_most = as_integer("at_most", at_most, 1)
        if isinstance(size, int | np.integer):
            size, at_most = int(size), int(size) if at_most is None else at_most
        if at_most is None:
            raise ValueError("size is an array: HoldOut then needs at_most=, the largest of them.")
        if is_concrete(size) and not (
            1 <= np.min(np.asarray(size)) <= np.max(np.asarray(size)) <= at_most
        ):
            limit = "" if size is at_most else f" and no more than at_most={at_most}"
            raise ValueError(f"size must be at least 1 row{limit}; got {size}.")
        self.weights, self.score = None, score
        self.size = size if isinstance(size, int) else jnp.asarray(size)
        self.at_most = at_most

    def check(self, n: int) -> None:
        largest = self.at_most
        if is_concrete(self.size):
            largest = int(np.max(np.asarray(self.size)))
        if largest >= n or self.at_most > n:
            raise ValueError(
                f"HoldOut({largest}) leaves no row to predict from: there are {n} rows. "
                f"Hold out between 1 and {n - 1} of them; a tenth is {max(1, n // 10)}."
            )

    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        if key is None:
            raise ValueError("HoldOut draws rows at random: pass key=jax.random.PRNGKey(0).")
        if np.ndim(self.size):
            raise ValueError(
                f"size must be one number of rows for one fit; got {np.shape(self.size)} of them. "
                f"ak.fit_many takes several."
            )
        n = x.shape[0]
        rows, counted = _first_rows(key, n, self.at_most), jnp.arange(self.at_most) < self.size
        held_out = jnp.zeros(n, bool).at[rows].set(counted)
        predicted = model(x[rows], x, y, prior=HeldOut(held_out), **self.given())
        of_rows = counted if self.weights is None else counted * self.weights[rows]
        counted = of_rows > 0
        seen = counted if y.ndim == 1 else counted[:, None]
        # what does not count is made harmless before its slope is taken
        predicted = jax.tree.map(lambda leaf: jnp.where(seen, leaf, 1.0), predicted)
        scores = jnp.where(counted, self.scored(predicted, y[rows]), 0.0)
        if self.weights is None:
            return jnp.sum(scores) / self.size
        total = jnp.sum(of_rows)  # of rows drawn whose weights are all 0, nothing is asked
        return jnp.sum(of_rows * scores) / jnp.where(total > 0, total, 1.0)


def _first_rows(key: PRNGKeyArray, n: int, h: int) -> Int[Array, " h"]:
    """The first h of `jax.random.permutation(key, n)`, without the sort where h is 1.

    The permutation sorts the rows by random bits (once up to 1625 rows, then several times), so
    that its first row is where the bits are least. The sort is two thirds of a training step.
    """
    if h == 1 and n <= 1625:
        bits = jax.random.bits(jax.random.split(key)[1], (n,), jnp.uint32)
        return jnp.argmin(bits, keepdims=True)
    return jax.random.permutation(key, n)[:h]
