"""Bounds on parameters as a change of variable: any step of any optimiser stays inside.

A leaf with bounds is $\\theta = c + r \\sin z$ (centre c, half-width r, z free). The bound itself
is reached at a finite z, with a zero gradient, so that a minimum on the bound converges as fast
as one inside. (James and Roos, *MINUIT*, 1975.) A leaf without bounds is its own free variable.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from .._core.arrays import is_concrete

EDGE_WIDTH = 1e-3  # in half-widths: a parameter closer to a bound counts as on it


class Box(eqx.Module):
    """Bounds on parameters: two trees of the same structure as the parameters.

    ```python
    >>> box = ak.fitting.Box(jnp.array(0.0), jnp.array(2.0))
    >>> float(box.inside(box.free(jnp.array(1.5))))
    1.5
    >>> box.contains(jnp.array(3.0)), int(box.edges(jnp.array(2.0)))
    (False, 1)
    ```
    """

    lower: PyTree
    upper: PyTree

    def check(self) -> None:
        """Raises `ValueError` unless lower bounds are below upper ones, both finite or neither."""
        for low, high in zip(jax.tree.leaves(self.lower), jax.tree.leaves(self.upper), strict=True):
            if not is_concrete(low, high):
                continue
            low, high = np.asarray(low), np.asarray(high)
            if not np.all((low < high) & (np.isfinite(low) == np.isfinite(high))):
                raise ValueError(
                    f"A lower bound must be below its upper one, both finite or both infinite; "
                    f"got {low.tolist()} and {high.tolist()} (for a lengthscale: the logarithms)."
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
        """Returns parameters θ from free variables z."""

        def leaf(low: Array, high: Array, z: Array) -> Array:
            centre, half, bounded = _centre_and_half_width(low, high)
            return jnp.where(bounded, centre + half * jnp.sin(jnp.where(bounded, z, 0.0)), z)

        return jax.tree.map(leaf, self.lower, self.upper, z)

    def free(self, params: PyTree) -> PyTree:
        """Returns free variables z from parameters θ; those outside are moved just inside."""

        def leaf(low: Array, high: Array, theta: Array) -> Array:
            centre, half, bounded = _centre_and_half_width(low, high)
            inner = jnp.clip((theta - centre) / half, -1 + 10 * EDGE_WIDTH, 1 - 10 * EDGE_WIDTH)
            return jnp.where(bounded, jnp.arcsin(jnp.where(bounded, inner, 0.0)), theta)

        return jax.tree.map(leaf, self.lower, self.upper, params)

    def edges(self, params: PyTree) -> PyTree:
        """Returns −1 for each parameter on its lower bound, 1 on its upper bound, else 0."""

        def leaf(low: Array, high: Array, theta: Array) -> Array:
            centre, half, bounded = _centre_and_half_width(low, high)
            on_edge = bounded & (jnp.abs(theta - centre) >= (1 - EDGE_WIDTH) * half)
            return jnp.where(on_edge, jnp.sign(theta - centre), 0).astype(int)

        return jax.tree.map(leaf, self.lower, self.upper, params)

    def starts(self, params: PyTree, number: int, key: PRNGKeyArray) -> PyTree:
        """Returns `params` and number − 1 further points of the box, along a leading axis.

        A Latin hypercube: each bounded parameter takes evenly spaced values between its bounds,
        in its own random order. Unbounded parameters keep their values.
        """
        levels = (jnp.arange(number - 1) + 0.5) / (number - 1) if number > 1 else jnp.zeros(0)
        leaves, structure = jax.tree.flatten(params)
        keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(leaves))))

        def leaf(low: Array, high: Array, theta: Array, key: PRNGKeyArray) -> Array:
            centre, half, bounded = _centre_and_half_width(low, high)
            columns = jnp.broadcast_to(levels[:, None], (number - 1, theta.size))
            unit = jax.random.permutation(key, columns, independent=True)
            unit = unit.reshape(number - 1, *theta.shape).astype(theta.dtype)
            place = jax.vmap(lambda unit: jnp.where(bounded, centre + half * (2 * unit - 1), theta))
            return jnp.concatenate([theta[None], place(unit)])

        return jax.tree.map(leaf, self.lower, self.upper, params, keys)


def _centre_and_half_width(low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Returns centre, half-width and whether both bounds are finite, for each entry of a leaf.

    `low`, `high`: arrays of lower and upper bounds. Centre 0 and half-width 1 without bounds.
    """
    bounded = jnp.isfinite(low) & jnp.isfinite(high)
    low, high = jnp.where(bounded, low, -1.0), jnp.where(bounded, high, 1.0)
    return 0.5 * (low + high), 0.5 * (high - low), bounded
