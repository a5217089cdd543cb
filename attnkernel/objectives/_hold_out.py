"""Masked hold-out: the error at random rows, predicted from all others."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import AnyArray, Scalar, as_points, as_real_array, can_use_numpy, is_concrete
from .._core.rows import Inputs, Labels, bucket_size, is_positive
from .._core.validation import as_integer, as_integer_tuple
from ..priors import HeldOut
from ._objective import Validation
from ._validation import OtherFolds

MAX_ROWS_OF_ONE_SORT = 1625  # `jax.random.permutation` sorts r times up to about 1625.5 ** r rows


def _as_size(size: Any) -> int | Int[Array, "..."]:
    """Returns one number of rows as an `int`, an array or several numbers as an array of JAX.

    **Raises:** `ValueError` unless each is an integer of at least 1; traced values are not checked.
    """
    if not isinstance(size, jax.Array):
        as_integer_tuple("size", size, 1)
        return int(size) if isinstance(size, int | np.integer) else jnp.asarray(size)
    is_integer = jnp.issubdtype(size.dtype, jnp.integer)
    if not is_integer or (is_concrete(size) and np.min(np.asarray(size)) < 1):
        raise ValueError(f"size must be an integer number of rows, at least 1; got {size!r}.")
    return size


def _require_one(size: Any) -> None:
    """Raises `ValueError` if the size has an axis, even of one entry."""
    if np.ndim(size):
        raise ValueError(
            f"size must be one number of rows for one fit; got {np.shape(size)} of them. "
            f"ak.fit_many takes several."
        )


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
        size = _as_size(size)
        if at_most is None and not isinstance(size, int):
            raise ValueError("size is an array: HoldOut then needs at_most=, the largest of them.")
        self.weights, self.score, self.size = None, score, size
        self.at_most = as_integer("at_most", size if at_most is None else at_most, 1)
        if is_concrete(size) and np.max(np.asarray(size)) > self.at_most:
            raise ValueError(f"size must be no more than at_most={at_most}; got {size}.")

    def check(self, n: int) -> None:
        super().check(n)
        largest = int(np.max(np.asarray(self.size))) if is_concrete(self.size) else self.at_most
        if largest >= n or self.at_most > n:
            size = f"at_most={self.at_most}" if largest < n else largest
            raise ValueError(
                f"HoldOut({size}) leaves no row to predict from: there are {n} rows. "
                f"Hold out between 1 and {n - 1} of them; a tenth is {max(1, n // 10)}."
            )

    def expected(self, permutations: int = 100) -> "ExpectedHoldOut":
        """Returns an `ExpectedHoldOut`: the mean over draws, deterministic, for the search of
        `ak.fit`."""
        return ExpectedHoldOut(self.size, permutations, score=self.score, weights=self.weights)

    @property
    def can_pad_rows(self) -> bool:
        """Whether rows with False in `weights` are ignored.

        They are if the score is the default or one of the library's, and random bits of rows do
        not depend on their number (`jax_threefry_partitionable`; before JAX 0.5 they did).
        """
        return self._has_known_score() and _bits_ignore_number()

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        """Returns the mean score of the rows drawn by `key`.

        **Raises:** `ValueError` without a key, if `size` has an axis, or if h is not below n.
        """
        if key is None:
            raise ValueError("HoldOut draws rows at random: pass key=jax.random.PRNGKey(0).")
        _require_one(self.size)
        self.check(len(x))
        n, counted = x.shape[0], None if self.weights is None else is_positive(self.weights)
        rows = draw_rows(key, n, self.at_most, counted)
        is_drawn = jnp.arange(self.at_most) < self.size
        held_out = jnp.zeros(n, bool).at[rows].set(is_drawn)
        predicted = model(x[rows], x, y, prior=HeldOut(held_out), **self.weight_kwargs())
        weights = is_drawn if self.weights is None else is_drawn * self.weights[rows]
        return _weighted_mean(_scores(self, model, predicted, y[rows], weights), weights)


class ExpectedHoldOut(Validation):
    r"""The mean of `HoldOut` over draws: what its training minimises, without the noise of a draw.

    $$ L = \mathbb{E}_{\mathcal H}\, \frac1h \sum_{i \in \mathcal{H}}
       \big\| y_i - \hat f_{-\mathcal{H}}(x_i) \big\|^2 $$

    The draws $\mathcal H$ are the $\lfloor n/h \rfloor$ blocks of h rows of each of P permutations.
    These are fixed, so that the criterion is deterministic, and models are compared on the same
    draws. With h = 1 it is leave-one-out, exact for any P. One evaluation sums P n² pairs.

    ```python
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
    expected = ak.HoldOut(75).expected(permutations=20)
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(0.3)), data.x, data.y, objective=expected)
    scores = expected.scores(fit.model, data.x, data.y)  # (20, 150)
    error = jnp.std(jnp.nanmean(scores, axis=1)) / 20**0.5  # of fit.loss, over permutations
    ```

    **Arguments:** `size`: h, from 1 to n − 1, an int or an integer array; `permutations`: P;
    `score`: as for `HoldOut`.

    **Raises:** `ValueError` if h is less than 1 or at least n, or P less than 1.
    """

    size: int | Int[Array, "..."] = eqx.field(converter=_as_size)
    permutations: int = eqx.field(default=100, static=True)
    # the permutations are of all rows
    can_pad_rows: ClassVar[bool] = False  # type: ignore[override]

    def __check_init__(self):
        super().__check_init__()
        as_integer("permutations", self.permutations, 1)

    def check(self, n: int) -> None:
        super().check(n)
        if is_concrete(self.size):
            HoldOut(int(np.max(np.asarray(self.size)))).check(n)

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        return self._checked(_expected_error, model, x, y)

    def scores(self, model: Any, x: Inputs, y: Labels) -> Float[Array, "permutations n"]:
        """Returns the score of each row in each permutation; NaN for the n mod h rows that are in
        no block, and for rows of weight 0."""
        return self._checked(_scores_of_permutations, model, x, y)

    def _checked(self, function: Callable[..., Array], model: Any, x: Any, y: Any) -> Array:
        """Returns `function(self, model, x, y)`, after a check of the size and the arrays."""
        _require_one(self.size)
        self.check(len(x))
        return function(self, model, as_points("x", x), as_real_array("y", y))


@eqx.filter_jit
def _expected_error(of: ExpectedHoldOut, model: Any, x: Inputs, y: Labels) -> Scalar:
    """Returns the mean over permutations of the weighted mean score of the rows in blocks."""
    return jnp.mean(jax.vmap(_weighted_mean)(*_scores_and_weights(of, model, x, y)))


@eqx.filter_jit
def _scores_of_permutations(of: ExpectedHoldOut, model: Any, x: Inputs, y: Labels) -> Array:
    """Returns the score of each row in each permutation, shape (permutations, n).

    NaN for rows that are in no block or have weight 0.
    """
    scores, weights = _scores_and_weights(of, model, x, y)
    return jnp.where(weights > 0, scores, jnp.nan)


def _scores_and_weights(
    of: ExpectedHoldOut, model: Any, x: Inputs, y: Labels
) -> tuple[Float[Array, "permutations n"], Float[Array, "permutations n"]]:
    """Returns the score and the weight of each row in each permutation.

    Both are 0 for rows that are in no block.
    """
    n, given = len(x), jnp.ones(len(x)) if of.weights is None else of.weights
    ranks = np.tile(np.arange(n), (of.permutations, 1))
    ranks = jnp.asarray(np.random.default_rng(0).permuted(ranks, axis=1))
    # rows with weight come first, in the same order
    ranks = jnp.argsort(jnp.argsort(jnp.where(given[None] > 0, ranks, n), axis=1), axis=1)
    weights = jnp.where(ranks < jnp.sum(given > 0) // of.size * of.size, given[None], 0.0)

    def of_permutation(parts: tuple[Array, Array]) -> Float[Array, " n"]:
        rank, weights = parts
        prior = OtherFolds(rank // of.size)
        predicted = model(x, x, y, prior=prior, **of.weight_kwargs())
        return _scores(of, model, predicted, y, weights)

    apply = jax.checkpoint(of_permutation, prevent_cse=False)
    batch = max(1, 2**18 // n**2)  # pairs at once
    return jax.lax.map(apply, (ranks, weights), batch_size=batch), weights


def _scores(
    validation: Validation, model: Any, predicted: Any, y: Array, weights: Array
) -> Float[Array, " n"]:
    """Returns the scores of the rows that have weight, 0 of others."""
    scored = weights > 0
    # predictions at rows that are not scored are replaced before differentiation: NaN otherwise
    shaped = scored if y.ndim == 1 else scored[:, None]
    predicted = jax.tree.map(lambda leaf: jnp.where(shaped, leaf, 1.0), predicted)
    return jnp.where(scored, validation.row_scores(model, predicted, y), 0.0)


def _weighted_mean(scores: Float[Array, " n"], weights: Array) -> Scalar:
    """Returns the weighted mean; 0 if all rows have zero weight."""
    total = jnp.sum(weights)
    return jnp.sum(weights * scores) / jnp.where(total > 0, total, 1.0)


def draw_rows(
    key: PRNGKeyArray, n: int, h: int, is_counted: Bool[Array, " n"] | None = None
) -> Int[Array, " h"]:
    """Returns h random rows without repetition: the first of `jax.random.permutation(key, n)`.

    With `is_counted` the rows with True come first. They are in the order that they would have
    without the other rows (with partitionable keys).

    The permutation sorts the rows by random bits, so that its first row is where the bits are
    smallest. For h = 1 and up to `MAX_ROWS_OF_ONE_SORT` rows, which it sorts once, that row is
    found without the sort. The sort would take two thirds of the time of a training step.
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
    """Returns `jax.random.permutation(key, n)`.

    Outside `jit` and with `jax_threefry_partitionable` it is a NumPy array, from a program that all
    n of the same `bucket_size` share.
    """
    if not (_bits_ignore_number() and can_use_numpy(key)):
        return jax.random.permutation(key, n)
    size = bucket_size(n)
    return np.asarray(_draw_rows(key, size, size, jax.device_put(np.arange(size) < n)))[:n]


_draw_rows = eqx.filter_jit(draw_rows)


def _bits_ignore_number() -> bool:
    """Whether the random bits of rows do not depend on their number; before JAX 0.5 they did."""
    return cast(Any, jax.config).jax_threefry_partitionable
