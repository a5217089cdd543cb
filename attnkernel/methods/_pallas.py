r"""Our own kernel for GPUs: sums in float32 with no weight ever in memory.

Of each block of queries one program goes through all blocks of keys with a running shift
(Milakov and Gimelshein, 2018), in Pallas, lowered by Triton. Differences are taken before they are
squared, in any dimension: where matrix units round, a common shift of the points would be lost.
`vmap` over queries alone reads the same keys for each head: its index maps of keys have no batch.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int

from ..kernels import DotProduct, Kernel, Radial, SoftCapped
from ._softmax_state import finite_shift

BLOCK_QUERIES, BLOCK_KEYS = 128, 64  # powers of two, as Triton requires
MAX_UNROLLED_DIM = 8
MIN_MATMUL_COLUMNS = 16  # the smallest matrix product of Triton


class Score(NamedTuple):
    """log K of pairs: `log_of` of the sum of `term` over the dimensions of the points.

    `term`: of a coordinate of queries, the same one of keys, and the factor of that dimension.
    """

    term: Callable[[Array, Array, Array], Array]
    log_of: Callable[[Array], Array]


def score_of(kernel: Kernel) -> Score:
    """Returns the score of a radial kernel, a dot product, or a dot product with a fixed cap.

    The factor of a dimension is 1 / ℓ, or the scale of the dot product.
    """
    if isinstance(kernel, Radial):
        return Score(
            lambda q, k, inverse: ((q - k) * inverse) ** 2,
            lambda squares: kernel.log_of(squares * kernel.unit),
        )
    if isinstance(kernel, SoftCapped):
        inner, cap = score_of(kernel.kernel), kernel.cap
        return Score(inner.term, lambda total: cap * jnp.tanh(inner.log_of(total) / cap))
    assert isinstance(kernel, DotProduct)  # as unsupported_reason says
    return Score(lambda q, k, scale: (q * scale) * k, lambda total: total)


def sums(
    score: Score,
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    v: Float[Array, "keys dim_v"],
    factor: Float[Array, " dim"],
    log_prior: Float[Array, " keys"],
    inverse_temperature: float | Array,
    *,
    limits: tuple[int | None, int | None],
    segments: tuple[Int[Array, " queries"], Int[Array, " keys"]],
    interpret: bool = False,
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """Returns L = log Z and Σ exp(s − L) (v, 1) of each query; both are 0 if it sees no key.

    **Arguments:** `factor`: of each dimension, see `score_of`. `log_prior`: of each key; -inf hides
    it. `inverse_temperature`: 1 / τ. `limits`: the most keys before and after its own that a query
    sees; None: all. `segments`: numbers of queries and of keys, which see each other where they are
    equal.
    """
    queries, (keys, dim_v) = len(q), v.shape
    width = (
        dim_v if dim_v < MIN_MATMUL_COLUMNS else max(MIN_MATMUL_COLUMNS, pl.next_power_of_2(dim_v))
    )
    q, k = (
        jnp.pad(x, ((0, -len(x) % size), (0, 0)))
        for x, size in ((q, BLOCK_QUERIES), (k, BLOCK_KEYS))
    )
    v = jnp.pad(v, ((0, len(k) - keys), (0, width - dim_v)))
    log_prior = jnp.pad(log_prior, (0, len(k) - keys), constant_values=-jnp.inf)
    query_segments, key_segments = (
        jnp.pad(numbers, (0, len(x) - len(numbers)))
        for numbers, x in zip(segments, (q, k), strict=True)
    )

    def whole_array(array: Array) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda i: (0,) * array.ndim)

    operands = (
        q.T,
        k.T,
        v.T,
        factor,
        log_prior,
        jnp.reshape(jnp.asarray(inverse_temperature, q.dtype), 1),
        key_segments,
        query_segments,
    )
    shift, mass, total = pl.pallas_call(
        functools.partial(_sum_block_of_queries, score=score, limits=limits),
        grid=(len(q) // BLOCK_QUERIES,),
        in_specs=[
            pl.BlockSpec((q.shape[1], BLOCK_QUERIES), lambda i: (0, i)),
            *(whole_array(operand) for operand in operands[1:-1]),
            pl.BlockSpec((BLOCK_QUERIES,), lambda i: (i,)),
        ],
        out_specs=[
            pl.BlockSpec((BLOCK_QUERIES,), lambda i: (i,)),
            pl.BlockSpec((BLOCK_QUERIES,), lambda i: (i,)),
            pl.BlockSpec((width, BLOCK_QUERIES), lambda i: (0, i)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((len(q),), q.dtype),
            jax.ShapeDtypeStruct((len(q),), q.dtype),
            jax.ShapeDtypeStruct((width, len(q)), q.dtype),
        ],
        compiler_params=None if interpret else triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
    )(*operands)
    shift, mass, total = shift[:queries], mass[:queries], total[:dim_v, :queries].T
    some = mass > 0
    log_mass = jnp.where(some, finite_shift(shift) + jnp.log(jnp.where(some, mass, 1.0)), 0.0)
    out = jnp.concatenate([total, mass[:, None]], axis=1)
    return jnp.where(jnp.isnan(mass), jnp.nan, log_mass), out / jnp.where(some, mass, 1.0)[:, None]


def _sum_block_of_queries(
    q: Any,
    k: Any,
    v: Any,
    factor: Any,
    log_prior: Any,
    inverse_temperature: Any,
    key_segments: Any,
    query_segments: Any,
    *results: Any,
    score: Score,
    limits: tuple[int | None, int | None],
) -> None:
    """Writes the shift, mass and total of one block of queries to the three refs `results`.

    `q`, `k`, `v`: refs to the transposed arrays, (dim, block of queries), (dim, keys) and
    (width, keys). `factor`: of each dimension. `log_prior`: of each key.
    """
    dim, width = q.shape[0], v.shape[0]
    first, (left, right) = pl.program_id(0) * BLOCK_QUERIES, limits
    start_block, end_block = jnp.int32(0), jnp.int32(k.shape[1] // BLOCK_KEYS)
    if left is not None:  # blocks that no query of these sees are skipped
        start_block = jnp.minimum(jnp.maximum(first - left, 0) // BLOCK_KEYS, end_block)
    if right is not None:
        end_block = jnp.minimum(end_block, (first + BLOCK_QUERIES - 1 + right) // BLOCK_KEYS + 1)

    def scores_of(block: Array) -> Array:
        here = pl.ds(block * BLOCK_KEYS, BLOCK_KEYS)

        def add(a: Array | int, total: Array) -> Array:
            return total + score.term(q[a, :][:, None], k[a, here][None, :], factor[a])

        total = jnp.zeros((BLOCK_QUERIES, BLOCK_KEYS), jnp.float32)
        if dim <= MAX_UNROLLED_DIM:
            for a in range(dim):
                total = add(a, total)
        else:
            total = jax.lax.fori_loop(0, dim, add, total)
        scores = score.log_of(total) * inverse_temperature[0] + log_prior[here][None, :]
        seen = query_segments[:][:, None] == key_segments[here][None, :]
        i, j = first + jnp.arange(BLOCK_QUERIES), block * BLOCK_KEYS + jnp.arange(BLOCK_KEYS)
        if left is not None:
            seen = seen & (i[:, None] - j[None, :] <= left)
        if right is not None:
            seen = seen & (j[None, :] - i[:, None] <= right)
        return jnp.where(seen, scores, -jnp.inf)

    def step(block: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        shift, mass, *total = state
        scores = scores_of(block)
        new = jnp.maximum(shift, jnp.max(scores, axis=1))
        constant = jnp.where(new == -jnp.inf, 0.0, new)
        weights, kept = jnp.exp(scores - constant[:, None]), jnp.exp(shift - constant)
        here = pl.ds(block * BLOCK_KEYS, BLOCK_KEYS)
        if width < MIN_MATMUL_COLUMNS:
            more = [jnp.sum(weights * v[a, here][None, :], axis=1) for a in range(width)]
            total = [old * kept + new for old, new in zip(total, more, strict=True)]
        else:
            more = jnp.dot(v[:, here], weights.T, precision=jax.lax.Precision.HIGHEST)
            total = [total[0] * kept[None, :] + more]
        return new, mass * kept + jnp.sum(weights, axis=1), *total

    nothing = jnp.zeros((BLOCK_QUERIES,), jnp.float32)
    start = (
        [nothing] * width
        if width < MIN_MATMUL_COLUMNS
        else [jnp.zeros((width, BLOCK_QUERIES), jnp.float32)]
    )
    shift, mass, *total = jax.lax.fori_loop(
        start_block, end_block, step, (jnp.full((BLOCK_QUERIES,), -jnp.inf), nothing, *start)
    )
    results[0][:], results[1][:] = shift, mass
    if width < MIN_MATMUL_COLUMNS:
        for a in range(width):
            results[2][a, :] = total[a]
    else:
        results[2][:, :] = total[0]
