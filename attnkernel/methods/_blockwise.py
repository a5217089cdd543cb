r"""Streaming: one block of queries against one block of keys at a time, in O(n + m) memory.

The sums are formed in blocks with a running shift (Milakov and Gimelshein, *Online normalizer
calculation for softmax*, 2018; Rabe and Staats, *Self-attention does not need O(n²) memory*,
2021). Derivatives of every order recompute the blocks: with the shift L = log Z known, the sums

$$ Z_i = \sum_j e^{s_{ij} - L_i}, \qquad T_i = \sum_j e^{s_{ij} - L_i}\, v_j $$

are plain sums over blocks, and what JAX derives from them is what is wanted, because the results
T/Z and L + log Z do not depend on L.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import as_precision, precise_matmul
from .._core.batching import any_in_batch
from .._core.mesh_axes import vary_alike
from .._core.parameters import described
from .._core.symbolic_sizes import is_at_most
from .._core.tuning import (
    MAX_BLOCK_ROWS,
    MAX_BLOCK_ROWS_EXCLUDED,
    MAX_KEYS_OF_SMALL_BLOCKS,
    MIN_PAIRS_OF_SINGLE_MEMBER,
)
from .._core.validation import as_integer
from ..kernels import Kernel
from ..priors import Prior, key_mask_of
from ..rules import Rule
from . import _blockwise_unmaterialised as unmaterialised, _query_blocks as query_blocks
from ._base import Method, Task, batch_size_within_memory
from ._block_table import tabulate_blocks
from ._blocks import (
    Block,
    Parts,
    block_log_weights,
    even_block_size,
    fold_blocks,
    is_block_needed,
    jvp_with_constants,
    log_weight_upper_bound,
    negligible_gap,
    split_blocks,
    split_numbers,
    sums_have_headroom,
)
from ._entmax import row_maxima, thresholds
from ._softmax_state import SoftmaxState, finite_shift

RAISE, ADD, DONE = range(3)  # stages of the addition of a block


class Blockwise(Method):
    r"""Streams over blocks of $b_q$ queries and $b_k$ keys; exact, in O(n + m) memory.

    Takes any kernel, prior and rule; for `Entmax` it first finds the threshold of each query, in
    about eight more passes. Value, gradient, JVP and Hessian recompute the blocks. A block is
    skipped where the two `score_upper_bound`, of the kernel and of the prior, prove that its
    weights vanish: masked by the prior, out of reach of a compact kernel, or too small to be seen
    beside the sum (by 1/ε of the precision, with room). Sorted or clustered keys make
    such blocks many. Without a prior, up to 4096 keys are one block, except for a kernel that is
    cheap (`Kernel.is_cheap`): the program is then a smaller one.

    A mask that gives no bound on a block, such as `MaskArray`, `MaskFunction` or `~Causal()`, is
    read once in a call, for all heads, for a table of the blocks in which it allows a pair.

    ```python
    x = jnp.linspace(0.0, 1.0, 100)[:, None]
    near = ak.priors.MaskFunction(lambda i, j: abs(i - j) < 10)
    options = {"kernel": ak.Gaussian(0.1), "prior": near}
    out = ak.attend(x, x, x, method=ak.methods.Blockwise(20, 20), **options)
    assert jnp.allclose(out, ak.attend(x, x, x, method=ak.methods.Dense(), **options), atol=1e-5)
    ```

    **Arguments:** `block_q`, `block_k`: $b_q$, $b_k$. Default: chosen from the shapes and prior.
    `precision`: of the products of weights and values on accelerators, as for `Dense`.
    """

    block_q: int | None = eqx.field(static=True)
    block_k: int | None = eqx.field(static=True)
    precision: str | None = eqx.field(static=True)
    __pdoc__ = described

    def __init__(
        self,
        block_q: int | None = None,
        block_k: int | None = None,
        *,
        precision: str | jax.lax.Precision | None = None,
    ):
        hint = "Or None: it is then chosen from the shapes."
        for name, size in (("block_q", block_q), ("block_k", block_k)):
            if size is not None:
                as_integer(name, size, 1, hint)
        self.block_q, self.block_k = block_q, block_k
        self.precision = as_precision("precision", precision)

    def unsupported_reason(self, task: Task) -> str | None:
        return None

    def batch_size(self, task: Task) -> int | None:
        """One for members of many pairs: their blocks fill a core and stay in its caches."""
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
        task = Task(kernel, prior, rule, queries, keys, q.shape[1], width, v.dtype)
        if queries == 0 or keys == 0:
            state = SoftmaxState.from_log_weights(jnp.zeros((queries, keys), q.dtype), v)
        elif self.block_k is None and query_blocks.takes_all_keys(task):
            return query_blocks.softmax_state(q, k, v, kernel, rule, self.block_q, self.precision)
        else:
            # the mass is the sum of the values 1
            values = jnp.concatenate([v, jnp.ones((keys, 1), v.dtype)], axis=1)
            sizes, unmaterialised_sizes = self._block_sizes(task)
            parts = kernel, self.precomputed_prior(prior, task), rule
            threshold = None if rule.entmax_exponent is None else thresholds(q, k, parts, sizes)
            of_queries = q[:, :0] if threshold is None else threshold[:, None]
            sizes_and_precision = sizes, unmaterialised_sizes, self.precision
            shift, sums = _sums(q, k, values, of_queries, parts, *sizes_and_precision)
            state = SoftmaxState(shift, sums[:, -1], sums[:, :-1]).shifted(threshold)
        return state.with_sink(rule.log_sink())

    def row_maximum(
        self,
        q: Float[Array, "queries dim"],
        k: Float[Array, "keys dim"],
        kernel: Kernel,
        prior: Prior | None,
        rule: Rule,
    ) -> Float[Array, " queries"]:
        if len(q) == 0 or len(k) == 0:
            return jnp.full(len(q), -jnp.inf, q.dtype)
        task = Task(kernel, prior, rule, len(q), len(k), q.shape[1], 0, q.dtype)
        parts = kernel, self.precomputed_prior(prior, task), rule
        return row_maxima(q, k, parts, self._block_sizes(task)[0])

    def precomputed_prior(self, prior: Prior | None, task: Task) -> Prior | None:
        sizes, unmaterialised_sizes = self._block_sizes(task)
        return tabulate_blocks(prior, task.queries, task.keys, unmaterialised_sizes or sizes)

    def _block_sizes(self, task: Task) -> tuple[tuple[int, int], tuple[int, int] | None]:
        """Returns (queries, keys) of a block with stored weights; of one without, or None."""
        queries, keys = task.queries, task.keys
        rows = MAX_BLOCK_ROWS_EXCLUDED if _has_small_blocks(task) else MAX_BLOCK_ROWS
        sizes = self._balanced_sizes(queries, keys, (rows, rows))
        if (
            task.rule.entmax_exponent is not None
            or task.dim_v != 1
            or not unmaterialised.is_faster(task.kernel, queries, keys, task.dim)
        ):
            return sizes, None
        if not _excludes_blocks(task.prior):
            limits = unmaterialised.MAX_BLOCK_ROWS_OF_DERIVATIVES
            sizes = self._balanced_sizes(queries, keys, limits)
        block_q, block_k = self._balanced_sizes(queries, keys, unmaterialised.MAX_BLOCK_ROWS)
        return sizes, (unmaterialised.rounded_up(block_q), unmaterialised.rounded_up(block_k))

    def _balanced_sizes(self, queries: int, keys: int, limits: tuple[int, int]) -> tuple[int, int]:
        """Returns `block_q` and `block_k`; if None, the size of the fewest equal blocks instead.

        `limits`: the largest numbers of queries and keys of a block; symbolic sizes use these.
        """
        block_q = self.block_q or even_block_size(queries, limits[0])
        return block_q, self.block_k or even_block_size(keys, limits[1])


def _excludes_blocks(prior: Prior | None) -> bool:
    """Whether a prior has a table of blocks, or limits which keys a query sees."""
    if prior is None:
        return False
    return prior.needs_block_table or key_mask_of(prior).limits != (None, None)


def _has_small_blocks(task: Task) -> bool:
    """Whether the prior excludes so many more small blocks than large ones that they are faster.

    It does if it has a table of blocks, or limits which of at most 4096 keys a query sees.
    """
    has_table = task.prior is not None and task.prior.needs_block_table
    is_small = is_at_most(task.keys, MAX_KEYS_OF_SMALL_BLOCKS)
    return has_table or (_excludes_blocks(task.prior) and is_small)


@eqx.filter_custom_jvp
def _sums(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    values: Float[Array, "keys width"],
    thresholds: Float[Array, "queries few"],
    parts: Parts,
    sizes: tuple[int, int],
    unmaterialised_sizes: tuple[int, int] | None = None,
    precision: str | None = None,
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """Returns L = log Z and Σ exp(s − L) v of each query; both are 0 if it sees no key.

    `values`: v, its last column 1. `thresholds`: a column of those of entmax, or no column.
    `parts`: the kernel, prior and rule. `sizes`: (queries, keys) of a block;
    `unmaterialised_sizes`: if given, used instead, and no weight is stored. `precision`: of the
    products of weights and values.
    """
    sizes = sizes if unmaterialised_sizes is None else unmaterialised_sizes
    rows, columns = split_blocks(q, thresholds, sizes[0]), split_blocks(k, values, sizes[1])
    number, width, dtype = columns.low.shape[0], values.shape[1], values.dtype
    negligible = negligible_gap(k.shape[0], dtype)

    def of_row(row: Block) -> tuple[Array, Array]:
        bounds = jax.vmap(lambda column: log_weight_upper_bound(row, column, parts))(columns)
        first = jnp.argmax(bounds)  # the nearest keys: later ones then seldom raise the shift

        def at(j: Array) -> Block:
            return jax.tree.map(lambda leaf: leaf[j], columns)

        def step(t: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            j = (first + t) % number
            needed = any_in_batch(is_block_needed(bounds[j], state[0], negligible))
            # the block is an operand, so that XLA slices it once and not for each pair
            return jax.lax.cond(needed, add, lambda _, *state: state, at(j), *state)

        def add(column: Block, shift: Array, sums: Array) -> tuple[Array, Array]:
            if unmaterialised_sizes is not None:
                return unmaterialised.add_block(row, column, parts, k.shape[0], shift, sums)
            return add_block(column, shift, sums)

        def add_block(column: Block, shift: Array, sums: Array) -> tuple[Array, Array]:
            """Adds at the current shift; if that overflows, or the shift is -inf, raises it."""

            def raised(shift: Array, sums: Array) -> tuple[Array, Array, Array]:
                scores = block_log_weights(row, column, parts, k.shape[0])
                new = jnp.maximum(shift, jnp.max(scores, axis=1))
                kept = jnp.exp(shift - finite_shift(new))
                more = _weighted_sums(scores, new, column.values, precision)
                return vary_alike(jnp.array(DONE), shift), new, sums * kept[:, None] + more

            def added(shift: Array, sums: Array) -> tuple[Array, Array, Array]:
                scores = block_log_weights(row, column, parts, k.shape[0])
                more = _weighted_sums(scores, shift, column.values, precision)
                fits = ~any_in_batch(~sums_have_headroom(more))
                return jnp.where(fits, DONE, RAISE), shift, jnp.where(fits, sums + more, sums)

            # a loop, so that the compiled program holds each of the two once
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
    # a large L is rounded: the sums are relative to the L that is returned
    is_large = some & (jnp.abs(shift) * jnp.finfo(dtype).eps ** 0.5 > 1.0)
    unit = jnp.where(is_large, jnp.exp(log_mass - finite_shift(shift)), unit)
    return log_mass, sums / unit[:, None]


@_sums.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[tuple[Array, Array], tuple[Array | None, Array]]:
    """Returns `_sums` and its tangents; that of L is None, since L is held constant."""
    out = _sums(*primals)

    def sums(
        q: Array,
        k: Array,
        values: Array,
        thresholds: Array,
        parts: Parts,
        sizes: Any,
        _: Any,
        precision: str | None,
    ) -> Array:
        return sums_at_shift(q, k, values, thresholds, parts, sizes, out[0], precision)

    return out, (None, jvp_with_constants(sums, primals, tangents))


def sums_at_shift(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    values: Float[Array, "keys width"],
    thresholds: Float[Array, "queries few"],
    parts: Parts,
    sizes: tuple[int, int],
    shift: Float[Array, " queries"],
    precision: str | None = None,
) -> Float[Array, "queries width"]:
    """Returns Σ exp(s − shift) v of each query, by checkpointed scans; arguments as in `_sums`."""
    rows, columns = split_blocks(q, thresholds, sizes[0]), split_blocks(k, values, sizes[1])
    negligible = negligible_gap(k.shape[0], values.dtype)

    def needs(bound: Array, shift: Array, sums: Array) -> Array:
        return is_block_needed(bound, shift, negligible)

    def add(row: Block, column: Block, shift: Array, sums: Array) -> Array:
        scores = block_log_weights(row, column, parts, k.shape[0])
        return sums + _weighted_sums(scores, shift, column.values, precision)

    # rows of padding weigh nothing
    shifts = split_numbers(shift, sizes[0], jnp.finfo(shift.dtype).max)
    start = jnp.zeros((sizes[0], values.shape[1]), values.dtype)
    return fold_blocks(rows, columns, shifts, start, parts, needs, add)[: q.shape[0]]


def _weighted_sums(
    scores: Array, shift: Array, values: Array, precision: str | None
) -> Float[Array, "rows width"]:
    """Returns Σ exp(s − shift) v for a block; `values` has a column per key, its last row is 1."""
    weights = jnp.exp(scores - finite_shift(shift)[:, None])
    if len(values) <= 2:
        return _weights_times_values(weights, values, precision)
    # the mass is a sum: a matrix product with one column more than 2ⁿ is much slower
    mass = jnp.sum(weights, axis=1, keepdims=True)
    total = _weights_times_values(weights, values[:-1], precision)
    return jnp.concatenate([total, mass], axis=1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _weights_times_values(
    weights: Float[Array, "rows columns"],
    values: Float[Array, "width columns"],
    precision: str | None,
) -> Float[Array, "rows width"]:
    """Returns weights @ values.T, at this precision."""
    # the right factor is wide, and so is its cotangent: XLA on CPU is slow with tall ones
    wide = jax.lax.optimization_barrier(values)
    return precise_matmul(weights, wide.T, precision)


@_weights_times_values.defjvp
def _(
    precision: str | None, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Returns weights @ values.T and its tangent."""
    (weights, values), (of_weights, of_values) = primals, tangents
    out = _weights_times_values(weights, values, precision)
    along_values = _weights_times_values(weights, of_values, precision)
    if len(values) > 2:
        return out, _weights_times_values(of_weights, values, precision) + along_values
    # one column at a time, so that the cotangent of the weights is no matrix product
    few = [jnp.sum(of_weights * value[None, :], axis=1) for value in values]
    return out, jnp.stack(few, axis=1) + along_values
