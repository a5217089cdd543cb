"""Bounds on parameters as a change of variable: any step of any optimiser stays inside.

A leaf with bounds is $\\theta = c + r \\sin z$ (centre c, half-width r). The bound itself
is reached at a finite z, with a zero gradient, so that a minimum on the bound converges as fast
as one inside. (James and Roos, *MINUIT*, 1975.) A leaf without bounds is its own z.

The *free variables* of this package are these z: each may be any real number. The `search_box` of a
model uses "free" in another sense: it says so of a parameter without bounds.
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from .._core.arrays import AnyArray, as_numpy_if_concrete, is_concrete, namespace_of

EDGE_WIDTH = 1e-3  # in half-widths: a parameter closer to a bound counts as on it


class Box(eqx.Module):
    """Bounds on parameters: two trees of the same structure as the parameters.

    Both bounds of a parameter are finite, or both are infinite: it is then unbounded.

    ```python
    >>> box = ak.fitting.Box(jnp.array(0.0), jnp.array(2.0))
    >>> float(box.constrain(box.unconstrain(jnp.array(1.5))))
    1.5
    >>> box.contains(jnp.array(3.0)), int(box.edges(jnp.array(2.0)))
    (False, 1)
    ```
    """

    lower: PyTree
    upper: PyTree

    def check(self) -> None:
        """Raises `ValueError` unless lower bounds are below upper ones, both finite or neither.

        Traced bounds are not checked.
        """
        for low, high in zip(jax.tree.leaves(self.lower), jax.tree.leaves(self.upper), strict=True):
            if not is_concrete(low, high):
                continue
            low, high = np.asarray(low), np.asarray(high)
            if not np.all((low < high) & (np.isfinite(low) == np.isfinite(high))):
                raise ValueError(
                    f"A lower bound must be below its upper one, both finite or both infinite; "
                    f"got {low.tolist()} and {high.tolist()} (for a lengthscale: the logarithms)."
                )

    def has_bounds(self) -> bool:
        """Whether any parameter has finite bounds. They must be concrete, not traced."""
        return any(np.any(np.isfinite(np.asarray(low))) for low in jax.tree.leaves(self.lower))

    def contains(self, params: PyTree) -> bool:
        """Whether all parameters are inside or on their bounds. They must be concrete."""
        inside = jax.tree.map(
            lambda low, high, theta: bool(np.all((low <= theta) & (theta <= high))),
            *map(as_numpy_if_concrete, (self.lower, self.upper, params)),
        )
        return all(jax.tree.leaves(inside))

    def constrain(self, z: PyTree) -> PyTree:
        """Returns the parameters θ inside the bounds at free variables z, any real numbers."""

        def leaf(low: AnyArray, high: AnyArray, z: AnyArray) -> AnyArray:
            centre, half, bounded = _centre_and_half_width(low, high, z)
            xp = namespace_of(z)
            return xp.where(bounded, centre + half * xp.sin(xp.where(bounded, z, 0.0)), z)

        return jax.tree.map(leaf, self.lower, self.upper, z)

    def unconstrain(self, params: PyTree) -> PyTree:
        """Returns the free variables z of parameters θ: the inverse of `constrain`.

        Parameters outside their bounds, or within 1 % of the half-width of one, are first moved to
        that distance inside: on the bound dθ/dz is 0. An unbounded θ is its own z.
        """

        def leaf(low: AnyArray, high: AnyArray, theta: AnyArray) -> AnyArray:
            centre, half, bounded = _centre_and_half_width(low, high, theta)
            xp = namespace_of(theta)
            inner = xp.clip((theta - centre) / half, -1 + 10 * EDGE_WIDTH, 1 - 10 * EDGE_WIDTH)
            return xp.where(bounded, xp.arcsin(xp.where(bounded, inner, 0.0)), theta)

        return jax.tree.map(leaf, self.lower, self.upper, params)

    def edges(self, params: PyTree) -> PyTree:
        """Returns −1 for each parameter on its lower bound, 1 on its upper bound, else 0.

        Parameters closer than 0.1 % of the half-width to a bound, or outside it, count as on it.
        """

        def leaf(low: AnyArray, high: AnyArray, theta: AnyArray) -> AnyArray:
            centre, half, bounded = _centre_and_half_width(low, high, theta)
            xp = namespace_of(theta)
            on_edge = bounded & (xp.abs(theta - centre) >= (1 - EDGE_WIDTH) * half)
            # int32, which a program without x64 reads as it is
            return xp.where(on_edge, xp.sign(theta - centre), 0).astype(np.int32)

        return jax.tree.map(leaf, self.lower, self.upper, params)

    def starts(self, params: PyTree, number: int) -> PyTree:
        """Returns `params` and number − 1 further points of the box, along a leading axis.

        A Latin hypercube: each bounded parameter takes evenly spaced values between its bounds,
        in its own random order, the same in each call. Unbounded parameters keep their values.
        """
        random = np.random.default_rng(0)
        levels = 2.0 * (np.arange(number - 1) + 0.5) / max(number - 1, 1) - 1.0

        def leaf(low: AnyArray, high: AnyArray, theta: AnyArray) -> AnyArray:
            xp = namespace_of(theta)
            places = random.permuted(np.tile(levels[:, None], theta.size), axis=0)
            places = places.reshape(number - 1, *theta.shape).astype(theta.dtype)
            centre, half, bounded = _centre_and_half_width(low, high, places)
            unmoved = xp.broadcast_to(theta, places.shape)
            others = xp.where(bounded, centre + half * places, unmoved)
            return xp.concatenate([theta[None], others])

        return jax.tree.map(leaf, self.lower, self.upper, params)


def _centre_and_half_width(
    low: AnyArray, high: AnyArray, like: AnyArray
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Returns centre, half-width and whether both bounds are finite, for each entry of a leaf.

    `low`, `high`: arrays of lower and upper bounds; `like`: an array whose shape the results have.
    Centre 0 and half-width 1 without bounds.
    """
    xp = namespace_of(low)
    bounded = xp.isfinite(low) & xp.isfinite(high)
    low, high = xp.where(bounded, low, -1.0), xp.where(bounded, high, 1.0)
    found = (0.5 * (low + high), 0.5 * (high - low), bounded)
    centre, half, bounded = (xp.broadcast_to(part, like.shape) for part in found)
    return centre, half, bounded
