r"""Newton's method for a concave function of a few numbers, and the derivative of its maximum.

$$ \beta \leftarrow \beta + t\, H^{-1} g, \qquad g = \nabla f(\beta), \quad
   H = -\nabla^2 f(\beta) $$
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core.cholesky import cholesky_solver


class Expansion(NamedTuple):
    """A concave function at a point: its value, its gradient, and its negative Hessian."""

    value: Float[Array, ""]
    gradient: Float[Array, " terms"]
    curvature: Float[Array, "terms terms"]


class Maximum(NamedTuple):
    """Where a concave function is largest, and the inverse of its negative Hessian there."""

    point: Float[Array, " terms"]
    inverse: Float[Array, "terms terms"]


class _Search(NamedTuple):
    """The best point so far, the next step and its length, and whether it is the last.

    `gain` is $g^\top H^{-1} g$, twice the gain that the quadratic expansion promises.
    """

    point: Float[Array, " terms"]
    value: Float[Array, ""]
    inverse: Float[Array, "terms terms"]
    step: Float[Array, " terms"]
    length: Float[Array, ""]
    gain: Float[Array, ""]
    steps: Int[Array, ""]
    is_last: Bool[Array, ""]


def maximise(
    expand: Callable[[Float[Array, " terms"]], Expansion], start: Float[Array, " terms"]
) -> Maximum:
    """Returns the maximum, to rounding, in one `while_loop`, with no derivative in reverse mode.

    A step that gains too little is halved.
    """
    eps = float(jnp.finfo(start.dtype).eps)
    zero, none = jnp.zeros((), start.dtype), jnp.zeros_like(start)
    eye = jnp.eye(len(start), dtype=start.dtype)

    sufficient_share = 1e-4  # of the gain that the gradient promises, from which a step is accepted

    def take_step(search: _Search) -> _Search:
        trial = search.point + search.length * search.step
        found = expand(trial)
        slack = 16.0 * eps * (1.0 + jnp.abs(search.value))
        needed = sufficient_share * search.length * search.gain - slack
        is_accepted = (search.steps == 0) | (found.value >= search.value + needed)
        inverse = solve_positive_definite(found.curvature, eye)
        step = jnp.sum(inverse * found.gradient[None, :], axis=1)
        gain, count = jnp.dot(found.gradient, step), search.steps + 1
        is_last = ~(gain > eps * found.curvature[0, 0])
        parts = (trial, found.value, inverse, step, jnp.ones_like(zero), gain)
        accepted = _Search(*parts, count, is_last)
        halved = search._replace(length=0.5 * search.length, steps=count)
        return jax.tree.map(lambda a, b: jnp.where(is_accepted, a, b), accepted, halved)

    max_newton_steps = 100  # 4 to 8 in most windows, about 40 where labels are separated

    def goes_on(search: _Search) -> Bool[Array, ""]:
        return ~search.is_last & (search.steps < max_newton_steps)

    begin = _Search(start, zero, eye, none, zero, zero, jnp.zeros((), int), jnp.zeros((), bool))
    end = jax.lax.while_loop(goes_on, take_step, begin)
    point = end.point + end.length * end.step
    point = jnp.where(jnp.all(jnp.isfinite(point)), point, end.point)
    return Maximum(point, end.inverse)


def with_derivatives(
    gradient: Callable[[Float[Array, " terms"]], Float[Array, " terms"]], maximum: Maximum
) -> Float[Array, " terms"]:
    r"""Returns the maximum with its derivatives of first and second order, in either mode.

    $$ \mathrm{d} \hat\beta = H^{-1}\, \mathrm{d} g $$

    `gradient`: that of the function, and of what it depends on; `maximum`: a constant. Two steps
    with a constant Hessian change nothing but derivatives: the error of the first step is of second
    order in a change of what the function depends on, that of the next one of third order.
    (`jax.lax.custom_root` loses second derivatives inside `jax.lax.map`.)
    """
    point = maximum.point
    for _ in range(2):
        point = point + jnp.matmul(maximum.inverse, gradient(point), precision="highest")
    return point


def solve_positive_definite(
    matrix: Float[Array, "terms terms"], right: Float[Array, " terms *columns"]
) -> Float[Array, " terms *columns"]:
    """Returns the solution of a positive definite system, scaled to a diagonal of 1.

    The rounding of the factorisation is added to the diagonal, which is then positive definite.
    """
    terms, eps = len(right), float(jnp.finfo(right.dtype).eps)
    diagonal = jax.lax.stop_gradient(jnp.diagonal(matrix))
    unit = jax.lax.rsqrt(jnp.where(diagonal > 0, diagonal, 1.0))
    scaled = matrix * unit[:, None] * unit[None, :]
    scaled = scaled + 4 * terms * eps * jnp.eye(terms, dtype=matrix.dtype)
    columns = right.reshape(terms, -1) * unit[:, None]
    return (cholesky_solver(scaled)(columns) * unit[:, None]).reshape(right.shape)
