r"""Sums over blocks of pairs whose weights are never stored: they stay in registers.

Where log K takes few operations, writing a weight and reading it again costs as much as computing
it. Here a loop over all queries of a block takes `UNROLLED_KEYS` keys at a time,

$$ Z_i \gets Z_i + \sum_g e^{s_{ig} - L_i}, \qquad
   T_i \gets T_i + \sum_g e^{s_{ig} - L_i}\, v_g $$

and keeps both sums as one complex number: XLA then emits one loop, with one exponential per pair.

Time on a CPU for 10 000² pairs, weights stored → not stored: Gaussian in 1, 3, 8 dimensions
71 → 45, 81 → 43, 95 → 65 ms, `Epanechnikov` in 2 dimensions 302 → 190 ms.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.tracing import any_in_batch, is_symbolic, vary_alike
from ._base import Parts, Task, apply_prior
from ._blocks import Block
from ._softmax_state import finite_shift, materialise_before_shift

Scores = Callable[[Array, Array], Float[Array, " rows"]]

# Also the length of the longest vector of a CPU. Seconds to compile, and CPU time of 8192² pairs:
# 8 → 1.2 s, 51 ms; 16 → 2.8 s, 41 ms; 32 → 19 s, 39 ms.
UNROLLED_KEYS = 16
# 100 queries and 42000 keys: 4.0 ms, with stored weights 2.9 ms; 512 and 8192: 2.5 ms either way.
MIN_QUERIES = 512
# 4096² pairs are 1 to 8 ms faster, and compile 1 s longer.
MIN_PAIRS = 2**24
# Queries and keys of a block. 8192² pairs: 43 ms; in blocks of 1024 x 1024 60, 4096 x 4096 50 ms.
MAX_BLOCK_ROWS = (4096, 1024)
MAX_BLOCK_MASS = 1e15  # of the weights of a block: 10⁴ such blocks stay below 1e38, float32's end

RAISE, ADD, ADD_RAISED, DONE = range(4)  # stages of the addition of a block


def is_faster(task: Task) -> bool:
    """Whether storing no weight is supported and faster, longer compilation included.

    It supports one column of values, no `Entmax`, no symbolic sizes, and CPUs alone.
    """
    if task.rule.entmax_exponent is not None or task.dim_v != 1:
        return False
    if is_symbolic(task.queries, task.keys) or jax.default_backend() != "cpu":
        return False
    is_large = task.queries >= MIN_QUERIES and task.queries * task.keys >= MIN_PAIRS
    # the differences of more than 12 coordinates cost more than storing their result
    return is_large and task.kernel.is_cheap and task.dim <= 12


def rounded_up(size: int) -> int:
    """The size of a block, rounded up to a multiple of `UNROLLED_KEYS`.

    XLA does not vectorise loops over rows that end within a vector: they are ten times slower.
    """
    return -(-size // UNROLLED_KEYS) * UNROLLED_KEYS


def add_block(
    row: Block, column: Block, parts: Parts, keys: int, shift: Array, sums: Array
) -> tuple[Array, Array]:
    """Returns the shift and the sums of a block of queries with a block of keys added.

    If the shift of a query is -inf, or the sums of the block of keys are too large, each query gets
    as shift the maximum of its old shift and its scores in the block. `row`, `column`: the block of
    queries and of keys. `keys`: the number of all keys. `sums`: shape (rows, 2),
    Σ exp(s − shift) (v, 1).

    The loop adds; if the sums lack headroom, it raises the shift and adds again. So the compiled
    program holds each of the two long computations once.
    """
    kernel, prior, rule = parts
    size, rows = column.points.shape[1], row.points.shape[1]
    i = jnp.minimum(row.low + jnp.arange(rows), row.high)  # a prior may be finite at rows alone

    def scores(key: Array, j: Array) -> Array:
        one = jax.vmap(kernel.log_pair, in_axes=(1, None))(row.points, key)[:, None]
        at = jnp.minimum(j, keys - 1)[None]
        one = materialise_before_shift(apply_prior(rule.scaled_scores(one), prior, i, at)[:, 0])
        return jnp.where(j < keys, one, -jnp.inf) if keys % size else one

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        def raise_shift() -> tuple[Array, Array, Array]:
            highest = lambda old, scores, _: functools.reduce(jnp.maximum, scores, old)  # noqa: E731
            new = _fold_keys(highest, state[1], scores, column)
            return vary_alike(jnp.array(ADD_RAISED), state), new, state[2]

        def add() -> tuple[Array, Array, Array]:
            more = _sums_at_shift(scores, column, finite_shift(state[1]))
            limit = 1e-4 * jnp.finfo(more.dtype).max  # of a sum: 10⁴ blocks do not overflow
            is_small = jnp.all(more[:, -1] < MAX_BLOCK_MASS) & jnp.all(jnp.abs(more) < limit)
            done = (state[0] == ADD_RAISED) | ~any_in_batch(~is_small)
            return jnp.where(done, DONE, RAISE), state[1], more

        return jax.lax.cond(state[0] == RAISE, raise_shift, add)

    first = jnp.where(any_in_batch(jnp.any(jnp.isneginf(shift))), RAISE, ADD)
    start = vary_alike((first, shift, jnp.zeros_like(sums)))
    _, new, more = jax.lax.while_loop(lambda state: state[0] != DONE, step, start)
    return new, sums * jnp.exp(shift - finite_shift(new))[:, None] + more


def _sums_at_shift(
    scores: Scores, column: Block, shift: Float[Array, " rows"]
) -> Float[Array, "rows 2"]:
    """Returns Σ exp(s − shift) (v, 1) of each query over a block of keys.

    `scores`: from a key and its position to its score s for each query. `shift`: finite.
    """

    def merge(state: Array, scores: list[Array], values: Array) -> Array:
        weights = [jnp.exp(score - shift) for score in scores]
        mass = functools.reduce(jnp.add, weights)
        total = functools.reduce(
            jnp.add, [weight * value for weight, value in zip(weights, values, strict=True)]
        )
        return state + jax.lax.complex(mass, total)

    start = vary_alike(jax.lax.complex(jnp.zeros_like(shift), jnp.zeros_like(shift)), shift)
    both = _fold_keys(merge, start, scores, column)
    return jnp.stack([both.imag, both.real], axis=1)


def _fold_keys(
    merge: Callable[[Array, list[Array], Array], Array], start: Array, scores: Scores, column: Block
) -> Array:
    """Returns the accumulator after all keys of a block, `UNROLLED_KEYS` of them per step.

    **Arguments:** `merge`: from (accumulator, scores of each key of a step, their values) to the
    next accumulator. `start`: the first accumulator. `scores`: from a key, shape (dim,), and its
    position to its score for each query.
    """
    dim, keys = column.points.shape

    def step(state: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
        points, values, numbers = part
        each = [scores(points[:, g], numbers[g]) for g in range(UNROLLED_KEYS)]
        return merge(state, each, values), None

    parts = (
        column.points.reshape(dim, -1, UNROLLED_KEYS).swapaxes(0, 1),
        column.values[0].reshape(-1, UNROLLED_KEYS),
        (column.low + jnp.arange(keys)).reshape(-1, UNROLLED_KEYS),
    )
    return jax.lax.scan(step, start, parts)[0]
