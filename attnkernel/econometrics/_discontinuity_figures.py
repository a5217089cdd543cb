"""The figures of a regression discontinuity from checked data, and the means of both sides."""

import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Bool, Float

from .._core.arrays import precise_matmul
from ..inference import MIN_RELIABLE_COUNT
from ..kernels import Compact
from ._discontinuity_lengthscales import select_lengthscales
from ._one_sided_fits import Design, sided_fit


def normal_quantile(level: float, dtype: Any) -> Float[Array, ""]:
    """Returns half the width of an interval of this level, in standard errors."""
    value = statistics.NormalDist().inv_cdf(0.5 + 0.5 * level)
    return jax.device_put(np.asarray(value, dtype))


def compute_figures(
    kernel: type[Compact],
    order: int,
    lengthscales: tuple[Float[Array, ""], Float[Array, ""]] | None,
    cutoff: Float[Array, ""],
    quantile: Float[Array, ""],
    weights: Float[Array, " n"] | Bool[Array, " n"] | None,
    x: Float[Array, "n 1"],
    *labels: Float[Array, "n 1"],
) -> dict[str, Array | None]:
    """Returns the fields of a `Discontinuity` that are estimated; `lengthscales`: None to estimate
    them; `quantile`: half the width of the interval, in standard errors."""
    design = Design.of_data(x, labels, weights, cutoff)
    rows, sides, zero = design.rows, design.sides, jnp.zeros_like(cutoff)
    if lengthscales is None:
        h, b = select_lengthscales(rows, sides, kernel, order)
    else:
        h, b = (each / design.x_unit for each in lengthscales)
    fits = jax.vmap(lambda side: sided_fit(rows, side, zero, kernel, order, (h, b)))(sides)
    jump, corrected = (
        jnp.diff(precise_matmul(weights, rows.y), axis=0)[0] * design.y_units
        for weights in (fits.weights, fits.corrected_weights)
    )
    # the linear term in the jumps: of y itself, or of the ratio of y and the treatment
    slope = jnp.ones(1, jump.dtype)
    if len(labels) == 2:
        slope = jnp.stack([1.0 / jump[1], -jump[0] / jump[1] ** 2])
    estimate = jump[0] if len(labels) == 1 else jump[0] / jump[1]
    centre = estimate + jnp.sum(slope * (corrected - jump))
    squares = (precise_matmul(fits.residuals, slope * design.y_units)) ** 2
    plain, robust = (
        jnp.sqrt(jnp.sum(weights**2 * squares))
        for weights in (fits.weights, fits.corrected_weights)
    )
    counts = jnp.sum(fits.inside.astype(int), axis=2)
    return {
        "estimate": estimate,
        "corrected": centre,
        "standard_error": robust,
        "conventional_error": plain,
        "lower": centre - quantile * robust,
        "upper": centre + quantile * robust,
        "p_value": 2.0 * norm.cdf(-jnp.abs(centre) / robust),
        "lengthscale": h * design.x_unit,
        "bias_lengthscale": b * design.x_unit,
        "rows": jnp.sum(sides.astype(int), axis=1),
        "distinct": jax.vmap(rows.count_distinct)(sides),
        "rows_within": counts[:, 0],
        "bias_rows_within": counts[:, 1],
        "first_stage": jump[1] if len(labels) == 2 else None,
    }


def compute_curves(
    kernel: type[Compact],
    order: int,
    lengthscales: tuple[Float[Array, ""], Float[Array, ""]],
    cutoff: Float[Array, ""],
    quantile: Float[Array, ""],
    weights: Float[Array, " n"] | Bool[Array, " n"] | None,
    at: Float[Array, "m 1"],
    x: Float[Array, "n 1"],
    y: Float[Array, "n 1"],
) -> dict[str, Array]:
    """Returns the mean at new inputs `at`, from the rows on the same side, and its band."""
    design = Design.of_data(x, (y,), weights, cutoff)
    h, b = (length / design.x_unit for length in lengthscales)

    def at_point(point: Float[Array, ""]) -> dict[str, Array]:
        side = design.sides[(point >= 0).astype(int)]
        fit = sided_fit(design.rows, side, point, kernel, order, (h, b))
        labels = design.rows.y[:, 0]
        error = jnp.sqrt(jnp.sum((fit.corrected_weights * fit.residuals[:, 0]) ** 2))
        return {
            "mean": jnp.sum(fit.weights * labels),
            "centre": jnp.sum(fit.corrected_weights * labels),
            "error": error,
            "count": 1.0 / jnp.sum(fit.corrected_weights**2),
        }

    found = jax.lax.map(at_point, (at[:, 0] - cutoff) / design.x_unit)
    unit, middle = design.y_units[0], design.y_centre[0]
    mean, centre = (middle + unit * found[name] for name in ("mean", "centre"))
    error = unit * found["error"]
    return {
        "mean": mean,
        "centre": centre,
        "standard_error": error,
        "lower": centre - quantile * error,
        "upper": centre + quantile * error,
        "effective_count": found["count"],
        "reliable": found["count"] >= MIN_RELIABLE_COUNT,
    }
