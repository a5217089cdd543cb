"""A box of bounds as a change of variable: any step of any optimiser stays inside.

A leaf with bounds is $\\theta = c + r \\sin z$ (centre c, half-width r, z free): the bound itself
is reached at a finite z, with a zero gradient, so that a minimum on the bound converges as fast
as one inside. (James and Roos, *MINUIT*, 1975.) A leaf without bounds is itself.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from .._core.arrays import is_concrete

_EDGE = 1e-3  # of the half-width: closer than this to a bound counts as on it


class Box(eqx.Module):
    """Bounds on parameters: two trees of the same structure as the parameters."""

    lower: PyTree
    upper: PyTree

    def check(self) -> None:
        """Raise `ValueError` if a bound is above its partner, or one of the two infinite alone."""
        for low, high in zip(jax.tree.leaves(self.lower), jax.tree.leaves(self.upper), strict=True):
            if not is_concrete(low, high):
                continue
            low, high = np.asarray(low), np.asarray(high)
            if not np.all((low < high) & (np.isfinite(low) == np.isfinite(high))):
                raise ValueError(
                    f"A lower bound must be below its upper one, both finite or both infinite; "
                    f"got {low.tolist()} and {high.tolist()} (of a lengthscale, the logarithms)."
                )

    def binds(self) -> bool:
        """Whether any known bound is finite."""
        return any(np.any(np.isfinite(np.asarray(low))) for low in jax.tree.leaves(self.lower))

    def contains(self, params: PyTree) -> bool:
        """Whether known parameters lie inside the bounds, edges included."""
        inside = jax.tree.map(
            lambda low, high, theta: bool(jnp.all((low <= theta) & (theta <= high))),
            self.lower,
            self.upper,
            params,
        )
        return all(jax.tree.leaves(inside))

    def inside(self, z: PyTree) -> PyTree:
        """Parameters θ from free variables z."""

        def leaf(low: Array, high: Array, z: Array) -> Array:
            centre, half, bounded = _middle(low, high)
            return jnp.where(bounded, centre + half * jnp.sin(jnp.where(bounded, z, 0.0)), z)

        return jax.tree.map(leaf, self.lower, self.upper, z)

    def free(self, params: PyTree) -> PyTree:
        """Free variables z from parameters θ; what lies outside is moved just inside."""

        def leaf(low: Array, high: Array, theta: Array) -> Array:
            centre, half, bounded = _middle(low, high)
            inner = jnp.clip((theta - centre) / half, -1 + 10 * _EDGE, 1 - 10 * _EDGE)
            return jnp.where(bounded, jnp.arcsin(jnp.where(bounded, inner, 0.0)), theta)

        return jax.tree.map(leaf, self.lower, self.upper, params)

    def edges(self, params: PyTree) -> PyTree:
        """Of each parameter, whether it is bounded and ended on a bound."""

        def leaf(low: Array, high: Array, theta: Array) -> Array:
            centre, half, bounded = _middle(low, high)
            return bounded & (jnp.abs(theta - centre) >= (1 - _EDGE) * half)

        return jax.tree.map(leaf, self.lower, self.upper, params)

    def on_edge(self, params: PyTree) -> Bool[Array, ""]:
        """Whether any bounded parameter ended on a bound."""
        return jnp.any(jnp.stack([jnp.any(leaf) for leaf in jax.tree.leaves(self.edges(params))]))

    def starts(self, params: PyTree, number: int, key: PRNGKeyArray) -> PyTree:
        """`params` and number − 1 further points of the box, stacked along a leading axis.

        A Latin hypercube: each bounded parameter takes evenly spaced values between its bounds,
        in its own random order. Unbounded ones stay where they are.
        """
        levels = (jnp.arange(number - 1) + 0.5) / (number - 1) if number > 1 else jnp.zeros(0)
        leaves, structure = jax.tree.flatten(params)
        keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(leaves))))

        def leaf(low: Array, high: Array, theta: Array, key: PRNGKeyArray) -> Array:
            centre, half, bounded = _middle(low, high)
            columns = jnp.broadcast_to(levels[:, None], (number - 1, theta.size))
            unit = jax.random.permutation(key, columns, independent=True)
            unit = unit.reshape(number - 1, *theta.shape).astype(theta.dtype)
            place = jax.vmap(lambda unit: jnp.where(bounded, centre + half * (2 * unit - 1), theta))
            return jnp.concatenate([theta[None], place(unit)])

        return jax.tree.map(leaf, self.lower, self.upper, params, keys)


def _middle(low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Centre, half-width, and whether there are bounds; 0 and 1 where there are none."""
    bounded = jnp.isfinite(low) & jnp.isfinite(high)
    low, high = jnp.where(bounded, low, -1.0), jnp.where(bounded, high, 1.0)
    return 0.5 * (low + high), 0.5 * (high - low), bounded
