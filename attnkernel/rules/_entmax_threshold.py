r"""The level λ of a query: what makes the weights of an entmax sum to 1.

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

_MOST = 100  # steps; about seven are taken

Power = float | Float[Array, ""]
Sums = tuple[Float[Array, " queries"], Float[Array, " queries"]]


def log_power(gaps: Float[Array, "..."], power: Power) -> Float[Array, "..."]:
    """$p \\log (1 + x / p)$, of x = s − λ; -inf, with a gradient of 0, from x = −p down."""
    inside = gaps > -power
    return jnp.where(inside, power * jnp.log1p(jnp.where(inside, gaps, 0.0) / power), -jnp.inf)


def level_sums(gaps: Float[Array, "queries keys"], power: Power) -> Sums:
    """S, and minus its slope in λ: the sum of $(1 + x / p)_+^{p-1}$."""
    inside = gaps > -power
    log_base = jnp.log1p(jnp.where(inside, gaps, 0.0) / power)

    def total(exponent: Power) -> Float[Array, " queries"]:
        return jnp.sum(jnp.where(inside, jnp.exp(exponent * log_base), 0.0), axis=1)

    return total(power), total(power - 1.0)


def find_level(
    sums: Callable[[Float[Array, " queries"]], Sums],
    highest: Float[Array, " queries"],
    power: Power,
) -> Float[Array, " queries"]:
    """λ by Newton's method, from the highest score; 0 for a query without keys.

    **Arguments:** `sums`: from levels to S and minus its slope, for each query.
    """
    some = ~jnp.isneginf(highest)
    start = jnp.where(some, highest, 0.0)
    least = 4.0 * jnp.finfo(highest.dtype).eps

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        count, level = state
        mass, slope = sums(level)
        log_mass = jnp.log(jnp.where(some & (mass > 1.0), mass, 1.0))
        # (S^(1/p) − 1) over its slope; 0 where rounding has gone beyond the root
        rise = -power * jnp.expm1(-log_mass / power) * mass / jnp.where(slope > 0, slope, 1.0)
        more = jnp.any(rise > least * jnp.maximum(1.0, jnp.abs(level)))
        return jnp.where(more, count + 1, _MOST), level + rise

    first = vary_alike((jnp.array(0), start))
    return jax.lax.while_loop(lambda state: state[0] < _MOST, step, first)[1]


def follow(sums: Sums, change: Float[Array, " queries"]) -> Float[Array, " queries"]:
    """The tangent of λ, from that of S at a fixed λ, by the implicit function theorem."""
    slope = sums[1]
    return change / jnp.where(slope > 0, slope, 1.0)


@jax.custom_jvp
def level_of(scores: Float[Array, "queries keys"], power: Power) -> Float[Array, " queries"]:
    """λ of each row of scores."""
    highest = jnp.max(scores, axis=1, initial=-jnp.inf)
    return find_level(lambda level: level_sums(scores - level[:, None], power), highest, power)


@level_of.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    level = level_of(*primals)

    def mass(scores: Array, power: Array) -> Array:
        return jnp.sum(jnp.exp(log_power(scores - level[:, None], power)), axis=1)

    sums = level_sums(primals[0] - level[:, None], primals[1])
    return level, follow(sums, jax.jvp(mass, primals, tangents)[1])
