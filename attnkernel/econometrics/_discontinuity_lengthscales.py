r"""The lengthscales of a regression discontinuity that minimise its mean squared error.

$$ \ell = \Big( \frac{V_- + V_+}{(B_+ - B_-)^2 + R_- + R_+} \Big)^{1 / (2 o + 3)} $$

It is for the coefficient ν of local polynomials of order o, estimated on either side. V is its
variance, B the bias by the next coefficient, and R the regularisation: three times the variance of
B. Three such steps follow each other: each gives the lengthscale of B in the next.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..kernels import Boxcar, Compact, Epanechnikov, Triangular
from ._one_sided_fits import Rows, coefficient_weights, kernel_weights, matched_residuals

# of the rule of thumb c σ n^(-1/5) for a density of normal points
PILOT_FACTORS: dict[type[Compact], float] = {Triangular: 2.576, Epanechnikov: 2.34, Boxcar: 1.843}
REPEATED_SHARE = 0.2  # of the rows of a side, from which windows hold a minimum of inputs
MIN_INPUTS = 10  # different inputs in the windows of the first steps, then


class _Step(NamedTuple):
    """V, B and R of one side."""

    variance: Float[Array, ""]
    bias: Float[Array, ""]
    penalty: Float[Array, ""]


def select_lengthscales(
    rows: Rows,
    sides: Bool[Array, "2 n"],
    kernel: type[Compact],
    order: int,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns h of the estimate and b of its bias, in units of `rows.x`.

    `rows`: in units of their standard deviation, the cutoff at 0; `sides`: below, and from it on.
    """
    cutoff = jnp.zeros((), rows.x.dtype)
    reach = jax.vmap(lambda side: _find_farthest(rows, side))(sides)
    longest, shortest = jnp.max(reach), _find_shortest(rows, sides)
    pilot = jnp.maximum(jnp.minimum(_pilot_lengthscale(rows, kernel), longest), shortest)
    of_pilot = jax.vmap(lambda side: kernel_weights(rows, side, cutoff, kernel, pilot))(sides)
    noise = jax.vmap(lambda weights: _estimate_variances(rows, weights))(of_pilot)

    def step(terms: int, power: int, of_bias: Float[Array, "2"], regularised: bool) -> Array:
        """Returns the lengthscale of coefficient ν = `power` of fits of order o = `terms`.

        `of_bias`: the lengthscale on either side of the fits that estimate coefficient o + 1.
        """

        def of_side(side: Array, weights: Array, noise: Array, length: Array) -> _Step:
            plain = coefficient_weights(rows, weights, cutoff, pilot, terms, power)
            constant = jnp.sum(plain * jnp.where(weights > 0, rows.x / pilot, 0.0) ** (terms + 1))
            variance = (2 * power + 1) * pilot * jnp.sum(plain**2 * noise)
            weights = kernel_weights(rows, side, cutoff, kernel, length)
            last = coefficient_weights(rows, weights, cutoff, length, terms + 1, terms + 1)
            last = last / length ** (terms + 1)
            left = 2 * (terms + 1 - power)
            bias = math.sqrt(left) * constant * jnp.sum(last * rows.y[:, 0])
            if not regularised:
                return _Step(variance, bias, jnp.zeros_like(bias))
            spread = jnp.sum(last**2 * _estimate_variances(rows, weights))
            return _Step(variance, bias, 3 * left * constant**2 * spread)

        found = jax.vmap(of_side)(sides, of_pilot, noise, of_bias)
        squares = (found.bias[1] - found.bias[0]) ** 2 + jnp.sum(found.penalty)
        length = (jnp.sum(found.variance) / squares) ** (1.0 / (2 * terms + 3))
        return jnp.minimum(length, longest)

    p, q = order, order + 1
    whole = reach * (1.0 + jnp.finfo(reach.dtype).eps ** 0.5)  # the farthest row has weight
    first = jnp.maximum(step(q + 1, q + 1, whole, False), shortest)
    b = step(q, p + 1, jnp.stack([first, first]), True)
    return step(p, 0, jnp.stack([b, b]), True), b


def _estimate_variances(rows: Rows, weights: Float[Array, " n"]) -> Float[Array, " n"]:
    """Returns estimated variances of the labels of rows with weight, matched among them."""
    return matched_residuals(rows, weights > 0)[:, 0] ** 2


def _find_farthest(rows: Rows, side: Bool[Array, " n"]) -> Float[Array, ""]:
    """Returns the largest distance of a row of the side to the cutoff."""
    return jnp.max(jnp.where(side, jnp.abs(rows.x), 0.0))


def _find_shortest(rows: Rows, sides: Bool[Array, "2 n"]) -> Float[Array, ""]:
    """Returns the least lengthscale of the first steps: 0, or where inputs are repeated the
    distance within which either side has ten different ones."""
    counts = jnp.sum(sides.astype(int), axis=1)
    distinct = jax.vmap(rows.count_distinct)(sides)
    left, needed = distinct[0], jnp.minimum(MIN_INPUTS, distinct)
    groups = jnp.stack([left - needed[0], left + needed[1] - 1])
    first = jnp.searchsorted(rows.group, groups)
    # the row at the end has weight too
    ends = jnp.abs(rows.x[first]) * (1.0 + jnp.finfo(rows.x.dtype).eps ** 0.5)
    is_repeated = jnp.any(distinct <= (1.0 - REPEATED_SHARE) * counts)
    return jnp.where(is_repeated, jnp.max(ends), 0.0)


def _pilot_lengthscale(rows: Rows, kernel: type[Compact]) -> Float[Array, ""]:
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
