"""The lengthscale of one column, between the bounds of a fit: what bootstraps choose it among."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._core.regression_data import is_positive
from ..models import LinearSmoother

SMALL_STEP = 0.01  # of the range of a column


def move_along_column(
    model: LinearSmoother,
    weights: Array | None,
    column: Int[Array, ""],
    holds_categories: bool,
    x: Float[Array, "n dim"],
) -> Callable[[Float[Array, ""]], LinearSmoother]:
    r"""Returns the model as a function of a share, from 0 to 1, of the way between two bounds.

    $$ z(s) = z_{\mathrm{low}} + s\, (z_{\mathrm{high}} - z_{\mathrm{low}}) $$

    z are the unconstrained parameters, such as log ℓ, on which the kernel of two points depends
    that differ in this column alone. All others stay as they are, as do those without bounds.
    """
    lower, upper = model.search_box(x, weights)
    inside = x if weights is None else jnp.where(is_positive(weights)[:, None], x, x[:1])
    extent = jnp.max(inside[:, column]) - jnp.min(inside[:, column])
    step = jnp.ones((), x.dtype) if holds_categories else SMALL_STEP * extent

    def drop_of_score(model: Any) -> Float[Array, ""]:
        kernel, point = model.kernel, x[0]
        moved = point.at[column].add(step)
        return kernel.log_pair(point, moved) - kernel.log_pair(point, point)

    slopes = eqx.filter_grad(drop_of_score)(model)

    def at(share: Float[Array, ""]) -> LinearSmoother:
        def move(z: Array, slope: Array | None, low: Array, high: Array) -> Array:
            if slope is None:
                return z
            is_moved = (slope != 0) & jnp.isfinite(low) & jnp.isfinite(high)
            low, high = (jnp.where(is_moved, bound, z) for bound in (low, high))
            return (low + share * (high - low)).astype(z.dtype)

        parameters, rest = eqx.partition(model, eqx.is_inexact_array)
        parts = (eqx.filter(each, eqx.is_inexact_array) for each in (slopes, lower, upper))
        return eqx.combine(jax.tree.map(move, parameters, *parts), rest)

    return at
