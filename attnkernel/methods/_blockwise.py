r"""Streaming: one block of queries against one block of keys at a time, in O(n + m) memory.

The sums are formed in blocks with a running shift (Milakov and Gimelshein, *Online normalizer
calculation for softmax*, 2018; Rabe and Staats, *Self-attention does not need O(n²) memory*,
2021). Derivatives of every order recompute the blocks: with the last shift m known, the sums

$$ Z_i = \sum_j e^{s_{ij} - m_i}, \qquad T_i = \sum_j e^{s_{ij} - m_i}\, v_j $$

are plain sums over blocks, and what JAX derives from them is what is wanted, because the results
T/Z and m + log Z do not depend on m.

The thresholds of an entmax are found by Newton's method, with one pass over the blocks per step.
"""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._core.arrays import as_precision, precise_matmul
from .._core.parameters import described
from .._core.tracing import any_in_batch, is_at_most, stop_gradients, vary_alike
from .._core.validation import as_integer
from ..kernels import Kernel
from ..priors import Prior, pair_mask_of
from ..rules import MassAndSlope, Rule, find_threshold, threshold_sums
from . import _blockwise_unmaterialised as unmaterialised
from ._base import MAX_BLOCK_ROWS, Keys, Method, Queries, Task, Values
from ._blocks import (
    Block,
    Parts,
    block_log_weights,
    even_block_size,
    fold_blocks,
    is_block_needed,
    log_weight_upper_bound,
    negligible_gap,
    split_blocks,
    split_numbers,
    tabulate_blocks,
)
from ._key_ranges import STEP_PAIRS, Loop, loops_over_blocks, sum_loops
from ._softmax_state import SoftmaxState, finite_shift


class Blockwise(Method):
    r"""Streams over blocks of $b_q$ queries and $b_k$ keys; exact, in O(n + m) memory.

    Takes any kernel, prior and rule; for `Entmax` it first finds the threshold of each query, in
    about eight more passes. Value, gradient, JVP and Hessian recompute the blocks. A block is
    skipped where the two `score_upper_bound`, of the kernel and of the prior, prove that its
    weights vanish: masked by the prior, out of reach of a compact kernel, or below rounding beside
    the sum (by 1/ε of the precision, with room). Sorted or clustered keys give many such blocks.

    Up to 4096 keys are summed at once if the keys that a query sees are known before the call:
    without a prior, or with one that defines `Prior.key_range`, such as `Causal` and `Window`. A
    cheap kernel (`Kernel.is_cheap`) in up to 12 dimensions is always streamed. So are all sums if
    `block_k` is given.

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

    def batch_size(self, task: Task) -> int | None:
        """Returns how many members of a batch have at most `STEP_PAIRS` pairs in one block of each.

        Returns at least 1, and None if there is no query or no key.
        """
        if is_at_most(task.queries * task.keys, 0):
            return None
        loops = self._loops(task)
        sizes = [(loop.size, loop.width) for loop in loops or ()] or [self._block_sizes(task)[0]]
        return max(1, STEP_PAIRS // max(map(math.prod, sizes)))

    def _loops(self, task: Task) -> list[Loop] | None:
        """Returns the loops that see all keys of a query at once; None if the sums are streamed."""
        # the maximum of a block would take a large share of the time of a cheap kernel
        is_cheap = task.kernel.is_cheap and task.dim <= 12
        streams = self.block_k is not None or is_cheap
        return None if streams else loops_over_blocks(task, self.block_q)

    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        queries, keys, width = q.shape[0], k.shape[0], v.shape[1]
        task = Task(kernel, prior, rule, queries, keys, q.shape[1], width, v.dtype)
        if (loops := self._loops(task)) is not None:
            state = sum_loops(q, k, v, (kernel, prior, rule), loops, self.precision)
            return state.with_sink(rule.log_sink())
        # the mass is the sum of the values 1
        values = jnp.concatenate([v, jnp.ones((keys, 1), v.dtype)], axis=1)
        sizes, unmaterialised_sizes = self._block_sizes(task)
        parts = kernel, self.precomputed_prior(prior, task), rule
        threshold = None if rule.entmax_exponent is None else _thresholds(q, k, parts, sizes)
        of_queries = q[:, :0] if threshold is None else threshold[:, None]
        options = sizes, self.precision, unmaterialised_sizes
        shift, sums = _sums(q, k, values, of_queries, parts, *options)
        state = SoftmaxState(shift, sums[:, -1], sums[:, :-1]).shifted(threshold)
        return state.with_sink(rule.log_sink())

    def row_maximum(
        self, q: Queries, k: Keys, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> Float[Array, " queries"]:
        """The highest log-weight before normalisation of each query, log π included.

        -inf for a query that sees no key. `rule`: not an `Entmax`.
        """
        task = Task(kernel, prior, rule, len(q), len(k), q.shape[1], 0, q.dtype)
        sizes = self._block_sizes(task)[0]
        parts = kernel, tabulate_blocks(prior, len(q), len(k), sizes), rule
        return _row_maxima(q, k, parts, sizes)

    def precomputed_prior(self, prior: Prior | None, task: Task) -> Prior | None:
        """Returns the prior with a table of the blocks that allow a pair, if it needs one.

        Returns the prior itself if it needs none, or if the sums are not streamed.
        """
        if self._loops(task) is not None:
            return prior
        sizes, unmaterialised_sizes = self._block_sizes(task)
        return tabulate_blocks(prior, task.queries, task.keys, unmaterialised_sizes or sizes)

    def _block_sizes(self, task: Task) -> tuple[tuple[int, int], tuple[int, int] | None]:
        """Returns two block sizes (queries, keys): with stored weights, and without.

        The second is None if sums that store no weight are unsupported or slower. Sizes that are
        not given are those of the fewest equal blocks of at most `MAX_BLOCK_ROWS` rows. With a
        table of blocks or a `PairMask` of segments the limit is a quarter up to 8192 keys: more of
        the smaller ones are skipped. T = 1024, 4096, 8192, 32768 in 8 packed documents: 27, 236,
        495, 4100 ms, in smaller blocks 22, 131, 392, 5180; `HeldOut`, which skips few, would take
        twice as long.

        The second has the limits `unmaterialised.MAX_BLOCK_ROWS` instead. Its sizes, given ones
        too, are then rounded up to a multiple of `UNROLLED_KEYS`.
        """
        skips = getattr(task.prior, "needs_block_table", False) or pair_mask_of(task.prior).segments
        limit = MAX_BLOCK_ROWS // (4 if skips and is_at_most(task.keys, 2**13) else 1)
        sizes = self._even_sizes(task, limit, limit)
        if not unmaterialised.is_faster(task):
            return sizes, None
        queries, keys = self._even_sizes(task, *unmaterialised.MAX_BLOCK_ROWS)
        return sizes, (unmaterialised.rounded_up(queries), unmaterialised.rounded_up(keys))

    def _even_sizes(self, task: Task, queries: int, keys: int) -> tuple[int, int]:
        """Returns the given sizes of a block, or those of the fewest equal blocks.

        `queries`, `keys`: the most queries and keys that a block may have.
        """
        block_q = self.block_q or even_block_size(task.queries, queries)
        return block_q, self.block_k or even_block_size(task.keys, keys)


@eqx.filter_custom_jvp
def _sums(
    q: Queries,
    k: Keys,
    values: Float[Array, "keys width"],
    thresholds: Float[Array, "queries few"],
    parts: Parts,
    sizes: tuple[int, int],
    precision: str | None = None,
    unmaterialised_sizes: tuple[int, int] | None = None,
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """Returns a shift m near the maximum and Σ exp(s − m) v of each query; 0 if it sees no key.

    `values`: v, its last column 1. `thresholds`: a column of those of entmax, or no column.
    `parts`: the kernel, prior and rule. `sizes`: (queries, keys) of a block. `precision`: of the
    products of weights and values. `unmaterialised_sizes`: if given, used instead of `sizes`, and
    no weight is stored.
    """
    sizes = unmaterialised_sizes or sizes
    rows, columns = split_blocks(q, thresholds, sizes[0]), split_blocks(k, values, sizes[1])
    width, dtype = values.shape[1], values.dtype
    negligible = negligible_gap(k.shape[0], dtype)
    # weights up to e¹⁰ need no new shift, unless their sums overflow. Gaussian in 8 dimensions,
    # 10 000² pairs: 139 ms, with a new maximum in each block 193 ms
    largest = jnp.max(jnp.sum(jnp.abs(values), axis=0))
    headroom = jnp.minimum(10.0, math.log(float(jnp.finfo(dtype).max)) - jnp.log(largest))

    def of_row(row: Block) -> tuple[Array, Array]:
        number = columns.low.shape[0]
        bounds = jax.vmap(lambda column: log_weight_upper_bound(row, column, parts))(columns)
        first = jnp.argmax(bounds)  # the nearest keys: later ones then seldom raise the shift

        def key_block(j: Array) -> Block:
            return jax.tree.map(lambda leaf: leaf[j], columns)

        def step(t: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            j = (first + t) % number
            needed = any_in_batch(is_block_needed(bounds[j], state[0], negligible))
            if unmaterialised_sizes is not None:
                skip = lambda _, *state: state  # noqa: E731
                return jax.lax.cond(needed, add_unmaterialised, skip, key_block(j), *state)
            rises = any_in_batch(~(bounds[j] <= jnp.min(state[0]) + headroom)).astype(int)
            branches = [lambda _, *state: state, add, raise_shift_and_add]
            # the block is an operand, so that XLA slices it once and not for each pair
            return jax.lax.switch(jnp.where(needed, 1 + rises, 0), branches, key_block(j), *state)

        def add_unmaterialised(column: Block, shift: Array, sums: Array) -> tuple[Array, Array]:
            return unmaterialised.add_block(row, column, parts, k.shape[0], shift, sums)

        def add(column: Block, shift: Array, sums: Array) -> tuple[Array, Array]:
            scores = block_log_weights(row, column, parts, k.shape[0])
            return shift, sums + _weighted_sums(scores, shift, column.values, precision)

        def raise_shift_and_add(column: Block, shift: Array, sums: Array) -> tuple[Array, Array]:
            scores = block_log_weights(row, column, parts, k.shape[0])
            new = jnp.maximum(shift, jnp.max(scores, axis=1))
            kept = sums * jnp.exp(shift - finite_shift(new))[:, None]
            return new, kept + _weighted_sums(scores, new, column.values, precision)

        empty = jnp.full(sizes[0], -jnp.inf, dtype), jnp.zeros((sizes[0], width), dtype)
        return jax.lax.fori_loop(0, number, step, vary_alike(empty, row, columns, parts))

    shift, sums = (
        leaf.reshape(-1, *leaf.shape[2:])[: q.shape[0]] for leaf in jax.lax.map(of_row, rows)
    )
    return finite_shift(shift), sums


@_sums.def_jvp
def _(
    primals: tuple, tangents: tuple
) -> tuple[tuple[Array, Array], tuple[Array | None, Array | None]]:
    """Returns m and the sums, and their tangents; that of m is None: m is held constant."""
    out = _sums(*primals)
    sums = functools.partial(sums_at_shift, shift=out[0])
    # derivatives store the weights of a block
    return out, (None, eqx.filter_jvp(sums, primals[:7], tangents[:7])[1])


def sums_at_shift(
    q: Queries,
    k: Keys,
    values: Float[Array, "keys width"],
    thresholds: Float[Array, "queries few"],
    parts: Parts,
    sizes: tuple[int, int],
    precision: str | None = None,
    *,
    shift: Float[Array, " queries"],
) -> Float[Array, "queries width"]:
    """Returns Σ exp(s − shift) v of each query, by checkpointed scans; arguments as in `_sums`."""
    rows, columns = split_blocks(q, thresholds, sizes[0]), split_blocks(k, values, sizes[1])
    negligible = negligible_gap(k.shape[0], values.dtype)
    kernel, prior, rule = parts
    # that of sums whose weights are not stored has a table of other blocks
    parts = kernel, tabulate_blocks(prior, q.shape[0], k.shape[0], sizes), rule

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
    return precise_matmul(weights, values.T, precision)


def _thresholds(
    q: Queries, k: Keys, parts: Parts, sizes: tuple[int, int]
) -> Float[Array, " queries"]:
    """Returns the threshold λ of each query, which makes its entmax weights sum to 1.

    `parts`: the kernel, prior and rule. `sizes`: the number of queries and of keys of a block.
    """
    highest = _row_maxima(*stop_gradients((q, k, parts)), sizes)
    assert parts[2].entmax_exponent is not None
    return find_threshold(_mass_and_slope, highest, parts[2].entmax_exponent, q, k, parts, sizes)


def _row_maxima(
    q: Queries, k: Keys, parts: Parts, sizes: tuple[int, int]
) -> Float[Array, " queries"]:
    """Returns the highest scaled score of each query, log π included; -inf if it sees no key."""
    rows, columns = split_blocks(q, q[:, :0], sizes[0]), split_blocks(k, k[:, :0], sizes[1])

    def needs(bound: Array, _: Array, highest: Array) -> Bool[Array, ""]:
        return ~(bound <= jnp.min(highest))

    def add(row: Block, column: Block, _: Array, highest: Array) -> Array:
        scores = block_log_weights(row, column, parts, k.shape[0])
        return jnp.maximum(highest, jnp.max(scores, axis=1))

    lowest = jnp.full(sizes[0], -jnp.inf, q.dtype)
    unused = jnp.zeros((rows.low.shape[0], sizes[0]), q.dtype)
    return fold_blocks(rows, columns, unused, lowest, parts, needs, add)[: q.shape[0]]


def _mass_and_slope(
    threshold: Float[Array, " queries"], q: Queries, k: Keys, parts: Parts, sizes: tuple[int, int]
) -> MassAndSlope:
    """Returns S(λ) and −dS/dλ of each query, where S is the sum of its entmax weights.

    `threshold`: λ. `parts`: the kernel, prior and rule. `sizes`: queries and keys of a block.
    """
    rows, columns = split_blocks(q, q[:, :0], sizes[0]), split_blocks(k, k[:, :0], sizes[1])
    exponent = parts[2].entmax_exponent
    assert exponent is not None

    def needs(bound: Array, threshold: Array, _: Array) -> Bool[Array, ""]:
        return ~(bound <= jnp.min(threshold) - exponent)

    def add(row: Block, column: Block, threshold: Array, sums: Array) -> Array:
        scores = block_log_weights(row, column, parts, k.shape[0])
        return sums + jnp.stack(threshold_sums(threshold, scores, exponent), axis=1)

    start = jnp.zeros((sizes[0], 2), q.dtype)
    # rows of padding weigh nothing
    thresholds = split_numbers(threshold, sizes[0], jnp.finfo(threshold.dtype).max)
    sums = fold_blocks(rows, columns, thresholds, start, parts, needs, add)[: q.shape[0]]
    return sums[:, 0], sums[:, 1]
