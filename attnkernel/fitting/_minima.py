"""The local minima that searches reached: curvature, Newton steps and distances between models."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from ..objectives._objective import Objective
from ..objectives._rows import pad_data
from ._outcome import Result, Starts


def parameter_distance(model: Any, other: Any) -> float:
    """Returns the largest difference between the parameters of two models."""
    pairs = zip(
        jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)),
        jax.tree.leaves(eqx.filter(other, eqx.is_inexact_array)),
        strict=True,
    )
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


def model_of_start(starts: Starts, i: int) -> Any:
    """Returns the model in which start i ended; on the host, which compiles nothing."""

    def entry(leaf: Any) -> Any:
        return jnp.asarray(np.asarray(leaf)[i]) if eqx.is_array(leaf) else leaf

    return jax.tree.map(entry, starts.end)


def ended_inside(starts: Starts) -> Bool[np.ndarray, " starts"]:
    """Returns whether each start ended inside the bounds, and did not diverge."""
    return ~(np.asarray(starts.at_bound) | (np.asarray(starts.result) == Result.DIVERGED))


def is_convex(curvature: Array) -> bool:
    """Whether a curvature, relative to the objective, is positive beyond rounding.

    It falls with the number of rows: the gain of a lengthscale in leave-one-out as $n^{-4/(d+4)}$.
    """
    return bool(curvature > jnp.finfo(curvature.dtype).eps ** 0.5)


def least_curvature_and_newton_step(
    model: Any, objective: Objective, x: Array, y: Array
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Returns the least eigenvalue of $\nabla^2 L / |L|$ and the length of a Newton step.

    The length is the largest change of a parameter in $(\nabla^2 L)^{-1} \nabla L$. In float32,
    rounding can hide the second derivatives at lengthscales far below the spacing of x. The
    curvature is therefore at most the change of the gradient along the axis of that eigenvalue.
    """
    return _least_curvature_and_newton_step(model, *pad_data(model, x, y, objective))


@eqx.filter_jit
def _least_curvature_and_newton_step(
    model: Any, x: Array, y: Array, objective: Objective
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns `least_curvature_and_newton_step` in one program."""
    params, frozen = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)

    def loss(flat: Array) -> Array:
        return objective(eqx.combine(unravel(flat), frozen), x, y)

    gradient = jax.grad(loss)

    def slope_and_both(flat: Array) -> tuple[Array, tuple[Array, Array]]:
        value, slope = jax.value_and_grad(loss)(flat)
        return slope, (value, slope)

    hessian, (value, slope) = jax.jacfwd(slope_and_both, has_aux=True)(flat)
    curvature, axes = jnp.linalg.eigh(hessian)
    step = axes @ ((slope @ axes) / jnp.where(curvature == 0, 1.0, curvature))
    shift = jnp.finfo(flat.dtype).eps ** 0.25 * axes[:, 0]
    above, below = jax.lax.map(gradient, jnp.stack([flat + shift, flat - shift]))
    change = (above - below) @ shift / (2.0 * shift @ shift)
    return jnp.minimum(curvature[0], change) / jnp.abs(value), jnp.max(jnp.abs(step))
