"""The derivative of a minimiser by the implicit function theorem."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from ._problem import Problem


def implicit_minimiser(z: Any, problem: Problem) -> Any:
    r"""Returns z, a minimum of the loss L, with the derivative that a minimiser has.

    $$ \mathrm{d} z = -\big(\nabla^2_z L\big)^{+}\, \mathrm{d} \nabla_z L $$

    to first order, in forward and reverse mode.
    """
    z, fixed = stop_gradient((z, problem))
    flat, unravel = ravel_pytree(z)

    def slope(flat: Array, problem: Problem) -> Array:
        return jax.grad(lambda flat: problem.loss(unravel(flat)))(flat)

    hessian = jax.jacrev(slope)(flat, fixed)
    slope_here = slope(flat, problem)
    change = slope_here - jax.lax.stop_gradient(slope_here)  # 0, with the derivative of the slope
    return unravel(flat - jnp.linalg.pinv(hessian, hermitian=True) @ change)


def stop_gradient(tree: Any) -> Any:
    """Returns the tree as constants to differentiation."""
    return jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, tree
    )
