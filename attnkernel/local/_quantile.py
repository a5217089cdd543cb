r"""Local polynomial quantiles: at each query the polynomial with the least weighted check loss.

$$ \hat\beta(q) = \arg\min_\beta
   \sum_j w_j(q)\, \rho_\tau\big(v_j - \beta^\top \varphi(k_j - q)\big), \qquad
   \rho_\tau(r) = r\, (\tau - 1\{r < 0\}) $$

Quantile regression on weighted rows: an interior point method, with the gap as a certificate.

$$ \min_\beta \sum_j w_j\, \rho_\tau(y_j - \varphi_j^\top \beta) \;=\; \max_a \sum_j w_j y_j
   (a_j - (1 - \tau)), \qquad \sum_j w_j \varphi_j (a_j - (1 - \tau)) = 0, \quad 0 \le a_j \le 1 $$

Portnoy and Koenker, *The Gaussian hare and the Laplacian tortoise* (1997): steps of Newton's method
with a predictor and a corrector. Each solves a system of as many equations as there are terms.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import wider_dtype
from ..losses import check_losses
from ..methods import Keys, Queries, Values
from ._monomials import Polynomial
from ._polynomial import fit_at_queries
from ._windows import Windows, map_windows, solve_positive_definite

MAX_STEPS = 60  # 10 to 25 in most windows


class _InteriorPoint(NamedTuple):
    """A point of the search: a inside its bounds, their multipliers, β, the duality gap, the number
    of steps so far, and whether to stop.

    `slack` stacks a and 1 − a, and `multiplier` the multipliers of a ≥ 0 and of 1 − a ≥ 0.
    """

    slack: Float[Array, "bounds rows"]
    multiplier: Float[Array, "bounds rows"]
    beta: Float[Array, " terms"]
    gap: Float[Array, ""]
    steps: Int[Array, ""]
    is_last: Bool[Array, ""]


class Minimum(NamedTuple):
    """Coefficients of the least check loss, the rows of a vertex, and the duality gap.

    `rows`: those of the smallest absolute residuals, as many as terms. `is_vertex`: whether the
    polynomial through these rows is the minimum. The gap is relative to the weighted mean absolute
    deviation of the labels.
    """

    beta: Float[Array, " terms"]
    rows: Int[Array, " terms"]
    is_vertex: Bool[Array, ""]
    gap: Float[Array, ""]


def _minimise_check_loss(
    terms: Float[Array, "rows terms"],
    y: Float[Array, " rows"],
    weights: Float[Array, " rows"],
    level: Float[Array, ""],
) -> Minimum:
    """Returns a minimum, in one `while_loop`, which has no derivative in reverse mode.

    `weights` sum to 1, or are all 0; rows with weight 0 are ignored.
    """
    eps = float(jnp.finfo(y.dtype).eps)
    centre = jnp.sum(weights * y)
    spread = jnp.sum(weights * jnp.abs(y - centre))
    unit = jnp.where(spread > 0, spread, 1.0)
    labels = jnp.where(weights > 0, (y - centre) / unit, 0.0)
    search = _begin(terms, labels, weights, level)
    tolerance = eps**0.75

    def goes_on(search: _InteriorPoint) -> Bool[Array, ""]:
        return ~search.is_last & (search.gap > tolerance) & (search.steps < MAX_STEPS)

    search = jax.lax.while_loop(goes_on, lambda old: _step(old, terms, weights), search)
    beta = search.beta
    # the minimum is at a vertex: the polynomial through as many rows as terms
    residuals = labels - jnp.sum(terms * beta[None, :], axis=1)
    sizes = jnp.where(weights > 0, jnp.abs(residuals), jnp.inf)
    _, rows = jax.lax.top_k(-sizes, terms.shape[1])
    corner = jnp.linalg.solve(terms[rows], labels[rows])  # not finite through equal inputs
    is_vertex = _check_loss(labels - jnp.sum(terms * corner[None, :], axis=1), weights, level)
    loss = _check_loss(residuals, weights, level)
    is_vertex = is_vertex <= loss + 8.0 * eps * jnp.maximum(loss, eps)
    beta = jnp.where(is_vertex, corner, beta) * unit
    beta = beta + jnp.where(jnp.arange(len(beta)) == 0, centre, 0.0)
    return Minimum(beta, rows, is_vertex, search.gap)


def _check_loss(
    residuals: Float[Array, " rows"], weights: Float[Array, " rows"], level: Float[Array, ""]
) -> Float[Array, ""]:
    """Returns the weighted sum of the check losses of residuals."""
    return jnp.sum(jnp.where(weights > 0, weights * check_losses(residuals, level), 0.0))


def _begin(
    terms: Float[Array, "rows terms"],
    y: Float[Array, " rows"],
    weights: Float[Array, " rows"],
    level: Float[Array, ""],
) -> _InteriorPoint:
    """Returns the start: a = 1 − τ, which is feasible, and β of weighted least squares."""
    scaled = weights[:, None] * terms
    gram = jnp.sum(scaled[:, :, None] * terms[:, None, :], axis=0)
    beta = solve_positive_definite(gram, jnp.sum(scaled * y[:, None], axis=0))
    residuals = weights * (y - jnp.sum(terms * beta[None, :], axis=1))
    size = jnp.sum(jnp.abs(residuals))
    least = weights * jnp.where(size > 0, size, 1.0)
    # multipliers, whose difference is minus the weighted residual
    upper = jnp.maximum(residuals, 0.0) + least
    multiplier = jnp.stack([upper - residuals, upper])
    a = jnp.full_like(y, 1.0 - level)
    slack = jnp.stack([a, 1.0 - a])
    gap = jnp.sum(jnp.where((weights > 0)[None], multiplier * slack, 0.0))
    return _InteriorPoint(slack, multiplier, beta, gap, jnp.zeros((), int), ~jnp.any(weights > 0))


def _step(
    now: _InteriorPoint, terms: Float[Array, "rows terms"], weights: Float[Array, " rows"]
) -> _InteriorPoint:
    """Returns the point after one step of the predictor and the corrector."""
    x, z, counts = now.slack, now.multiplier, (weights > 0)[None]
    inner = lambda left, right: jnp.sum(jnp.where(counts, left * right, 0.0))  # noqa: E731
    over = lambda top, below: jnp.where(counts, top / jnp.where(counts, below, 1.0), 0.0)  # noqa: E731
    scaled = jnp.where(weights > 0, weights, 0.0)[:, None] * terms
    inverse = over(1.0, jnp.sum(over(z, x), axis=0, keepdims=True))[0]
    difference = z[0] - z[1]  # minus the weighted residuals
    gram = jnp.sum((inverse[:, None] * scaled)[:, :, None] * scaled[:, None, :], axis=0)

    def solve(force: Float[Array, " rows"]) -> tuple[Array, Array]:
        """Returns minus the step of β, and the steps of a and 1 − a, stacked; that of a keeps its
        equality constraint."""
        right = jnp.sum((inverse * force)[:, None] * scaled, axis=0)
        of_beta = solve_positive_definite(gram, right)
        da = inverse * (jnp.sum(scaled * of_beta[None, :], axis=1) - force)
        return of_beta, jnp.stack([da, -da])

    def length(value: Array, move: Array) -> Float[Array, ""]:
        """Returns the length of a step after which all values stay positive."""
        share_of_step = 0.99  # of the way to the boundary
        ratio = value / jnp.where(move < 0, -move, 1.0)
        least = jnp.min(jnp.where(counts & (move < 0), ratio, jnp.inf))
        return jnp.minimum(1.0, share_of_step * least)

    _, dx = solve(difference)
    dz = -z * (1.0 + over(dx, x))
    complementarity = inner(z, x)
    after = inner(z + length(z, dz) * dz, x + length(x, dx) * dx)
    ratio = after / jnp.where(complementarity > 0, complementarity, 1.0)
    target = complementarity * ratio**3 / (2.0 * jnp.sum(counts))
    # second-order terms of the predictor, and the centre of the corrector
    pull = over(target - dx * dz, x)
    d_beta, dx = solve(difference - pull[0] + pull[1])
    dz = pull - z - over(z * dx, x)
    dual = length(z, dz)
    x, z = x + length(x, dx) * dx, z + dual * dz
    beta, gap = now.beta - dual * d_beta, inner(z, x)
    found = _InteriorPoint(x, z, beta, gap, now.steps + 1, jnp.zeros((), bool))
    is_finite = jnp.all(jnp.isfinite(beta)) & jnp.isfinite(gap)
    stopped = now._replace(is_last=jnp.ones((), bool))
    return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), found, stopped)


MINIMUM = "check loss minimum"  # the name by which derivatives find it


class QuantileFit(eqx.Module):
    r"""The local polynomials of queries, one quantile of labels each.

    - `coefficients`: $\hat\beta$, shape (queries, terms, dim_v): the quantile at the query, its
      slope along each column, and for p = 2 the coefficients of $d_a d_b$, a ≤ b.
    - `gap`: the duality gap, shape (queries, dim_v): the check loss of $\hat\beta$ exceeds its
      minimum by no more than this share of the mean absolute deviation of the labels in reach.
    - `empty`: whether no label has weight; the coefficients are then 0.
    - `deficient`, `extrapolates`: those of the design, as in `LocalFit`.

    ```python
    x = jnp.linspace(0.0, 1.0, 9)
    local = ak.LocalQuantile(ak.Gaussian(0.3), level=0.5).local_fit(x, x, 2.0 * x)
    assert jnp.allclose(local.coefficients[:, 1, 0], 2.0, atol=1e-3)  # the slope of the median
    ```
    """

    coefficients: Float[Array, "queries terms dim_v"]
    gap: Float[Array, "queries dim_v"]
    empty: Bool[Array, " queries"]
    deficient: Bool[Array, " queries"]
    extrapolates: Bool[Array, " queries"]


def local_quantile(
    q: Queries, k: Keys, v: Values, polynomial: Polynomial, level: ArrayLike
) -> QuantileFit:
    """The local polynomials at queries; where the keys do not determine all terms, slopes are 0.

    **Source:** Yu and Jones, *Local linear quantile regression* (1998).
    """
    q, k, v = (part.astype(wider_dtype(part.dtype)) for part in (q, k, v))
    return fit_at_queries(_fit_quantiles, (polynomial, jnp.asarray(level, v.dtype)), q, k, v)


def _fit_quantiles(
    polynomial: Polynomial, level: Float[Array, ""], q: Queries, k: Keys, v: Values
) -> QuantileFit:
    """Returns the local polynomials at one or more queries, from arrays of at least float32."""

    def fit_one(terms: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
        constants = jax.lax.stop_gradient((terms, labels, weights, level))
        # derivatives read the minimum, and do not repeat the search
        found = checkpoint_name(_minimise_check_loss(*constants), MINIMUM)
        # a vertex depends on its rows alone: by the weights its derivative is 0
        rows = jnp.where(found.is_vertex, found.rows, jnp.arange(len(found.rows)))
        safe = jnp.where(found.is_vertex, terms[rows], jnp.eye(len(rows), dtype=terms.dtype))
        corner = jnp.linalg.solve(safe, labels[rows])
        return jnp.where(found.is_vertex, corner, found.beta), found.gap

    def fit_chunk(windows: Windows) -> QuantileFit:
        deficient, extrapolates = windows.support()
        terms = windows.terms
        is_slope = jnp.arange(terms.shape[-1]) > 0
        terms = jnp.where(deficient[:, None, None] & is_slope[None, None, :], 0.0, terms)
        over_labels = jax.vmap(fit_one, in_axes=(None, 1, None))
        beta, gap = jax.vmap(over_labels, in_axes=(0, None, 0))(terms, v, windows.weights)
        beta = windows.coefficients(beta)
        return QuantileFit(beta, gap, windows.empty, deficient, extrapolates)

    policy = jax.checkpoint_policies.save_only_these_names(MINIMUM)
    width = 4 * v.shape[1]  # rows of the search, beside the terms
    return map_windows(fit_chunk, polynomial, q, k, width=width, policy=policy)
