"""The state of a partial sum: (running maximum, mass, total). It is a commutative monoid.

Moments of two disjoint sets of keys merge into those of their union. Blocks, devices, caches
and streams are all folds of the same `merge`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Moments(eqx.Module):
    r"""For each query, over a set of keys with log-weights $s_i$ and values $v_i$:

    $$ m = \max_i s_i, \qquad Z = \sum_i e^{s_i - m}, \qquad T = \sum_i e^{s_i - m} v_i $$

    with m = 0 where no key has weight; Z is NaN where a weight is. Any other m near the maximum,
    such as log Z, will do as well: the results T/Z and m + log Z do not depend on it, and it is
    constant to differentiation.
    """

    maximum: Float[Array, " queries"]
    mass: Float[Array, " queries"]
    total: Float[Array, "queries dim_v"]

    @classmethod
    def of(
        cls, log_weights: Float[Array, "queries keys"], v: Float[Array, "keys dim_v"]
    ) -> "Moments":
        """Moments of one set of keys."""
        maximum = finite(jnp.max(log_weights, axis=1, initial=-jnp.inf))
        weights = jnp.exp(log_weights - maximum[:, None])
        total = jnp.matmul(weights, v, precision=jax.lax.Precision.HIGHEST)
        return cls(maximum, jnp.sum(weights, axis=1), total)

    @classmethod
    def of_sink(cls, log_mass: Float[Array, ""], queries: int, dim_v: int) -> "Moments":
        """Moments of one pseudo-key of value 0 and the given log-mass; of no key at -inf."""
        dtype = log_mass.dtype
        maximum = jnp.broadcast_to(finite(log_mass), (queries,))
        return cls(maximum, jnp.exp(log_mass - maximum), jnp.zeros((queries, dim_v), dtype))

    def above(self, level: Float[Array, " queries"] | None) -> "Moments":
        """The same moments, of log-weights that were counted from a level of each query."""
        return self if level is None else Moments(self.maximum + level, self.mass, self.total)

    def with_sink(self, log_mass: Float[Array, ""] | None) -> "Moments":
        """These moments and those of a sink; of no sink at None."""
        if log_mass is None:
            return self
        sink = Moments.of_sink(log_mass.astype(self.total.dtype), *self.total.shape)
        return self.merge(sink)

    def merge(self, other: "Moments") -> "Moments":
        """Moments of the union of two disjoint sets of keys."""
        maximum = jnp.maximum(
            jnp.where(self.mass != 0, self.maximum, -jnp.inf),
            jnp.where(other.mass != 0, other.maximum, -jnp.inf),
        )
        maximum = finite(maximum)

        def scale(part: "Moments") -> Float[Array, " queries"]:
            return jnp.exp(jnp.where(part.mass != 0, part.maximum - maximum, -jnp.inf))

        ours, theirs = scale(self), scale(other)
        return Moments(
            maximum,
            self.mass * ours + other.mass * theirs,
            self.total * ours[:, None] + other.total * theirs[:, None],
        )

    def merged_over(self, axis: str) -> "Moments":
        """Moments of the union of the sets of all devices along an axis of a mesh."""
        highest = jnp.where(self.mass != 0, jax.lax.stop_gradient(self.maximum), -jnp.inf)
        maximum = finite(jax.lax.pmax(highest, axis))
        scale = jnp.exp(jnp.where(self.mass != 0, self.maximum - maximum, -jnp.inf))
        sums = self.mass * scale, self.total * scale[:, None]
        return Moments(maximum, *jax.lax.psum(sums, axis))

    @property
    def value(self) -> Float[Array, "queries dim_v"]:
        """$\\sum_i w_i v_i / \\sum_i w_i$; 0 where no key has weight."""
        return self.total / jnp.where(self.mass != 0, self.mass, 1.0)[:, None]

    @property
    def log_mass(self) -> Float[Array, " queries"]:
        """$\\log \\sum_i w_i$; -inf where no key has weight."""
        some = self.mass != 0
        return jnp.where(some, self.maximum + jnp.log(jnp.where(some, self.mass, 1.0)), -jnp.inf)


def finite(maximum: Float[Array, "..."]) -> Float[Array, "..."]:
    """The maximum as a constant; 0 in place of -inf, so that -inf - m stays -inf."""
    return jax.lax.stop_gradient(jnp.where(jnp.isneginf(maximum), 0.0, maximum))
