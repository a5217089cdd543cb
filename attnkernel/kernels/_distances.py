"""Squared distances of pairs of points, in lengthscales.

The difference q − k is taken before anything is squared, so that a common shift of all points
cancels exactly, in float32 too. In many dimensions the points are centred first instead.
"""

import functools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._core.arrays import precise_matmul
from .._core.tracing import any_in_batch, is_at_most, vary_alike


def scaled_squares(
    steps: list[Array], inverse: Float[Array, "*dim"], factor: Float[Array, "dim dim"] | None
) -> Array:
    r"""Returns $r^2 = \|A (q - k) / \ell\|^2$. `steps` holds one array q − k for each coordinate;
    `inverse` is 1/ℓ, `factor` is A, None for the identity."""
    if inverse.ndim:
        return add_up([(step * c) ** 2 for step, c in zip(steps, inverse, strict=True)])
    if factor is not None:
        steps = [add_up([a * step for a, step in zip(row, steps, strict=True)]) for row in factor]
    return add_up([step**2 for step in steps]) * inverse**2


# At most this number of pairs is computed by differences of coordinates: derivatives compile in
# 1.2 s instead of 2.5 s. For 2000² pairs in 3 dimensions, derivatives by products of matrices take
# 0.6 times as long.
MAX_UNROLLED_PAIRS = 2**15
MIN_PRODUCT_DIM = 6  # from which a product of matrices is faster than differences


@eqx.filter_custom_jvp
def pairwise_squares(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    inverse: Float[Array, "*dim"],
    factor: Float[Array, "dim dim"] | None,
    by_product: bool,
) -> Float[Array, "queries keys"]:
    r"""Returns $r^2 = \|A (q - k) / \ell\|^2$ of all pairs. `inverse` is 1/ℓ, `factor` is A, None
    for the identity; `by_product` allows a product of matrices.

    For points u (in lengthscales) of many dimensions, close to their centre, it is
    $|u_q|^2 + |u_k|^2 - 2 u_q \cdot u_k$: its absolute error is ε times the two squares.
    """

    def by_differences() -> Array:
        # each coordinate is an array of its own: a loop over keys reads it in order, and vectorises
        down, across = jax.lax.optimization_barrier((q.T, k.T))
        steps = [a[:, None] - b[None, :] for a, b in zip(down, across, strict=True)]
        return scaled_squares(steps, inverse, factor)

    if not by_product or q.shape[1] < MIN_PRODUCT_DIM or _is_small(q, k):
        return by_differences()
    a, b = (_centre_and_scale(points, _box_centre(k), inverse, factor) for points in (q, k))
    squares_a, squares_b = (jnp.sum(u * u, axis=1, keepdims=True) for u in (a, b))

    def by_matrices() -> Array:
        left = jnp.concatenate([-2.0 * a, squares_a, jnp.ones_like(squares_a)], axis=1)
        right = jnp.concatenate([b, jnp.ones_like(squares_b), squares_b], axis=1)
        return jnp.maximum(precise_matmul(left, right.T), 0.0)

    # up to 128 squared lengthscales the product rounds no worse in float32
    return jax.lax.cond(_squared_norms_are_within(128.0, a, b), by_matrices, by_differences)


@pairwise_squares.def_jvp
def _pairwise_squares_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    r"""Returns `pairwise_squares(*primals)` and its tangent, $\mathrm{d} r^2 =
    2 (u_q - u_k) \cdot (\mathrm{d} u_q - \mathrm{d} u_k)$, with u the points in lengthscales.

    Along one lengthscale it is $2 r^2\, \mathrm{d} \log(1/\ell)$. Otherwise, with points close to
    their centre, it is multiplied out: it is products of matrices, and so is its transpose.
    """
    out, arrays = pairwise_squares(*primals), list(primals[:4])
    moves, inverse = list(tangents[:4]), arrays[2]
    change = jnp.zeros_like(out)
    if not inverse.ndim and moves[2] is not None:
        finite = jnp.where(jnp.isinf(out), 0.0, out)  # pairs so far apart are constants
        known = jnp.where(inverse > 0, inverse, 1.0)  # 0 for the longest ℓ
        change, moves[2] = finite * (2.0 * moves[2] / known), None
    if all(move is None for move in moves):
        return out, change
    moves = [
        jnp.zeros_like(array) if move is None and array is not None else move
        for array, move in zip(arrays, moves, strict=True)
    ]
    q, k, *scale = arrays
    if _is_small(q, k):
        far = jnp.isinf(out)

        def by_differences(q: Array, k: Array, *scale: Array) -> Array:
            # no barrier as in `pairwise_squares`: JAX 0.12 cannot transpose one
            steps = [a[:, None] - b[None, :] for a, b in zip(q.T, k.T, strict=True)]
            return scaled_squares([jnp.where(far, 0.0, step) for step in steps], *scale)

        return out, change + jax.jvp(by_differences, tuple(arrays), tuple(moves))[1]
    a, b = (_centre_and_scale(points, _box_centre(k), *scale) for points in (q, k))
    near = _squared_norms_are_within(1024.0, a, b)  # derivatives are sums over many pairs
    return out, change + jax.lax.cond(
        near, _tangents_by_matrices, _tangents_by_coordinate, arrays, moves
    )


def _is_small(q: Float[Array, "queries dim"], k: Float[Array, "keys dim"]) -> bool:
    """Whether there are at most `MAX_UNROLLED_PAIRS` pairs; False if their number is symbolic."""
    return is_at_most(q.shape[0] * k.shape[0], MAX_UNROLLED_PAIRS)


def _tangents_by_matrices(primals: list, tangents: list) -> Float[Array, "queries keys"]:
    r"""Returns $2 (u_q - u_k) \cdot (\mathrm{d} u_q - \mathrm{d} u_k)$ of all pairs,
    multiplied out into products of matrices, with u the points in lengthscales.
    `primals` are q, k, 1/ℓ, and A of the metric AᵀA or None; `tangents` are theirs."""
    q, k, *scale = primals
    centre = _box_centre(k)

    def in_units(points: Array, *scale: Any) -> Array:
        return _centre_and_scale(points, centre, *scale)

    a, a_dot = jax.jvp(in_units, (q, *scale), (tangents[0], *tangents[2:]))
    b, b_dot = jax.jvp(in_units, (k, *scale), tuple(tangents[1:]))

    # wide operands, and their cotangents, stay wide: XLA's product with a tall one is slow on CPU.
    # Gradient of 8 heads x 2048 x 32: 313 ms, without barriers in this file 404 ms
    def tall(u: Array, last: Array) -> Array:
        return jnp.concatenate([u, last], axis=1)

    def wide(u: Array, last: Array) -> Array:
        return jax.lax.optimization_barrier(tall(u, last).T)

    def along(u: Array, u_dot: Array) -> Array:
        return jnp.sum(u * u_dot, axis=1, keepdims=True)

    one_a, one_b = jnp.ones_like(a[:, :1]), jnp.ones_like(b[:, :1])
    of_q = precise_matmul(tall(-a_dot, along(a, a_dot)), wide(b, one_b))
    of_k = precise_matmul(tall(a, one_a), wide(-b_dot, along(b, b_dot)))
    return 2.0 * (of_q + of_k)


def _tangents_by_coordinate(primals: list, tangents: list) -> Float[Array, "queries keys"]:
    """Returns the tangent of r² for all pairs, summed one coordinate at a time. This function and
    its transpose then hold one array of pairs. `primals` are q, k, 1/ℓ, and A of the metric AᵀA or
    None; `tangents` are theirs."""
    rows, keys, most = primals[0].shape[0], primals[1].shape[0], largest_squarable(primals[0].dtype)

    recomputed = functools.partial(jax.checkpoint, prevent_cse=False)
    none = vary_alike(jnp.zeros((rows, keys), primals[0].dtype), primals, tangents)
    numbers = jnp.arange(primals[0].shape[1])

    def coordinate(q: Array, k: Array, factor: Array | None, at: Array) -> Array:
        def step(column: Array) -> Array:
            return jnp.clip(q[:, column][:, None] - k[:, column][None, :], -most, most)

        if factor is None:
            return step(at)
        row = factor[at]

        def add(total: Array, column: Array) -> tuple[Array, None]:
            return total + row[column] * step(column), None

        return jax.lax.scan(recomputed(add), none, numbers)[0]

    @recomputed
    def add(total: Array, at: Array) -> tuple[Array, None]:
        def square(q: Array, k: Array, inverse: Array, factor: Array | None) -> Array:
            scale = inverse[at] if inverse.ndim else inverse
            return (coordinate(q, k, factor, at) * scale) ** 2

        return total + jax.jvp(square, tuple(primals), tuple(tangents))[1], None

    return jax.lax.scan(add, none, numbers)[0]


def _squared_norms_are_within(
    limit: float, a: Float[Array, "queries dim"], b: Float[Array, "keys dim"]
) -> Bool[Array, ""]:
    """Whether ‖aᵢ‖² + ‖bⱼ‖² ≤ `limit` for all rows of a and b; under `vmap`, in the whole batch.

    In float64 the limit is 512 times as high: the error of log K is then below 2e-11.
    """
    squares_a, squares_b = (jnp.max(jnp.sum(u * u, axis=1)) for u in (a, b))
    limit = limit * (512.0 if a.dtype == jnp.float64 else 1.0)
    return ~any_in_batch(~(squares_a + squares_b <= limit))


def _box_centre(points: Float[Array, "points dim"]) -> Float[Array, " dim"]:
    """Returns (minimum + maximum) / 2 of each coordinate; derivatives take it as constant."""
    middle = 0.5 * jnp.min(points, axis=0) + 0.5 * jnp.max(points, axis=0)
    return jax.lax.stop_gradient(middle)


def _centre_and_scale(
    points: Float[Array, "points dim"],
    centre: Float[Array, " dim"],
    inverse: Float[Array, "*dim"],
    factor: Float[Array, "dim dim"] | None,
) -> Float[Array, "points dim"]:
    """Returns A (x − c) / ℓ of each point x, with c the centre, `inverse` = 1/ℓ and `factor` = A,
    None for the identity; clipped so that squares do not overflow."""
    points = (points - as_row(centre)) * as_row(inverse)
    if factor is not None:
        points = precise_matmul(points, factor.T)
    most = largest_squarable(points.dtype)  # no digit of a difference is left there
    return jnp.clip(points, -most, most)


def largest_squarable(dtype: Any) -> float:
    """Returns the 0.475th power of the largest number of the dtype: sums of its squares do not
    overflow."""
    return float(jnp.finfo(dtype).max) ** 0.475


def add_up(terms: list[Array]) -> Array:
    """Returns the sum of the arrays, which broadcast against each other."""
    return functools.reduce(operator.add, terms)


def as_row(array: Float[Array, "*dim"]) -> Float[Array, "*row"]:
    """Returns a single number as it is, a vector of one per dimension with shape (1, dim)."""
    return array[None, :] if array.ndim else array
