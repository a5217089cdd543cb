r"""The threshold λ of a query: what makes the weights of an entmax sum to 1.

$$ S(\lambda) = \sum_j \big(1 + (s_j - \lambda) / p\big)_+^{\,p} = 1, \qquad p \ge 1 $$

$S^{1/p}$ is a norm of convex functions of λ, so it is convex, and it falls. Newton's method on it
from a λ that is too low never goes beyond the root; at the highest score S is at least 1. For
p → ∞ the weights are those of a softmax, and one step arrives at their log-mass.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.mesh_axes import vary_alike

Exponent = float | Float[Array, ""]
MassAndSlope = tuple[Float[Array, " queries"], Float[Array, " queries"]]


def log_entmax_weights(gaps: Float[Array, "..."], exponent: Exponent) -> Float[Array, "..."]:
    """Returns $p \\log (1 + x / p)$, the log of an entmax weight before normalisation.

    `gaps`: x = s − λ, the score less the threshold. `exponent`: p. Where x ≤ −p it is -inf, with
    a gradient of 0.
    """
    outside = gaps <= -exponent  # NaN is not, and stays NaN
    return jnp.where(
        outside, -jnp.inf, exponent * jnp.log1p(jnp.where(outside, 0.0, gaps) / exponent)
    )


def threshold_sums(gaps: Float[Array, "queries keys"], exponent: Exponent) -> MassAndSlope:
    """Returns S(λ), the sum of the entmax weights of each query, and −dS/dλ.

    `gaps`: s − λ, the scores less the threshold. `exponent`: p.
    """
    inside = gaps > -exponent
    log_base = jnp.log1p(jnp.where(inside, gaps, 0.0) / exponent)

    def total(order: Exponent) -> Float[Array, " queries"]:
        return jnp.sum(jnp.where(inside, jnp.exp(order * log_base), 0.0), axis=1)

    return total(exponent), total(exponent - 1.0)


def find_threshold(
    sums: Callable[[Float[Array, " queries"]], MassAndSlope],
    highest: Float[Array, " queries"],
    exponent: Exponent,
) -> Float[Array, " queries"]:
    """Returns the λ of each query with S(λ) = 1, by Newton's method; 0 for a query without keys.

    **Arguments:** `sums`: from thresholds to S and −dS/dλ of each query. `highest`: the highest
    score of each query, where the iteration starts. `exponent`: p.
    """
    max_steps = 100  # about seven are taken
    some = ~jnp.isneginf(highest)
    start = jnp.where(some, highest, 0.0)
    least = 4.0 * jnp.finfo(highest.dtype).eps

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        count, threshold = state
        mass, slope = sums(threshold)
        log_mass = jnp.log(jnp.where(some & (mass > 1.0), mass, 1.0))
        # (S^(1/p) − 1) over its slope; 0 where rounding has gone beyond the root
        rise = -exponent * jnp.expm1(-log_mass / exponent) * mass / jnp.where(slope > 0, slope, 1.0)
        more = jnp.any(rise > least * jnp.maximum(1.0, jnp.abs(threshold)))
        return jnp.where(more, count + 1, max_steps), threshold + rise

    first = vary_alike((jnp.array(0), start))
    return jax.lax.while_loop(lambda state: state[0] < max_steps, step, first)[1]


def threshold_tangent(
    sums: MassAndSlope, change: Float[Array, " queries"]
) -> Float[Array, " queries"]:
    """Returns the tangent of λ by the implicit function theorem.

    `sums`: S(λ) and −dS/dλ. `change`: the tangent of S at a fixed λ.
    """
    slope = sums[1]
    return change / jnp.where(slope > 0, slope, 1.0)


@jax.custom_jvp
def entmax_threshold(
    scores: Float[Array, "queries keys"], exponent: Exponent
) -> Float[Array, " queries"]:
    """Returns the threshold λ of each row of scores; `exponent`: p = 1 / (α − 1)."""
    highest = jnp.max(scores, axis=1, initial=-jnp.inf)
    return find_threshold(
        lambda threshold: threshold_sums(scores - threshold[:, None], exponent), highest, exponent
    )


@entmax_threshold.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """Returns the threshold of each row of scores and its tangent."""
    threshold = entmax_threshold(*primals)

    def mass(scores: Array, exponent: Array) -> Array:
        return jnp.sum(jnp.exp(log_entmax_weights(scores - threshold[:, None], exponent)), axis=1)

    sums = threshold_sums(primals[0] - threshold[:, None], primals[1])
    return threshold, threshold_tangent(sums, jax.jvp(mass, primals, tangents)[1])
