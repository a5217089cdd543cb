"""Masked hold-out: the error at random rows, predicted from all others."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from .._core.arrays import AnyArray, Scalar, is_concrete, is_on_one_device
from .._core.rows import Inputs, Labels, bucket_size, is_positive
from .._core.validation import as_integer, as_integer_tuple
from ..priors import HeldOut
from ._objective import Validation

MAX_ROWS_OF_ONE_SORT = 1625  # `jax.random.permutation` sorts r times up to about 1625.5 ** r rows


class HoldOut(Validation):
    r"""Masked hold-out: the error at h random rows, predicted from all others.

    $$ L = \frac1h \sum_{i \in \mathcal{H}} \big\| y_i - \hat f_{-\mathcal{H}}(x_i) \big\|^2,
       \qquad \mathcal{H} \text{ the first } h \text{ of a random permutation of the rows} $$

    Another `score` replaces the square: `score=ak.objectives.log_score` is the Gaussian likelihood.
    The default of a `LocalLikelihood` is the deviance of its family, that of a `RobustRegression`
    the absolute error.

    The held-out rows are masked, not removed, so that shapes do not change: `size` may be an
    array, and several sizes then share one compiled program. Only h queries are evaluated.

    ```python
    data = ak.data.load("mcycle")
    model = ak.KernelRegression(ak.Gaussian(3.0))
    loss = ak.HoldOut(10)(model, data.x, data.y, key=jax.random.PRNGKey(0))
    ```

    **Arguments:**

    - `size`: h, from 1 to n − 1. An int, or an integer array (traced) together with `at_most`.
    - `at_most`: an upper bound on an array `size`: this number of queries is evaluated, and those
      beyond h are ignored. Default: `size`.
    - `score`: see `squared_error`, `absolute_error`, `CheckLoss` and `log_score`. Default: the
      `deviance` of a model that has one, else `squared_error`.

    **Raises:** `ValueError` if h is less than 1, at least n, or above `at_most`, or this above n.

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
        score: Callable[[Any, Array], Array] | None = None,
    ):
        if not isinstance(size, jax.Array):
            as_integer_tuple("size", size, 1)
            size = int(size) if isinstance(size, int | np.integer) else jnp.asarray(size)
        elif not jnp.issubdtype(size.dtype, jnp.integer):
            raise ValueError(f"size must be an integer number of rows, at least 1; got {size!r}.")
        if at_most is None and not isinstance(size, int):
            raise ValueError("size is an array: HoldOut then needs at_most=, the largest of them.")
        self.weights, self.score, self.size = None, score, size
        self.at_most = as_integer("at_most", size if at_most is None else at_most, 1)
        if is_concrete(size) and not (
            1 <= np.min(np.asarray(size)) <= np.max(np.asarray(size)) <= self.at_most
        ):
            limit = "" if at_most is None else f" and no more than at_most={at_most}"
            raise ValueError(f"size must be at least 1 row{limit}; got {size}.")

    def check(self, n: int) -> None:
        super().check(n)
        largest = int(np.max(np.asarray(self.size))) if is_concrete(self.size) else self.at_most
        if largest >= n or self.at_most > n:
            size = f"at_most={self.at_most}" if largest < n else largest
            raise ValueError(
                f"HoldOut({size}) leaves no row to predict from: there are {n} rows. "
                f"Hold out between 1 and {n - 1} of them; a tenth is {max(1, n // 10)}."
            )

    @property
    def can_pad_rows(self) -> bool:
        """Whether the score is one of the library's, and random bits of rows do not depend on
        their number (`jax_threefry_partitionable`; before JAX 0.5 they did)."""
        return self._has_known_score() and _bits_ignore_number()

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        if key is None:
            raise ValueError("HoldOut draws rows at random: pass key=jax.random.PRNGKey(0).")
        if np.ndim(self.size):
            raise ValueError(
                f"size must be one number of rows for one fit; got {np.shape(self.size)} of them. "
                f"ak.fit_many takes several."
            )
        self.check(len(x))
        n, counted = x.shape[0], None if self.weights is None else is_positive(self.weights)
        rows = draw_rows(key, n, self.at_most, counted)
        is_drawn = jnp.arange(self.at_most) < self.size
        held_out = jnp.zeros(n, bool).at[rows].set(is_drawn)
        predicted = model(x[rows], x, y, prior=HeldOut(held_out), **self.weight_kwargs())
        weights = is_drawn if self.weights is None else is_drawn * self.weights[rows]
        scored = weights > 0
        # predictions at rows that are not scored are replaced before differentiation: NaN otherwise
        shaped = scored if y.ndim == 1 else scored[:, None]
        predicted = jax.tree.map(lambda leaf: jnp.where(shaped, leaf, 1.0), predicted)
        scores = jnp.where(scored, self.row_scores(model, predicted, y[rows]), 0.0)
        total = jnp.sum(weights)  # 0 if all drawn rows have zero weight: the loss is then 0
        return jnp.sum(weights * scores) / jnp.where(total > 0, total, 1.0)


def draw_rows(
    key: PRNGKeyArray, n: int, h: int, is_counted: Bool[Array, " n"] | None = None
) -> Int[Array, " h"]:
    """Returns the first h entries of `jax.random.permutation(key, n)`.

    With `is_counted` the other rows come last, and these in the order that they would have alone
    (with partitionable keys).

    The permutation sorts the rows by random bits, so that its first row is where the bits are
    smallest. Up to `MAX_ROWS_OF_ONE_SORT` rows it sorts once, which takes two thirds of the time
    of a training step.
    """
    if is_counted is None:
        is_counted = jnp.ones(n, bool)
    largest = np.uint32(2**32 - 1)
    of_one_sort = float(largest) ** (1 / 3)
    rows, count, rank = jnp.arange(n), jnp.sum(is_counted), jnp.cumsum(is_counted) - 1
    for sorts in range(math.ceil(math.log(max(2, n), of_one_sort))):
        key, subkey = jax.random.split(key)
        bits = jnp.where(is_counted, jax.random.bits(subkey, (n,), jnp.uint32)[rank], largest)
        if h == 1 and n <= MAX_ROWS_OF_ONE_SORT:
            return jnp.argmin(bits, keepdims=True)
        _, ordered = jax.lax.sort_key_val(bits, rows)
        rows = jnp.where(count > of_one_sort**sorts, ordered, rows) if sorts else ordered
        is_counted, rank = jnp.arange(n) < count, jnp.arange(n)  # counted rows are first now
    return rows[:h]


def permuted_rows(key: PRNGKeyArray, n: int) -> Int[AnyArray, " n"]:
    """Returns `jax.random.permutation(key, n)`; outside `jit`, by a program that other numbers of
    rows in the same bucket share."""
    if not (_bits_ignore_number() and is_on_one_device(key)):
        return jax.random.permutation(key, n)
    size = bucket_size(n)
    return np.asarray(_draw_rows(key, size, size, jax.device_put(np.arange(size) < n)))[:n]


_draw_rows = eqx.filter_jit(draw_rows)


def _bits_ignore_number() -> bool:
    """Whether the random bits of rows do not depend on their number; before JAX 0.5 they did."""
    return cast(Any, jax.config).jax_threefry_partitionable
