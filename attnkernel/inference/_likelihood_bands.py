r"""Confidence bands of a local likelihood: symmetric on the scale of the link, then transformed.

$$ g^{-1}\big( \hat\eta(x) \pm c\, \mathrm{se}(x) \big), \qquad
   \mathrm{se}(x)^2 = \sum_j \ell_j(x)^2\, \sigma_j^2 $$

$\ell_j$ is the influence of label j on $\hat\eta$ (`InfluenceSums`).
"""

from typing import Any, Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._core.arrays import inverse_or_zero
from .._core.rows import Rows
from .._core.validation import require_choice
from ..local import InfluenceSums, influence_sums
from ..models import DataSupport, LocalLikelihood, support_of, with_weights
from ..priors import ExcludeSelf
from ._band_table import MIN_RELIABLE_COUNT, bias_corrected, critical_value

LikelihoodNoise = Literal["family", "constant", "rows"]

# On the scale of the link. Nominal 95 % bands of 1600 samples of 120 rare events covered .88 to 1
# where it was at most 5, and .5 to .9 where it was above 20: there the labels in reach are all 0.
MAX_RELIABLE_ERROR = 5.0


def compute_likelihood_bands(
    model: LocalLikelihood,
    level: Float[Array, ""],
    noise: str | None,
    clusters: None,
    corrected: bool,
    derivative: None,
    component: None,
    draws: int,
    key: PRNGKeyArray | None,
    at: Float[Array, "m dim"],
    rows: Rows,
) -> tuple[tuple[Array, Array, Array, Array], Float[Array, " m"], Bool[Array, " m"], DataSupport]:
    """Returns (centre, standard error, lower, upper), effective count, `reliable`, data support.

    Arguments as for `compute_linear_bands`; there are no `clusters`, no `derivative` and no
    `component`.
    """
    noise = noise or "family"
    require_choice("noise", noise, get_args(LikelihoodNoise))
    x, family, prior = rows.x, model.family, with_weights(None, rows)
    sd, dispersion = _label_errors(model, prior, rows, noise)
    if corrected:
        model = bias_corrected(model, rows)
    mean, local = model.fitted(at, x, rows.y, prior)
    mean = model.filled(mean, local.empty, at, rows, prior)

    def influence(z: Float[Array, "n size"]) -> InfluenceSums:
        parts = model.polynomial(x, prior), family
        return influence_sums(at, x, sd, z, local, *parts, is_relative=noise != "rows")

    def noise_and_error(z: Float[Array, "n size"]) -> tuple[Array, Array]:
        sums = influence(z)
        return sums.noise[:, 0], jnp.sqrt(sums.variance)

    found = influence(jnp.zeros((len(x), 0), x.dtype))
    empty = local.empty[:, None]
    error = jnp.where(empty, jnp.nan, jnp.sqrt(dispersion[None] * found.variance))
    width = critical_value(level, rows, draws, key, noise_and_error) * error
    at_query = family.mean(local.coefficients[:, 0])
    inside = family.inside(at_query)  # where no mean has this link, the nearest that has one
    eta = jnp.where(at_query == inside, local.coefficients[:, 0], family.link(inside))
    slope = family.mean_slope(eta)
    parts = (mean, slope * error, family.mean(eta - width), family.mean(eta + width))
    centre, of_mean, lower, upper = map(rows.shaped, parts)
    count = inverse_or_zero(jnp.max(jnp.where(empty, 0.0, found.squares), axis=1))
    is_small = jnp.all(error <= MAX_RELIABLE_ERROR, axis=1)
    reliable = (count >= MIN_RELIABLE_COUNT) & is_small & ~local.deficient & ~local.extrapolates
    return (centre, of_mean, lower, upper), count, reliable, support_of(local)


def _label_errors(
    model: LocalLikelihood, prior: Any, rows: Rows, noise: str
) -> tuple[Float[Array, "n out"], Float[Array, " out"]]:
    r"""Returns the standard deviations $\sigma_j$ of the labels, and the dispersion φ.

    With `noise="rows"` they are the left-out residuals; else φ is 1 or estimated, and $\sigma_j$ is
    in units of $\sqrt{\phi V(\mu_j)}$: one over the root of the weight.
    """
    family, x, labels, has_weight = model.family, rows.x, rows.y, rows.has_weight[:, None]
    weights = rows.row_weights(labels.dtype)
    one = jnp.ones(labels.shape[1], labels.dtype)
    if noise == "rows":
        others = ExcludeSelf() if prior is None else prior * ExcludeSelf()
        left_out, local = model.fitted(x, x, labels, others)
        is_known = has_weight & ~local.empty[:, None]
        return jnp.where(is_known, jnp.abs(labels - left_out), 0.0), one
    roots = jnp.sqrt(inverse_or_zero(weights))[:, None] * jnp.ones_like(labels)
    if noise == "family" and family.has_known_dispersion:
        return roots, one
    fitted, local = model.fitted(x, x, labels, prior)
    none = jnp.zeros((len(x), 0), x.dtype)
    parts = model.polynomial(x, prior), family
    sums = influence_sums(x, x, roots, none, local, *parts, is_relative=True)
    mean = family.inside(fitted)
    slope, variance = family.mean_slope(family.link(mean)), family.variance(mean)
    squares = weights[:, None] * (labels - mean) ** 2 / variance
    norms = weights[:, None] * slope**2 / variance * sums.variance
    expected = jnp.maximum(1.0 - 2.0 * sums.own + norms, float(jnp.finfo(x.dtype).eps) ** 0.5)
    total = jnp.sum(jnp.where(has_weight, squares, 0.0), axis=0)
    return roots, total / jnp.sum(jnp.where(has_weight, expected, 0.0), axis=0)
