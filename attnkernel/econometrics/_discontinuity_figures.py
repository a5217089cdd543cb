r"""The figures of a regression discontinuity from checked data, and the means of both sides.

The lengthscales of a regression discontinuity that minimise its mean squared error.

$$ \ell = \Big( \frac{V_- + V_+}{(B_+ - B_-)^2 + R_- + R_+} \Big)^{1 / (2 o + 3)} $$

It is for the coefficient ν of local polynomials of order o, estimated on either side. V is its
variance, B the bias by the next coefficient, and R the regularisation: three times the variance of
B. Three such steps follow each other: each gives the lengthscale of B in the next.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Bool, Float

from .._core.arrays import Scalar, precise_matmul
from .._core.rows import Rows
from ..inference import MIN_RELIABLE_COUNT
from ..kernels import Boxcar, Compact, Epanechnikov, Triangular
from ._one_sided_fits import (
    Design,
    SortedRows,
    coefficient_weights,
    kernel_weights,
    matched_residuals,
    sided_fit,
)

# of the rule of thumb c σ n^(-1/5) for a density of normal points
PILOT_FACTORS: dict[type[Compact], float] = {Triangular: 2.576, Epanechnikov: 2.34, Boxcar: 1.843}


def select_lengthscales(
    rows: SortedRows, sides: Bool[Array, "2 n"], kernel: type[Compact], order: int
) -> tuple[Scalar, Scalar]:
    """Returns h of the estimate and b of its bias, in units of `rows.x`.

    `rows`: in units of their standard deviation, the cutoff at 0; `sides`: below, and from it on.
    """
    cutoff = jnp.zeros((), rows.x.dtype)
    reach = jnp.max(jnp.where(sides, jnp.abs(rows.x)[None, :], 0.0), axis=1)  # of each side
    longest, shortest = jnp.max(reach), _find_shortest(rows, sides)
    pilot = jnp.maximum(jnp.minimum(_pilot_lengthscale(rows, kernel), longest), shortest)
    of_pilot = jax.vmap(lambda side: kernel_weights(rows, side, cutoff, kernel, pilot))(sides)
    noise = jax.vmap(lambda weights: _estimate_variances(rows, weights))(of_pilot)

    def step(terms: int, power: int, of_bias: Float[Array, "2"], regularised: bool) -> Array:
        """Returns the lengthscale of coefficient ν = `power` of fits of order o = `terms`.

        `of_bias`: the lengthscale on either side of the fits that estimate coefficient o + 1.
        """

        def of_side(
            side: Array, weights: Array, noise: Array, length: Array
        ) -> tuple[Array, Array, Array]:
            """Returns V, B and R of one side."""
            plain = coefficient_weights(rows, weights, cutoff, pilot, terms, power)
            constant = jnp.sum(plain * jnp.where(weights > 0, rows.x / pilot, 0.0) ** (terms + 1))
            variance = (2 * power + 1) * pilot * jnp.sum(plain**2 * noise)
            weights = kernel_weights(rows, side, cutoff, kernel, length)
            last = coefficient_weights(rows, weights, cutoff, length, terms + 1, terms + 1)
            last = last / length ** (terms + 1)
            left = 2 * (terms + 1 - power)
            bias = math.sqrt(left) * constant * jnp.sum(last * rows.y[:, 0])
            if not regularised:
                return variance, bias, jnp.zeros_like(bias)
            spread = jnp.sum(last**2 * _estimate_variances(rows, weights))
            return variance, bias, 3 * left * constant**2 * spread

        variance, bias, penalty = jax.vmap(of_side)(sides, of_pilot, noise, of_bias)
        squares = (bias[1] - bias[0]) ** 2 + jnp.sum(penalty)
        length = (jnp.sum(variance) / squares) ** (1.0 / (2 * terms + 3))
        return jnp.minimum(length, longest)

    p, q = order, order + 1
    whole = reach * (1.0 + jnp.finfo(reach.dtype).eps ** 0.5)  # the farthest row has weight
    first = jnp.maximum(step(q + 1, q + 1, whole, False), shortest)
    b = step(q, p + 1, jnp.stack([first, first]), True)
    return step(p, 0, jnp.stack([b, b]), True), b


def _estimate_variances(rows: SortedRows, weights: Float[Array, " n"]) -> Float[Array, " n"]:
    """Returns estimated variances of the labels of rows with weight, matched among them."""
    return matched_residuals(rows, weights > 0)[:, 0] ** 2


def _find_shortest(rows: SortedRows, sides: Bool[Array, "2 n"]) -> Scalar:
    """Returns the least lengthscale of the first steps: 0, or where inputs are repeated the
    distance within which either side has ten different ones."""
    counts = jnp.sum(sides.astype(int), axis=1)
    distinct = jax.vmap(rows.count_distinct)(sides)
    min_inputs = 10  # different inputs in the windows of the first steps, then
    left, needed = distinct[0], jnp.minimum(min_inputs, distinct)
    groups = jnp.stack([left - needed[0], left + needed[1] - 1])
    first = jnp.searchsorted(rows.group, groups)
    # the row at the end has weight too
    ends = jnp.abs(rows.x[first]) * (1.0 + jnp.finfo(rows.x.dtype).eps ** 0.5)
    repeated_share = 0.2  # of the rows of a side, from which windows hold a minimum of inputs
    is_repeated = jnp.any(distinct <= (1.0 - repeated_share) * counts)
    return jnp.where(is_repeated, jnp.max(ends), 0.0)


def _pilot_lengthscale(rows: SortedRows, kernel: type[Compact]) -> Scalar:
    """Returns the lengthscale of the fits that estimate variances: c min(σ, IQR/1.349) n^(-1/5).

    σ is 1, and n counts different inputs. A quartile between two rows is their mean.
    """
    has_weight = rows.weights > 0
    n = jnp.sum(has_weight.astype(int))
    ranks = jnp.stack([n, 3 * n])
    low, high = jnp.floor_divide(ranks + 3, 4) - 1, jnp.floor_divide(ranks, 4)
    quartiles = 0.5 * (rows.x[low] + rows.x[high])
    spread = jnp.minimum(1.0, (quartiles[1] - quartiles[0]) / 1.349)
    count = rows.count_distinct(has_weight).astype(rows.x.dtype)
    return PILOT_FACTORS[kernel] * spread * count ** (-0.2)


def compute_figures(
    kernel: type[Compact],
    order: int,
    lengthscales: tuple[Scalar, Scalar] | None,
    cutoff: Scalar,
    level: Scalar,
    data: Rows,
    treatment: Float[Array, "n 1"] | None = None,
) -> dict[str, Array | None]:
    """Returns the fields of a `Discontinuity` that are estimated; `lengthscales`: None to estimate
    them; `level`: that of the interval."""
    labels = [data.y] if treatment is None else [data.y, treatment]
    design = Design.of_data(data, labels, cutoff)
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
    width = norm.ppf(0.5 + 0.5 * level) * robust
    return {
        "estimate": estimate,
        "corrected": centre,
        "standard_error": robust,
        "conventional_error": plain,
        "lower": centre - width,
        "upper": centre + width,
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
    lengthscales: tuple[Scalar, Scalar],
    cutoff: Scalar,
    level: Scalar,
    at: Float[Array, "m 1"],
    rows: Rows,
) -> dict[str, Array]:
    """Returns the mean at new inputs `at`, from the rows on the same side, and its band."""
    design = Design.of_data(rows, [rows.y], cutoff)
    h, b = (length / design.x_unit for length in lengthscales)

    def at_point(point: Scalar) -> tuple[Array, ...]:
        side = design.sides[(point >= 0).astype(int)]
        fit = sided_fit(design.rows, side, point, kernel, order, (h, b))
        weights, labels = fit.corrected_weights, design.rows.y[:, 0]
        error = jnp.sqrt(jnp.sum((weights * fit.residuals[:, 0]) ** 2))
        count = 1.0 / jnp.sum(weights**2)
        return jnp.sum(fit.weights * labels), jnp.sum(weights * labels), error, count

    *found, count = jax.lax.map(at_point, (at[:, 0] - cutoff) / design.x_unit)
    mean, centre, error = (design.y_units[0] * each for each in found)
    mean, centre = design.y_centre[0] + mean, design.y_centre[0] + centre
    width = norm.ppf(0.5 + 0.5 * level) * error
    return {
        "mean": mean,
        "centre": centre,
        "standard_error": error,
        "lower": centre - width,
        "upper": centre + width,
        "effective_count": count,
        "reliable": count >= MIN_RELIABLE_COUNT,
    }
