r"""Streaming: one block of queries against one block of keys at a time, in O(n + m) memory.

The sums are formed in blocks with a running shift (Milakov and Gimelshein, *Online normalizer
calculation for softmax*, 2018; Rabe and Staats, *Self-attention does not need O(n²) memory*,
2021). Derivatives of every order recompute the blocks: with the shift L = log Z known, the sums

$$ Z_i = \sum_j e^{s_{ij} - L_i}, \qquad T_i = \sum_j e^{s_{ij} - L_i}\, v_j $$

are plain sums over blocks, and what JAX derives from them is what is wanted, because the results
T/Z and L + log Z do not depend on L.
"""

import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._rules import Rule
from ..kernels import Kernel
from ..priors import Prior
from ._base import Method, Task, masked
from ._moments import Moments, finite


class Blockwise(Method):
    r"""Streams over blocks of $b_q$ queries and $b_k$ keys; exact, in O(n + m) memory.

    Takes any kernel, any prior and every rule that weighs keys one by one. Value, gradient, JVP
    and Hessian recompute the blocks. A block is passed over where `Kernel.upper_bound` and
    `Prior.upper_bound` prove that its weights vanish: masked by the prior, out of reach of a
    compact kernel, or too small to be seen beside the sum (by 1/ε of the precision, with room).
    Sorted or clustered keys make such blocks many.

    **Arguments:** `block_q`, `block_k`: $b_q$, $b_k$. Default: chosen from the shapes.
    """

    block_q: int | None = eqx.field(default=None, static=True)
    block_k: int | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        for name in ("block_q", "block_k"):
            size = getattr(self, name)
            if size is not None and (not isinstance(size, int) or size < 1):
                raise ValueError(f"{name} must be a whole number from 1, or None; got {size!r}.")

    def refusal(self, task: Task) -> str | None:
        return None

    def takes_turns(self, task: Task) -> bool:
        """From a million pairs: a member then has blocks enough, and caches hold those of one."""
        return task.queries * task.keys >= 2**20

    def moments(
        self,
        q: Float[Array, "queries dim"],
        k: Float[Array, "keys dim"],
        v: Float[Array, "keys dim_v"],
        kernel: Kernel,
        prior: Prior | None,
        rule: Rule,
    ) -> Moments:
        queries, keys, width = q.shape[0], k.shape[0], v.shape[1]
        if queries == 0 or keys == 0:
            moments = Moments.of(jnp.zeros((queries, keys), q.dtype), v)
        else:
            # the mass is the sum of the values 1
            values = jnp.concatenate([v, jnp.ones((keys, 1), v.dtype)], axis=1)
            sizes = self._sizes(queries, keys, q.shape[1] + width)
            shift, sums = _sums(q, k, values, (kernel, prior, rule), sizes)
            moments = Moments(shift, sums[:, -1], sums[:, :-1])
        return moments.with_sink(rule.log_sink())

    def _sizes(self, queries: int, keys: int, width: int) -> tuple[int, int]:
        """Blocks of about a million pairs, fewer where rows are wide; even parts of the whole."""
        most = 1024 if width <= 32 else 512
        sizes = (self.block_q or most, self.block_k or most)
        counts = (queries, keys)
        return tuple(  # type: ignore[return-value]
            given or math.ceil(count / math.ceil(count / size))
            for given, size, count in zip((self.block_q, self.block_k), sizes, counts, strict=True)
        )


Parts = tuple[Kernel, Prior | None, Rule]


class Block(NamedTuple):
    """Consecutive queries or keys: their numbers, points and box; of keys, the values too."""

    low: Int[Array, ""]
    high: Int[Array, ""]
    points: Float[Array, "rows dim"]
    least: Float[Array, " dim"]
    greatest: Float[Array, " dim"]
    values: Float[Array, "width rows"] | None = None


@eqx.filter_custom_jvp
def _sums(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    values: Float[Array, "keys width"],
    parts: Parts,
    sizes: tuple[int, int],
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """L = log Z and Σ exp(s − L) v: the shift is found on the way. 0 for an empty row."""
    rows, columns = _blocks(q, None, sizes[0]), _blocks(k, values, sizes[1])
    number, width, dtype = len(columns.low), values.shape[1], values.dtype
    negligible = _negligible(k.shape[0], dtype)

    def of_row(row: Block) -> tuple[Array, Array]:
        bounds = jax.vmap(lambda column: _bound(row, column, parts))(columns)
        first = jnp.argmax(bounds)  # the nearest keys: later ones then seldom raise the shift

        def at(j: Array) -> Block:
            return jax.tree.map(lambda leaf: leaf[j], columns)

        def step(t: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            j = (first + t) % number
            needed = for_any(_is_needed(bounds[j], state[0], negligible))
            return jax.lax.cond(needed, lambda: add(at(j), *state), lambda: state)

        def add(column: Block, shift: Array, sums: Array) -> tuple[Array, Array]:
            # with the shift as it is: that of the first block seldom needs to be raised
            more = _weigh(_scores(row, column, parts, k.shape[0]), shift, column.values)
            fits = jnp.all((more[:, -1] < _ROOM) & (shift > -jnp.inf))
            return jax.lax.cond(
                for_any(~fits),
                lambda: raise_and_add(column, shift, sums),
                lambda: (shift, sums + more),
            )

        def raise_and_add(column: Block, shift: Array, sums: Array) -> tuple[Array, Array]:
            scores = _scores(row, column, parts, k.shape[0])
            new = jnp.maximum(shift, jnp.max(scores, axis=1))
            kept = jnp.exp(shift - finite(new))
            return new, sums * kept[:, None] + _weigh(scores, new, column.values)

        empty = jnp.full(sizes[0], -jnp.inf, dtype), jnp.zeros((sizes[0], width), dtype)
        start = jax.lax.cond(
            for_any(~jnp.isneginf(bounds[first])),
            lambda: raise_and_add(at(first), *empty),
            lambda: empty,
        )
        return jax.lax.fori_loop(1, number, step, start)

    shift, sums = (
        leaf.reshape(-1, *leaf.shape[2:])[: len(q)] for leaf in jax.lax.map(of_row, rows)
    )
    mass = sums[:, -1]
    some = mass > 0
    log_mass = jnp.where(some, finite(shift) + jnp.log(jnp.where(some, mass, 1.0)), 0.0)
    log_mass = jnp.where(jnp.isnan(mass), jnp.nan, log_mass)
    return log_mass, sums / jnp.where(mass == 0, 1.0, mass)[:, None]


@_sums.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[tuple[Array, Array], tuple[Array | None, Array]]:
    out = _sums(*primals)
    moving = jax.tree.map(
        lambda tangent: tangent is not None, tangents, is_leaf=lambda t: t is None
    )
    change, fixed = eqx.partition(primals, moving)

    def sums(change: Any) -> Array:
        q, k, values, parts, sizes = eqx.combine(change, fixed)
        return _sums_at(q, k, values, parts, sizes, out[0])

    return out, (None, jax.jvp(sums, (change,), (tangents,))[1])


def _sums_at(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    values: Float[Array, "keys width"],
    parts: Parts,
    sizes: tuple[int, int],
    shift: Float[Array, " queries"],
) -> Float[Array, "queries width"]:
    """Σ exp(s − shift) v: made of scans whose steps are recomputed when differentiated."""
    rows, columns = _blocks(q, None, sizes[0]), _blocks(k, values, sizes[1])
    short = -len(shift) % sizes[0]  # rows of padding weigh nothing
    shifts = jnp.pad(shift, (0, short), constant_values=jnp.finfo(shift.dtype).max)
    shifts = shifts.reshape(-1, sizes[0])
    negligible = _negligible(k.shape[0], values.dtype)
    recomputed = functools.partial(jax.checkpoint, prevent_cse=False)

    @recomputed
    def of_row(row: Block, shift: Array) -> Array:
        @recomputed
        def step(sums: Array, column: Block) -> tuple[Array, None]:
            bound = _bound(row, column, parts)
            needed = for_any(_is_needed(bound, shift, negligible))

            @recomputed  # again: a branch hands its blocks of weights out as arrays
            def add(row: Block, column: Block, shift: Array, sums: Array) -> Array:
                scores = _scores(row, column, parts, k.shape[0])
                return sums + _weigh(scores, shift, column.values)

            state = row, column, shift, sums
            return jax.lax.cond(needed, add, lambda *state: state[-1], *state), None

        start = jnp.zeros((sizes[0], values.shape[1]), values.dtype)
        return jax.lax.scan(step, start, columns)[0]

    sums = jax.lax.map(lambda pair: of_row(*pair), (rows, shifts))
    return sums.reshape(-1, values.shape[1])[: len(q)]


_ROOM = 1e15  # a sum of weights that float32 still holds a thousand times over


def _negligible(keys: int, dtype: Any) -> float:
    """How far below the sum, in logarithms, all keys together change none of its digits."""
    return -math.log(float(jnp.finfo(dtype).eps)) + math.log(keys) + 12.0


def _is_needed(bound: Array, shift: Array, negligible: float) -> Bool[Array, ""]:
    """Whether weights up to exp(bound) are more than rounding to a row of this running shift."""
    return ~jnp.isneginf(bound) & ~(bound < jnp.min(shift) - negligible)


@jax.custom_batching.custom_vmap
def for_any(needed: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether any member of a batch needs a branch that harms none: the others take it as well.

    A `cond` whose predicate is batched runs both of its branches, and has no gradient.
    """
    return needed


@for_any.def_vmap
def _(size: int, batched: list[bool], needed: Bool[Array, " batch"]) -> tuple[Array, bool]:
    return for_any(jnp.any(needed)), False


def _pad(array: Array, size: int) -> Array:
    """Rows up to a multiple of `size`, by repeating the last."""
    short = -len(array) % size
    return jnp.pad(array, ((0, short),) + ((0, 0),) * (array.ndim - 1), mode="edge")


def _blocks(points: Array, values: Array | None, size: int) -> Block:
    """All blocks, along a leading axis."""
    low = jnp.arange(-(-len(points) // size)) * size
    cut = _pad(points, size).reshape(-1, size, points.shape[1])
    box = jax.lax.stop_gradient(cut)
    if values is not None:
        values = _pad(values, size).reshape(-1, size, values.shape[1]).swapaxes(1, 2)
    high = jnp.minimum(low + size, len(points)) - 1
    return Block(low, high, cut, jnp.min(box, axis=1), jnp.max(box, axis=1), values)


def _bound(row: Block, column: Block, parts: Parts) -> Float[Array, ""]:
    """A number that no log-weight of the pairs of two blocks exceeds; constant to derivatives."""
    kernel, prior, rule = jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, parts
    )
    bound = kernel.upper_bound(row.least, row.greatest, column.least, column.greatest)
    if prior is not None:
        of_prior = prior.upper_bound(row.low, row.high, column.low, column.high)
        # a kernel may say +inf, nothing, of pairs that the prior forbids
        bound = jnp.where(jnp.isneginf(of_prior), -jnp.inf, bound + of_prior)
    return rule.log_weights(bound.reshape(1, 1))[0, 0]


def _scores(row: Block, column: Block, parts: Parts, keys: int) -> Float[Array, "rows columns"]:
    """Log-weights of the pairs of two blocks; -inf for rows of padding among the keys."""
    kernel, prior, rule = parts
    i, j = row.low + jnp.arange(len(row.points)), column.low + jnp.arange(len(column.points))
    scores = masked(kernel.pairwise(row.points, column.points), prior, i, j)
    scores = rule.log_weights(scores)
    if keys % len(column.points):
        scores = jnp.where((j < keys)[None, :], scores, -jnp.inf)
    return scores


def _weigh(scores: Array, shift: Array, values: Array | None) -> Float[Array, "rows width"]:
    weights = jnp.exp(scores - finite(shift)[:, None])
    # wide, and so is its cotangent: XLA's product with a tall one is slow on CPU
    wide = jax.lax.optimization_barrier(values)
    return jnp.matmul(weights, wide.T, precision=jax.lax.Precision.HIGHEST)
