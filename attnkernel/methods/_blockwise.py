r"""Streaming: one block of queries against one block of keys at a time, in O(n + m) memory.

The sums are formed in blocks with a running shift (Milakov and Gimelshein, *Online normalizer
calculation for softmax*, 2018; Rabe and Staats, *Self-attention does not need O(n²) memory*,
2021). Derivatives of every order recompute the blocks: with the shift L = log Z known, the sums

$$ Z_i = \sum_j e^{s_{ij} - L_i}, \qquad T_i = \sum_j e^{s_{ij} - L_i}\, v_j $$

are plain sums over blocks, and what JAX derives from them is what is wanted, because the results
T/Z and L + log Z do not depend on L.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.batching import any_in_batch
from .._core.mesh_axes import vary_alike
from .._core.symbolic_sizes import is_at_most, is_symbolic
from .._core.tuning import MAX_BLOCK_ROWS, MAX_BLOCK_ROWS_TABULATED, MIN_PAIRS_OF_SINGLE_MEMBER
from .._core.validation import as_integer
from ..kernels import Kernel
from ..priors import Prior
from ..rules import Rule
from . import _blockwise_unmaterialised as unmaterialised
from ._base import Method, Task, batch_size_within_memory
from ._block_table import tabulate_blocks
from ._blocks import (
    Block,
    Parts,
    bound_of,
    cut_blocks,
    cut_rows,
    derivative,
    fold,
    is_needed,
    negligible_below,
    scores_of,
    sums_fit,
)
from ._entmax import thresholds
from ._softmax_state import SoftmaxState, finite_shift

RAISE, ADD, DONE = range(3)  # stages of the addition of a block


class Blockwise(Method):
    r"""Streams over blocks of $b_q$ queries and $b_k$ keys; exact, in O(n + m) memory.

    Takes any kernel, prior and rule; for `Entmax` it first finds the threshold of each query, in
    about eight more passes. Value, gradient, JVP and Hessian recompute the blocks. A block is
    skipped where the two `score_upper_bound`, of the kernel and of the prior, prove that its
    weights vanish: masked by the prior, out of reach of a compact kernel, or too small to be seen
    beside the sum (by 1/ε of the precision, with room). Sorted or clustered keys make
    such blocks many.

    A mask that gives no bound on a block, such as `Given`, `Where` or `~Causal()`, is read once
    in a call, for all heads, for a table of the blocks in which it allows a pair.

    ```python
    x = jnp.linspace(0.0, 1.0, 100)[:, None]
    options = {"kernel": ak.Gaussian(0.1), "prior": ak.priors.Where(lambda i, j: abs(i - j) < 10)}
    out = ak.attend(x, x, x, method=ak.Blockwise(20, 20), **options)
    assert jnp.allclose(out, ak.attend(x, x, x, method=ak.Dense(), **options), atol=1e-5)
    ```

    **Arguments:** `block_q`, `block_k`: $b_q$, $b_k$. Default: chosen from the shapes.
    """

    block_q: int | None = eqx.field(default=None, static=True)
    block_k: int | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        for name in ("block_q", "block_k"):
            size = getattr(self, name)
            if size is not None:
                as_integer(name, size, 1, "Or None: it is then chosen from the shapes.")

    def unsupported_reason(self, task: Task) -> str | None:
        return None

    def batch_size(self, task: Task) -> int | None:
        """One from a million pairs on: it then has blocks enough, and its blocks stay in caches."""
        is_small = is_at_most(task.queries * task.keys, MIN_PAIRS_OF_SINGLE_MEMBER - 1)
        return batch_size_within_memory(task) if is_small else 1

    def softmax_state(
        self,
        q: Float[Array, "queries dim"],
        k: Float[Array, "keys dim"],
        v: Float[Array, "keys dim_v"],
        kernel: Kernel,
        prior: Prior | None,
        rule: Rule,
    ) -> SoftmaxState:
        queries, keys, width = q.shape[0], k.shape[0], v.shape[1]
        if queries == 0 or keys == 0:
            state = SoftmaxState.from_log_weights(jnp.zeros((queries, keys), q.dtype), v)
        else:
            # the mass is the sum of the values 1
            values = jnp.concatenate([v, jnp.ones((keys, 1), v.dtype)], axis=1)
            task = Task(kernel, prior, rule, queries, keys, q.shape[1], width, v.dtype)
            sizes, by_key = self._plan(task)
            parts = kernel, self.precomputed_prior(prior, task), rule
            threshold = None if rule.entmax_exponent is None else thresholds(q, k, parts, sizes)
            of_queries = q[:, :0] if threshold is None else threshold[:, None]
            shift, sums = _sums(q, k, values, of_queries, parts, sizes, by_key)
            state = SoftmaxState(shift, sums[:, -1], sums[:, :-1]).shifted(threshold)
        return state.with_sink(rule.log_sink())

    def precomputed_prior(self, prior: Prior | None, task: Task) -> Prior | None:
        sizes, by_key = self._plan(task)
        return tabulate_blocks(prior, task.queries, task.keys, by_key or sizes)

    def _plan(self, task: Task) -> tuple[tuple[int, int], tuple[int, int] | None]:
        """Sizes of blocks, and of blocks whose weights are not stored (None: all are stored)."""
        queries, keys = task.queries, task.keys
        tabulated = task.prior is not None and task.prior.needs_block_table
        most = MAX_BLOCK_ROWS_TABULATED if tabulated else MAX_BLOCK_ROWS
        sizes = self._sizes(queries, keys, (most, most))
        if (
            task.rule.entmax_exponent is not None
            or task.dim_v != 1
            or not unmaterialised.is_light(task.kernel, queries, keys, task.dim)
        ):
            return sizes, None
        block_q, block_k = self._sizes(queries, keys, (4096, 1024))
        return sizes, (unmaterialised.whole(block_q), unmaterialised.whole(block_k))

    def _sizes(self, queries: int, keys: int, most: tuple[int, int]) -> tuple[int, int]:
        """The sizes given, or even parts of the whole, each of up to so many rows.

        A symbolic number of rows is cut into blocks of `most` rows.
        """

        def even(count: int, most: int) -> int:
            return most if is_symbolic(count) else math.ceil(count / math.ceil(count / most))

        return self.block_q or even(queries, most[0]), self.block_k or even(keys, most[1])


@eqx.filter_custom_jvp
def _sums(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    values: Float[Array, "keys width"],
    thresholds: Float[Array, "queries few"],
    parts: Parts,
    sizes: tuple[int, int],
    by_key: tuple[int, int] | None = None,
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """L = log Z and Σ exp(s − L) v: the shift is found on the way. 0 for an empty row.

    In blocks of `sizes`; of sizes `by_key`, where weights are not to be stored.
    """
    sizes = sizes if by_key is None else by_key
    rows, columns = cut_blocks(q, thresholds, sizes[0]), cut_blocks(k, values, sizes[1])
    number, width, dtype = columns.low.shape[0], values.shape[1], values.dtype
    negligible = negligible_below(k.shape[0], dtype)

    def of_row(row: Block) -> tuple[Array, Array]:
        bounds = jax.vmap(lambda column: bound_of(row, column, parts))(columns)
        first = jnp.argmax(bounds)  # the nearest keys: later ones then seldom raise the shift

        def at(j: Array) -> Block:
            return jax.tree.map(lambda leaf: leaf[j], columns)

        def step(t: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            j = (first + t) % number
            needed = any_in_batch(is_needed(bounds[j], state[0], negligible))
            # as an operand, so that it is cut out once and not anew for each of its pairs
            return jax.lax.cond(needed, add, lambda _, *state: state, at(j), *state)

        def add(column: Block, shift: Array, sums: Array) -> tuple[Array, Array]:
            if by_key is not None:
                return unmaterialised.add(row, column, parts, k.shape[0], shift, sums)
            return add_block(column, shift, sums)

        def add_block(column: Block, shift: Array, sums: Array) -> tuple[Array, Array]:
            """Adds at the shift as it is, which seldom is too low; else, or at -inf, raises it."""

            def raised(shift: Array, sums: Array) -> tuple[Array, Array, Array]:
                scores = scores_of(row, column, parts, k.shape[0])
                new = jnp.maximum(shift, jnp.max(scores, axis=1))
                kept = jnp.exp(shift - finite_shift(new))
                more = _weigh(scores, new, column.values)
                return vary_alike(jnp.array(DONE), shift), new, sums * kept[:, None] + more

            def added(shift: Array, sums: Array) -> tuple[Array, Array, Array]:
                more = _weigh(scores_of(row, column, parts, k.shape[0]), shift, column.values)
                fits = ~any_in_batch(~sums_fit(more))
                return jnp.where(fits, DONE, RAISE), shift, jnp.where(fits, sums + more, sums)

            # a loop, so that the program of each of the two is there once
            def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                return jax.lax.cond(state[0] == RAISE, raised, added, *state[1:])

            start = jnp.where(any_in_batch(jnp.any(jnp.isneginf(shift))), RAISE, ADD)
            state = vary_alike((start, shift, sums))
            return jax.lax.while_loop(lambda state: state[0] != DONE, step, state)[1:]

        empty = jnp.full(sizes[0], -jnp.inf, dtype), jnp.zeros((sizes[0], width), dtype)
        return jax.lax.fori_loop(0, number, step, vary_alike(empty, row, columns, parts))

    shift, sums = (
        leaf.reshape(-1, *leaf.shape[2:])[: q.shape[0]] for leaf in jax.lax.map(of_row, rows)
    )
    mass = sums[:, -1]
    some = mass > 0
    log_mass = jnp.where(some, finite_shift(shift) + jnp.log(jnp.where(some, mass, 1.0)), 0.0)
    log_mass = jnp.where(jnp.isnan(mass), jnp.nan, log_mass)
    unit = jnp.where(mass == 0, 1.0, mass)
    # L of a large shift is rounded: the sums stay those about the L that is returned
    is_large = some & (jnp.abs(shift) * jnp.finfo(dtype).eps ** 0.5 > 1.0)
    unit = jnp.where(is_large, jnp.exp(log_mass - finite_shift(shift)), unit)
    return log_mass, sums / unit[:, None]


@_sums.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[tuple[Array, Array], tuple[Array | None, Array]]:
    out = _sums(*primals)

    def sums(
        q: Array, k: Array, values: Array, thresholds: Array, parts: Parts, sizes: Any, _: Any
    ) -> Array:
        return sums_at(q, k, values, thresholds, parts, sizes, out[0])

    return out, (None, derivative(sums, primals, tangents))


def sums_at(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    values: Float[Array, "keys width"],
    thresholds: Float[Array, "queries few"],
    parts: Parts,
    sizes: tuple[int, int],
    shift: Float[Array, " queries"],
) -> Float[Array, "queries width"]:
    """Σ exp(s − shift) v: made of scans whose steps are recomputed when differentiated."""
    rows, columns = cut_blocks(q, thresholds, sizes[0]), cut_blocks(k, values, sizes[1])
    negligible = negligible_below(k.shape[0], values.dtype)

    def needs(bound: Array, shift: Array, sums: Array) -> Array:
        return is_needed(bound, shift, negligible)

    def add(row: Block, column: Block, shift: Array, sums: Array) -> Array:
        scores = scores_of(row, column, parts, k.shape[0])
        return sums + _weigh(scores, shift, column.values)

    # rows of padding weigh nothing
    shifts = cut_rows(shift, sizes[0], jnp.finfo(shift.dtype).max)
    start = jnp.zeros((sizes[0], values.shape[1]), values.dtype)
    return fold(rows, columns, shifts, start, parts, needs, add)[: q.shape[0]]


def _weigh(scores: Array, shift: Array, values: Array) -> Float[Array, "rows width"]:
    weights = jnp.exp(scores - finite_shift(shift)[:, None])
    if len(values) <= 2:
        return _product(weights, values)
    # of the values 1 a sum: in a product of matrices a column beyond a round number costs many
    mass = jnp.sum(weights, axis=1, keepdims=True)
    return jnp.concatenate([_product(weights, values[:-1]), mass], axis=1)


@jax.custom_jvp
def _product(
    weights: Float[Array, "rows columns"], values: Float[Array, "width columns"]
) -> Float[Array, "rows width"]:
    # wide, and so is its cotangent: XLA's product with a tall one is slow on CPU
    wide = jax.lax.optimization_barrier(values)
    return jnp.matmul(weights, wide.T, precision=jax.lax.Precision.HIGHEST)


@_product.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (weights, values), (of_weights, of_values) = primals, tangents
    out = _product(weights, values)
    if len(values) > 2:
        return out, _product(of_weights, values) + _product(weights, of_values)
    # of few columns, so that the cotangent of the weights is no product of matrices
    few = [jnp.sum(of_weights * value[None, :], axis=1) for value in values]
    return out, jnp.stack(few, axis=1) + _product(weights, of_values)
