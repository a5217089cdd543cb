"""The log-sum-exp state of a partial sum: (maximum, mass, total). It is a commutative monoid.

The states of two disjoint sets of keys merge into the state of their union. Blocks, devices, caches
and streams are all folds of the same `merge`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul


class SoftmaxState(eqx.Module):
    r"""For each query, over a set of keys with log-weights $s_i$ and values $v_i$:

    $$ m = \max_i s_i, \qquad Z = \sum_i e^{s_i - m}, \qquad T = \sum_i e^{s_i - m} v_i $$

    If no key has weight, m = 0. A log-weight of +inf counts as the largest number. If a weight is
    NaN, Z is NaN. Any other m near the maximum, such as log Z, is valid too: the results T/Z and
    m + log Z do not depend on it.

    **Arguments:** `maximum`: m, shape (*batch, queries). `mass`: Z, of the same shape. `total`: T,
    shape (*batch, queries, dim_v). `ak.attention.softmax_state` returns them.

    ```python
    scores, v = jnp.zeros((2, 4)), jnp.arange(4.0)[:, None]
    first = ak.methods.SoftmaxState.from_log_weights(scores[:, :1], v[:1])
    second = ak.methods.SoftmaxState.from_log_weights(scores[:, 1:], v[1:])
    assert jnp.allclose(first.merge(second).value, 1.5)
    ```
    """

    maximum: Float[Array, "*batch queries"]
    mass: Float[Array, "*batch queries"]
    total: Float[Array, "*batch queries dim_v"]

    @classmethod
    def from_log_weights(
        cls,
        log_weights: Float[Array, "queries keys"],
        v: Float[Array, "keys dim_v"],
        precision: str | None = None,
    ) -> "SoftmaxState":
        """The state of one set of keys; `precision`: as of `ak.methods.Dense`."""
        maximum, mass, weights = _weights_at_maximum(log_weights)
        return cls(maximum, mass, precise_matmul(weights, v, precision))

    @classmethod
    def from_sink(cls, log_mass: Float[Array, "*heads"], *shape: int) -> "SoftmaxState":
        """The state of one pseudo-key of value 0 and this log-mass; that of no key if it is -inf.

        `shape`: (*batch, queries, dim_v), whose batch axes end with those of heads.
        """
        log_mass = jnp.broadcast_to(log_mass[..., None], shape[:-1])
        maximum = finite_shift(log_mass)
        return cls(maximum, jnp.exp(log_mass - maximum), jnp.zeros(shape, log_mass.dtype))

    def shifted(self, shift: Float[Array, "*batch queries"] | None) -> "SoftmaxState":
        """The state with `shift` added to every log-weight of a query; None adds nothing."""
        return self if shift is None else SoftmaxState(self.maximum + shift, self.mass, self.total)

    def with_sink(self, log_mass: Float[Array, "*heads"] | None) -> "SoftmaxState":
        """The state with a sink of this log-mass merged in; None: the state itself."""
        if log_mass is None:
            return self
        sink = SoftmaxState.from_sink(log_mass.astype(self.total.dtype), *self.total.shape)
        return self.merge(sink)

    def relative_to(self, maximum: Float[Array, "*batch queries"]) -> "SoftmaxState":
        """Returns the same state with its sums rescaled to another shift, `maximum`.

        A shift of -inf, that of a query without keys, becomes 0.
        """
        maximum = finite_shift(maximum)
        scale = jnp.exp(jnp.where(self.mass != 0, self.maximum - maximum, -jnp.inf))
        return SoftmaxState(maximum, self.mass * scale, self.total * scale[..., None])

    def merge(self, other: "SoftmaxState") -> "SoftmaxState":
        """The state of the union of two disjoint sets of keys."""
        maximum = jnp.maximum(
            jnp.where(self.mass != 0, self.maximum, -jnp.inf),
            jnp.where(other.mass != 0, other.maximum, -jnp.inf),
        )
        ours, theirs = self.relative_to(maximum), other.relative_to(maximum)
        return SoftmaxState(ours.maximum, ours.mass + theirs.mass, ours.total + theirs.total)

    def merge_over_axis(self, axis: str) -> "SoftmaxState":
        """The state of the union of the sets of all devices along an axis of a mesh."""
        highest = jnp.where(self.mass != 0, jax.lax.stop_gradient(self.maximum), -jnp.inf)
        part = self.relative_to(jax.lax.pmax(highest, axis))
        return SoftmaxState(part.maximum, *jax.lax.psum((part.mass, part.total), axis))

    @property
    def value(self) -> Float[Array, "*batch queries dim_v"]:
        """$\\sum_i w_i v_i / \\sum_i w_i$; 0 if no key has weight."""
        return self.total / jnp.where(self.mass != 0, self.mass, 1.0)[..., None]

    @property
    def log_mass(self) -> Float[Array, "*batch queries"]:
        """$\\log \\sum_i w_i$; -inf if no key has weight."""
        some = self.mass != 0
        return jnp.where(some, self.maximum + jnp.log(jnp.where(some, self.mass, 1.0)), -jnp.inf)


@jax.custom_jvp
def _weights_at_maximum(
    log_weights: Float[Array, "*batch keys"],
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"], Float[Array, "*batch keys"]]:
    r"""Returns the maximum m, the mass Z and the weights $e^{s - m}$ of log-weights s.

    The tangent of m is that of log Z with m held constant:

    $$ \dot m = \sum_i e^{s_i - m} \dot s_i / Z, \qquad
       (e^{s_i - m})^\cdot = e^{s_i - m} (\dot s_i - \dot m) $$

    For a query far from all keys every $\dot s_i$ is large, and T/Z moves by their differences.
    """
    # materialised after the reduction: before it, XLA writes all scores once more (8 heads of 512
    # rows: 2.2 ms, 2.0 as it is)
    highest = jnp.max(log_weights, axis=-1, initial=-jnp.inf)
    maximum = finite_shift(materialise_before_shift(highest))
    weights = jnp.exp(materialise_before_shift(log_weights) - maximum[..., None])
    return maximum, jnp.sum(weights, axis=-1), weights


@_weights_at_maximum.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[tuple, tuple]:
    """Returns m, Z and the weights, and their tangents as `_weights_at_maximum` defines them."""
    maximum, mass, weights = _weights_at_maximum(*primals)
    mean = jnp.sum(weights * tangents[0], axis=-1) / jnp.where(mass != 0, mass, 1.0)
    change = weights * (tangents[0] - mean[..., None])
    return (maximum, mass, weights), (mean, jnp.sum(change, axis=-1), change)


def finite_shift(maximum: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns `maximum` without derivatives, and 0 in place of -inf, so that -inf − m is -inf."""
    return jax.lax.stop_gradient(jnp.where(jnp.isneginf(maximum), 0.0, maximum))


@jax.custom_jvp
def materialise_before_shift(scores: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the scores, rounded to their dtype before a shift is subtracted; +inf becomes the
    largest number.

    A compiler may fuse the subtraction with the product that a score ends in (an FMA). The highest
    score minus itself is then the rounding error of the score, which exceeds 1 for scores above
    1/ε. A minimum between both keeps them apart.
    """
    largest = jnp.finfo(scores.dtype).max
    return jax.lax.min(scores, jnp.full_like(scores, largest))


@materialise_before_shift.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Returns the rounded scores, and the tangent of the scores unchanged."""
    return materialise_before_shift(*primals), tangents[0]
