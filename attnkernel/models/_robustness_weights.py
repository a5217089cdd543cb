r"""Robustness weights: how much the label of each row counts, by its residual from a smoother.

$$ \delta_j \leftarrow w\Big( \frac{r_j}{\hat\sigma} \Big), \qquad
   r_j = y_j - \hat f_\delta(x_j), \qquad \hat\sigma = \frac{\operatorname{med}_j |r_j|}{0.6745} $$
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._core.regression_data import is_positive
from ..losses import MEDIAN_OF_ABSOLUTE_NORMAL, RobustLoss
from ._linear_smoother import LinearSmoother

# A median of |r| that is smaller than this share of their mean tells no scale: R's lowess stops
# where six medians are below 1e-7 of the mean.
MIN_MEDIAN_SHARE = 1e-7 / 6.0


def iterate_weights(
    model: LinearSmoother,
    loss: RobustLoss,
    iterations: int,
    x: Float[Array, "n dim"],
    y: Float[Array, " n"],
    weights: Float[Array, " n"] | Bool[Array, " n"] | None,
) -> Float[Array, " n"]:
    """Returns the robustness weights δ of labels y after `iterations` fits; δ = 1 before these.

    `weights`: of rows; those of weight 0 do not count. One scan: the fit is compiled once.
    """

    def reweight(delta: Float[Array, " n"], _: None) -> tuple[Float[Array, " n"], None]:
        fitted = model(x, x, y, weights=multiply_weights(weights, delta))
        scale, residuals = residual_scale(y - fitted.astype(y.dtype), weights)
        is_known = scale > 0
        found = loss.weight(residuals / jnp.where(is_known, scale, 1.0))
        return jnp.where(is_known, found, delta), None

    return jax.lax.scan(reweight, jnp.ones_like(y), length=iterations)[0]


def residual_scale(
    residuals: Float[Array, " n"], weights: Float[Array, " n"] | Bool[Array, " n"] | None
) -> tuple[Float[Array, ""], Float[Array, " n"]]:
    r"""Returns $\hat\sigma$, 0 where more than half of the residuals are 0, and the residuals.

    Residuals of rows of weight 0, and those of rows without any label in reach, are 0.
    """
    is_known = ~jnp.isnan(residuals)
    if weights is not None:
        is_known = is_known & is_positive(weights)
    residuals = jnp.where(is_known, residuals, 0.0)
    counts = jnp.ones_like(residuals) if weights is None else weights.astype(residuals.dtype)
    sizes = jnp.abs(residuals)
    median = weighted_median(sizes, counts)
    mean = jnp.sum(counts * sizes) / jnp.sum(counts)
    has_scale = median > MIN_MEDIAN_SHARE * mean
    return jnp.where(has_scale, median / MEDIAN_OF_ABSOLUTE_NORMAL, 0.0), residuals


def weighted_median(values: Float[Array, " n"], weights: Float[Array, " n"]) -> Float[Array, ""]:
    """Returns the median of values, in which one of weight k counts as k equal values.

    The median of an even number of values is the mean of the two in the middle. Values of weight 0
    do not count. Sums of weights that equal half of all to rounding count as half.
    """
    order = jnp.argsort(jax.lax.stop_gradient(values))
    counted = weights[order]
    below = jnp.cumsum(counted)
    half, slack = 0.5 * below[-1], 16.0 * jnp.finfo(values.dtype).eps * below[-1]
    lower = order[jnp.argmax((below >= half - slack) & (counted > 0))]
    upper = order[jnp.argmax((below > half + slack) & (counted > 0))]
    # sums, not gathers, whose derivative is a scatter: searches compile in 0.8 s less
    rows = jnp.arange(len(values))
    lower, upper = (jnp.sum(jnp.where(rows == row, values, 0.0)) for row in (lower, upper))
    return 0.5 * (lower + upper)


def multiply_weights(
    weights: Float[Array, " n"] | Bool[Array, " n"] | None, delta: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Returns the product of the weights of rows and their robustness weights."""
    if weights is None:
        return delta
    return jnp.where(is_positive(weights), weights.astype(delta.dtype) * delta, 0.0)
