"""Local polynomials of the rows on one side of a point: weights of labels, bias and variance.

Every figure of a regression discontinuity is a sum Σ ℓ_i y_i or Σ ℓ_i² e_i². The ℓ_i of two orders
at two lengthscales are combined before they are squared, and multiply powers of x. `LocalFit` of
`attention` returns sums of labels for one lengthscale, and no ℓ: they are computed here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import Scalar
from .._core.rows import Rows
from ..kernels import Compact


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
    """Returns $w_i K((x_i - q) / \\ell)$ of the rows of one side, q = `at`."""
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

    $N_i$ are the three nearest other rows, and all that are as near as the third. They lie in at
    most three groups of equal inputs on each side.
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
    """Rows on both sides of a cutoff, which is at 0, in units of their standard deviations."""

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
