"""Masks: functions of the two positions alone, or stored, an entry for each key or each pair."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_boolean_array
from .._core.compilation import comparable_by_program
from .._core.validation import require_function, require_integer
from ._base import Mask, PositionBlock, require_entries
from ._pair_mask import PairMask


class ExcludeSelf(Mask):
    r"""No query sees its own row: $\pi(i, j) = 1\{j \ne i\}$, for q and k the same rows.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.ExcludeSelf().pairwise(i, i))
    array([[0., 1., 1.],
           [1., 0., 1.],
           [1., 1., 0.]], dtype=float32)

    ```
    """

    # a block holds other rows too
    needs_block_table: ClassVar[bool] = False  # type: ignore[override]

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return i != j

    def pair_mask(self) -> PairMask:
        return PairMask(excludes_self=True)


class MaskFunction(Mask):
    """Any mask that a function of two indices says: `MaskFunction(lambda i, j: j <= i)`.

    Outside `jit` the function is traced at each call; calls with functions that compute the same
    share one compiled program.

    **Arguments:** `function`: from the indices (i, j) of one query and one key to a Boolean.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.MaskFunction(lambda i, j: (i + j) % 2 == 0).pairwise(i, i))
    array([[1., 0., 1.],
           [0., 1., 0.],
           [1., 0., 1.]], dtype=float32)

    ```
    """

    function: Callable[[Int[Array, ""], Int[Array, ""]], Bool[Array, ""]] = eqx.field(static=True)

    def __check_init__(self):
        require_function("function", self.function)

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.function(i, j)

    def comparable(self, dtype: Any) -> "MaskFunction":
        """Returns the mask with a function that equals all functions with the same program.

        It is unchanged if it reads an array of an outer `jit` or `vmap`, or calls back into Python.
        `dtype`, of the scores, is not used: `ScoreFunction.comparable` needs it.
        """
        position = jax.ShapeDtypeStruct((), jnp.result_type(int))
        return MaskFunction(comparable_by_program(self.function, position, position))


class Causal(Mask):
    r"""Keys up to the query's own position: $\pi(i, j) = 1\{j \le i + o\}$.

    **Arguments:** `offset`: o, the position of the first query among the keys: 0 (default) for
    queries and keys that begin together; keys − queries for queries that end with the keys.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.Causal().pairwise(i, i))
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]], dtype=float32)

    ```
    """

    offset: int | Int[Array, ""] = 0

    def __check_init__(self):
        require_integer("offset", self.offset)

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return j - i <= self.offset  # i + offset may overflow

    def any_allowed(self, block: PositionBlock) -> Bool[Array, ""] | bool:
        return block.j_low - block.i_high <= self.offset

    def pair_mask(self) -> PairMask:
        if isinstance(self.offset, int) and self.offset == 0:
            return PairMask(limits=(None, 0))
        return PairMask(unsupported_reason="Causal of another offset than the number 0")


class Window(Mask):
    r"""Keys near the query: $\pi(i, j) = 1\{i - l \le j \le i + r\}$, both ends and self included.

    **Arguments:** `left`, `right`: l and r, numbers of keys before and after the query, from 0.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.Window(1, 0).pairwise(i, i))
    array([[1., 0., 0.],
           [1., 1., 0.],
           [0., 1., 1.]], dtype=float32)

    ```
    """

    left: int
    right: int

    def __check_init__(self):
        require_integer("left", self.left, 0)
        require_integer("right", self.right, 0)

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return (i - j <= self.left) & (j - i <= self.right)

    def any_allowed(self, block: PositionBlock) -> Bool[Array, ""] | bool:
        return (block.i_low - block.j_high <= self.left) & (
            block.j_low - block.i_high <= self.right
        )

    def pair_mask(self) -> PairMask:
        if isinstance(self.left, int) and isinstance(self.right, int):
            return PairMask(limits=(self.left, self.right))
        return PairMask(unsupported_reason="Window whose limits are arrays")


class Prefix(Mask):
    r"""The first keys, and those up to the query's: $\pi(i, j) = 1\{j < p\ \text{or}\ j \le i\}$.

    The mask of a prefix language model: both ways within the prefix, causal behind it.

    **Arguments:** `length`: p, from 0. An array, for a prefix that is told only at run time.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.Prefix(2).pairwise(i, i))
    array([[1., 1., 0.],
           [1., 1., 0.],
           [1., 1., 1.]], dtype=float32)

    ```
    """

    length: int | Int[Array, ""]

    def __check_init__(self):
        require_integer("length", self.length, 0)

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return (j < self.length) | (j <= i)

    def any_allowed(self, block: PositionBlock) -> Bool[Array, ""] | bool:
        return (block.j_low < self.length) | (block.j_low <= block.i_high)


class Lengths(Mask):
    r"""Rows of padding see nothing and are not seen: $\pi = 1\{i < n\ \text{and}\ j < m\}$.

    **Arguments:** `queries`, `keys`: n and m, the numbers of rows that are no padding. Default
    None: all of them.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.Lengths(keys=2).pairwise(i, i))
    array([[1., 1., 0.],
           [1., 1., 0.],
           [1., 1., 0.]], dtype=float32)

    ```
    """

    queries: int | Int[Array, ""] | None = None
    keys: int | Int[Array, ""] | None = None

    def __check_init__(self):
        for name in ("queries", "keys"):
            if getattr(self, name) is not None:
                require_integer(name, getattr(self, name), 0)

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.asarray(self.any_allowed(PositionBlock(i, i, j, j)))

    def any_allowed(self, block: PositionBlock) -> Bool[Array, ""] | bool:
        allowed = jnp.array(True)
        if self.queries is not None:
            allowed &= block.i_low < self.queries
        if self.keys is not None:
            allowed &= block.j_low < self.keys
        return allowed


class HeldOut(Mask):
    r"""Keys that no query sees: $\pi(i, j) = 1\{j \notin \mathcal{H}\}$.

    **Arguments:** `held_out`: shape (keys,), True where the key is hidden.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.HeldOut(np.array([False, True, False])).pairwise(i, i))
    array([[1., 0., 1.],
           [1., 0., 1.],
           [1., 0., 1.]], dtype=float32)

    ```
    """

    # keys that are held out are scattered, and seldom fill a block
    needs_block_table: ClassVar[bool] = False  # type: ignore[override]

    held_out: Bool[Array, " keys"]

    def __init__(self, held_out: ArrayLike):
        expected = "(keys,), True where a key is hidden"
        self.held_out = as_boolean_array("held_out", held_out, 1, expected)

    def check(self, queries: int, keys: int) -> None:
        require_entries("held_out", self.held_out, (keys,))

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return ~self.held_out[j]

    def key_range(self, first: int, last: int, keys: int) -> range:
        return range(keys)

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        # read once per key: XLA would gather an entry for each pair, 1.4 times the time of a fit
        allowed = jax.lax.optimization_barrier(~self.held_out[j])
        return jnp.where(allowed[None, :], scores, -jnp.inf)

    def pair_mask(self) -> PairMask:
        return PairMask(allowed=~self.held_out)


class MaskArray(Mask):
    """A mask that is stored: True = attend. It takes O(queries x keys) memory, as `BiasTable` does.

    **Arguments:** `allowed`: a Boolean array, shape (queries, keys).

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.MaskArray(np.tri(3, dtype=bool)).pairwise(i, i))
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]], dtype=float32)

    ```
    """

    allowed: Bool[Array, "queries keys"]

    def __init__(self, allowed: ArrayLike):
        expected = "(queries, keys), True where a query may attend to a key"
        self.allowed = as_boolean_array("allowed", allowed, 2, expected)

    def check(self, queries: int, keys: int) -> None:
        require_entries("allowed", self.allowed, (queries, keys))

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.allowed[i, j]
