r"""Sums over blocks of pairs whose weights are never stored: one key after the other, in registers.

Where log K takes a few operations, to write a weight and read it again costs as much as to compute
it. Here a program of a few keys, unrolled, runs over all queries of a block,

$$ Z_i \gets Z_i + \sum_g e^{s_{ig} - L_i}, \qquad
   T_i \gets T_i + \sum_g e^{s_{ig} - L_i}\, v_g $$

and keeps both sums as one complex number, so that XLA makes one loop of it and each exponential is
taken once.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.batching import any_in_batch
from .._core.mesh_axes import vary_alike
from .._core.symbolic_sizes import is_symbolic
from ..kernels import Kernel
from ._base import apply_prior
from ._blocks import Block, Parts, sums_fit
from ._softmax_state import finite_shift

Scores = Callable[[Array, Array], Float[Array, " rows"]]

_KEYS = 16  # that one program takes; more take long to compile. And no vector is longer than that
_LEAST = (2**9, 2**24)  # queries, and pairs, for which a longer compilation is worth its while


def is_light(kernel: Kernel, queries: int, keys: int, dim: int) -> bool:
    """Whether weights are not worth storing, and so many that the longer compilation is."""
    if is_symbolic(queries, keys):
        return False
    many = queries >= _LEAST[0] and queries * keys >= _LEAST[1]
    return many and kernel.is_light(dim) and jax.default_backend() == "cpu"


def whole(size: int) -> int:
    """The next size of a block that is cut into whole programs, and whole vectors.

    Rows that end within a vector make XLA's loop over them one of numbers, ten times slower.
    """
    return -(-size // _KEYS) * _KEYS


def add(
    row: Block, column: Block, parts: Parts, keys: int, shift: Array, sums: Array
) -> tuple[Array, Array]:
    """A block more, its weights never stored; the shift is raised where they would overflow.

    Two programs, of the highest scores and of the sums, each in one copy, for they are long: the
    steps of the loop are to sum, and if that does not fit to raise, and to sum again.
    """
    kernel, prior, rule = parts
    size, i = column.points.shape[1], row.low + jnp.arange(row.points.shape[1])

    def scores(key: Array, j: Array) -> Array:
        one = jax.vmap(kernel.log_pair, in_axes=(1, None))(row.points, key)[:, None]
        one = apply_prior(rule.scaled_scores(one), prior, i, j[None])[:, 0]
        return jnp.where(j < keys, one, -jnp.inf) if keys % size else one

    both = functools.partial(_sums, scores, column.points, column.low)
    top = functools.partial(_highest, scores, column.points, column.low)
    raised = 2

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        def raise_it() -> tuple[Array, Array, Array]:
            return vary_alike(jnp.array(raised), state), top(state[1]), state[2]

        def sum_it() -> tuple[Array, Array, Array]:
            more = jnp.stack(both(finite_shift(state[1]), column.values[0]), axis=1)
            done = (state[0] == raised) | ~any_in_batch(~sums_fit(more))
            return jnp.where(done, 3, 0), state[1], more

        return jax.lax.cond(state[0] == 0, raise_it, sum_it)

    first = jnp.where(any_in_batch(jnp.any(jnp.isneginf(shift))), 0, 1)
    start = vary_alike((first, shift, jnp.zeros_like(sums)))
    _, new, more = jax.lax.while_loop(lambda state: state[0] < 3, step, start)
    return new, sums * jnp.exp(shift - finite_shift(new))[:, None] + more


def _highest(
    scores: Scores, points: Float[Array, "dim keys"], low: Array, start: Float[Array, " rows"]
) -> Float[Array, " rows"]:
    """The highest score of each query, and no less than `start`."""

    def merge(state: Array, scores: list[Array], _: Array) -> Array:
        return functools.reduce(jnp.maximum, scores, state)

    return _fold(merge, start, scores, points, low, points[0])


def _sums(
    scores: Scores,
    points: Float[Array, "dim keys"],
    low: Array,
    shift: Float[Array, " rows"],
    values: Float[Array, " keys"],
) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
    """$\\sum_j e^{s_j - L} v_j$ and $\\sum_j e^{s_j - L}$ of each query, L its finite shift."""

    def merge(state: Array, scores: list[Array], values: Array) -> Array:
        weights = [jnp.exp(score - shift) for score in scores]
        mass = functools.reduce(jnp.add, weights)
        total = functools.reduce(
            jnp.add, [weight * value for weight, value in zip(weights, values, strict=True)]
        )
        return state + jax.lax.complex(mass, total)

    start = vary_alike(jax.lax.complex(jnp.zeros_like(shift), jnp.zeros_like(shift)), shift)
    both = _fold(merge, start, scores, points, low, values)
    return both.imag, both.real


def _fold(
    merge: Callable[[Array, list[Array], Array], Array],
    start: Array,
    scores: Scores,
    points: Float[Array, "dim keys"],
    low: Array,
    values: Float[Array, " keys"],
) -> Array:
    """From the left, a few keys at a time; `scores` takes a key, shape (dim,), and its number."""
    dim, keys = points.shape

    def step(state: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
        points, values, numbers = part
        return merge(state, [scores(points[:, g], numbers[g]) for g in range(_KEYS)], values), None

    parts = (
        points.reshape(dim, -1, _KEYS).swapaxes(0, 1),
        values.reshape(-1, _KEYS),
        (low + jnp.arange(keys)).reshape(-1, _KEYS),
    )
    return jax.lax.scan(step, start, parts)[0]
