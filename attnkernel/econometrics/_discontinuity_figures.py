r"""The figures of a regression discontinuity from checked data, and the means of both sides.

The lengthscales of a regression discontinuity that minimise its mean squared error.

$$ \ell = \Big( \frac{V_- + V_+}{(B_+ - B_-)^2 + R_- + R_+} \Big)^{1 / (2 o + 3)} $$

It is for the coefficient ν of local polynomials of order o, estimated on either side. V is its
variance, B the bias by the next coefficient, and R the regularisation: three times the variance of
B. Three such steps follow each other: each gives the lengthscale of B in the next.

Every figure is a sum Σ ℓ_i y_i or Σ ℓ_i² e_i² over the rows on one side of a point. The ℓ_i of two
orders at two lengthscales are combined before they are squared, and multiply powers of x.
`LocalFit` of `local` returns sums of labels for one lengthscale, and no ℓ: they are computed here.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import Scalar, precise_matmul
from .._core.rows import Rows
from ..inference import MIN_RELIABLE_COUNT
from ..kernels import Boxcar, Compact, Epanechnikov, Triangular

# of the rule of thumb c σ n^(-1/5) for a density of normal points
PILOT_FACTORS: dict[type[Compact], float] = {Triangular: 2.576, Epanechnikov: 2.34, Boxcar: 1.843}


class SortedRows(NamedTuple):
    """Rows in the order of their inputs; those without weight come last, with the input 0."""

    x: Float[Array, " n"]
    y: Float[Array, "n out"]
    weights: Float[Array, " n"]
    group: Int[Array, " n"]  # of equal inputs, counted from 0

    @classmethod
    def of(
        cls, x: Float[Array, " n"], y: Float[Array, "n out"], weights: Float[Array, " n"]
    ) -> "SortedRows":
        """Sorts rows by x, those without weight last with x = y = 0; numbers groups of equal x."""
        order = jnp.argsort(jnp.where(weights > 0, x, jnp.inf), stable=True)
        x, y, weights = x[order], y[order], weights[order]
        has_weight = weights > 0
        is_new = (jnp.diff(x) != 0) | (jnp.diff(has_weight.astype(int)) != 0)
        group = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(is_new.astype(int))])
        y = jnp.where(has_weight[:, None], y, 0.0)
        return cls(jnp.where(has_weight, x, 0.0), y, weights, group)

    def count_distinct(self, mask: Bool[Array, " n"]) -> Int[Array, ""]:
        """Returns the number of different inputs among the rows of a mask."""
        n = len(self.x)
        return jnp.sum(jax.ops.segment_max(mask.astype(int), self.group, n) > 0)


def kernel_weights(
    rows: SortedRows,
    side: Bool[Array, " n"],
    at: Scalar,
    kernel: type[Compact],
    lengthscale: Scalar,
) -> Float[Array, " n"]:
    """Returns $w_i K((x_i - q) / \\ell)$ of the rows of one side, q = `at`; 0 for other rows."""
    inside = side & (rows.weights > 0)
    distance = jnp.where(inside, rows.x - at, 0.0) / lengthscale
    return jnp.where(inside, rows.weights * jnp.exp(kernel(1.0).log_of(distance**2)), 0.0)


def coefficient_weights(
    rows: SortedRows,
    weights: Float[Array, " n"],
    at: Scalar,
    lengthscale: Scalar,
    order: int,
    power: int,
) -> Float[Array, " n"]:
    r"""Returns ℓ, with $\sum_i \ell_i y_i = h^a \hat\beta_a$, h = `lengthscale`, a = `power`.

    β are the coefficients of the weighted least squares of y on powers of x − q, q = `at`, up to
    `order`. ℓ is the part of power a that is orthogonal to the others, over its square (Frisch and
    Waugh): the last column of a QR decomposition, which XLA does not compile. NaN if there are too
    few different inputs.
    """
    root = jnp.sqrt(weights)
    scaled = jnp.where(weights > 0, rows.x - at, 0.0) / lengthscale
    exponents = [*(a for a in range(order + 1) if a != power), power]
    columns = [root * scaled**exponent for exponent in exponents]
    basis, upper = jnp.linalg.qr(jnp.stack(columns, axis=1))
    is_known = rows.count_distinct(weights > 0) > order
    return jnp.where(is_known, root * basis[:, -1] / upper[-1, -1], jnp.nan)


def matched_residuals(rows: SortedRows, inside: Bool[Array, " n"]) -> Float[Array, "n out"]:
    r"""Returns residuals of the rows `inside` whose squares estimate the variances of their labels.

    $$ e_i = \sqrt{\tfrac{J_i}{J_i + 1}}\, \Big( y_i - \tfrac1{J_i} \sum_{j \in N_i} y_j \Big) $$

    $N_i$ are the three nearest other rows `inside`, and all that are as near as the third; $J_i$ is
    their number. They lie in at most three groups of equal inputs on each side. Rows that are not
    `inside` get 0.
    """
    n = len(rows.x)
    here = inside.astype(rows.y.dtype)
    count = jax.ops.segment_sum(here, rows.group, n)
    total = jax.ops.segment_sum(here[:, None] * rows.y, rows.group, n)
    place = jax.ops.segment_max(jnp.where(inside, rows.x, -jnp.inf), rows.group, n)
    matches = 3  # other rows from which the variance of a label is estimated
    steps = jnp.arange(-matches, matches + 1)
    near = jnp.arange(n)[:, None] + steps[None, :]
    exists = (near >= 0) & (near < n)
    near = jnp.clip(near, 0, n - 1)
    near_count = jnp.where(exists, count[near], 0.0)
    exists = near_count > 0
    distance = jnp.where(exists, jnp.abs(place[near] - place[:, None]), jnp.inf)
    as_near = distance[:, None, :] <= distance[:, :, None]
    others = jnp.sum(jnp.where(as_near, near_count[:, None, :], 0.0), axis=2) - 1.0
    enough = others >= jnp.minimum(matches, jnp.sum(here) - 1.0)
    reach = jnp.min(jnp.where(enough, distance, jnp.inf), axis=1, keepdims=True)
    # distances that rounding tells apart are equal
    is_match = exists & (distance * (1.0 - jnp.finfo(distance.dtype).eps ** 0.5) <= reach)
    matched = jnp.sum(jnp.where(is_match, near_count, 0.0), axis=1)[:, None]
    mean = jnp.sum(jnp.where(is_match[:, :, None], total[near], 0.0), axis=1) / matched
    factor = jnp.sqrt(matched / (matched - 1.0))
    residuals = factor[rows.group] * (rows.y - mean[rows.group])
    return jnp.where(inside[:, None], residuals, 0.0)


class Design(NamedTuple):
    """Rows on both sides of a cutoff, which is at 0, in units of their standard deviations.

    `y_centre`, the mean, is subtracted from the labels. `x_unit` and `y_units` are the standard
    deviations in the units of the data; that of a constant label is 1.
    """

    rows: SortedRows
    sides: Bool[Array, "2 n"]  # below the cutoff, and from it
    x_unit: Scalar
    y_centre: Float[Array, " out"]
    y_units: Float[Array, " out"]

    @classmethod
    def of_data(cls, data: Rows, labels: list[Float[Array, "n 1"]], cutoff: Scalar) -> "Design":
        here = data.row_weights(data.x.dtype)
        has_weight, distance = here > 0, data.x[:, 0] - cutoff
        extent = jnp.max(jnp.where(has_weight, jnp.abs(distance), 0.0))
        distance = distance / extent  # whose squares do not overflow
        spread = jnp.std(distance, where=has_weight, ddof=1)
        y = jnp.concatenate(labels, axis=1)
        centre = jnp.mean(y, axis=0, where=has_weight[:, None])
        y = y - centre[None, :]
        units = jnp.std(y, axis=0, where=has_weight[:, None], ddof=1)
        units = jnp.where(units > 0, units, 1.0)
        rows = SortedRows.of(distance / spread, y / units[None, :], here)
        right = (rows.x >= 0) & (rows.weights > 0)
        sides = jnp.stack([(rows.x < 0) & (rows.weights > 0), right])
        return cls(rows, sides, extent * spread, centre, units)


class SidedFit(NamedTuple):
    """A local polynomial at a point from the rows on one side."""

    weights: Float[Array, " n"]  # of the labels
    corrected_weights: Float[Array, " n"]  # after the correction for bias
    residuals: Float[Array, "n out"]
    inside: Bool[Array, "2 n"]  # rows within h and within b


def sided_fit(
    rows: SortedRows,
    side: Bool[Array, " n"],
    at: Scalar,
    kernel: type[Compact],
    order: int,
    lengthscales: tuple[Scalar, Scalar],
) -> SidedFit:
    r"""Returns the fit of order p with lengthscale h, and its correction by order p + 1 with b.

    $$ \ell^{bc}_i = \ell_i - \ell^{(b)}_{p+1,i} \sum_j \ell_j (x_j - q)^{p+1} $$

    q = `at`; $\ell^{(b)}_{p+1}$ are the weights of the last coefficient. The matches of the
    residuals are within the longer of h and b.
    """
    h, b = lengthscales
    of_h, of_b = (kernel_weights(rows, side, at, kernel, each) for each in (h, b))
    plain = coefficient_weights(rows, of_h, at, h, order, 0)
    last = coefficient_weights(rows, of_b, at, b, order + 1, order + 1)
    scaled = jnp.where(of_h > 0, rows.x - at, 0.0) / b
    corrected = plain - jnp.sum(plain * scaled ** (order + 1)) * last
    inside = jnp.stack([of_h > 0, of_b > 0])
    residuals = matched_residuals(rows, jnp.any(inside, axis=0))
    return SidedFit(plain, corrected, residuals, inside)


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
    """Returns estimated variances of the first label of rows with weight, matched among them; 0 for
    other rows."""
    return matched_residuals(rows, weights > 0)[:, 0] ** 2


def _find_shortest(rows: SortedRows, sides: Bool[Array, "2 n"]) -> Scalar:
    """Returns the least lengthscale of the first steps: 0, or where inputs are repeated the
    distance within which each side has ten different ones."""
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
    """Returns the lengthscale of the fits that estimate variances: c min(1, IQR/1.349) n^(-1/5).

    In units of `rows.x`, whose standard deviation is 1. c is that of the kernel in `PILOT_FACTORS`,
    and n counts different inputs of rows with weight, which come first. A quartile between two rows
    is their mean.
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
    """Returns the fields of a `Discontinuity` that are estimated, by name.

    `lengthscales`: h and b in units of x, None to estimate them; `level`: that of the interval.
    """
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
    """Returns the mean at new inputs `at`, from the rows on the same side, and its band.

    `lengthscales`: h of the mean and b of its bias correction, for both sides, in units of x.
    `level`: the coverage. The keys are `mean`, `centre` (the corrected mean), `standard_error`,
    `lower`, `upper`, `effective_count` and `reliable`, as in `Bands`.
    """
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
