r"""Cumulative sums of log-decays whose differences are exact to rounding, at any length.

$$ c_t = \sum_{l \le t} \log \alpha_l, \qquad
   \exp(c_i - c_j) = \prod_{j < l \le i} \alpha_l, \quad j \le i $$

A difference of two plain sums loses the digits that a strong decay before both used up. A sum is
therefore an integer, whose differences are exact, and a small remainder.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

UNITS = 64  # integers a unit of log α: remainders are at most 1/128 a row


class CumulativeDecay(NamedTuple):
    """The sums c, as `whole / 64 + rest`."""

    whole: Int[Array, "..."] | Float[Array, "..."]  # an integer in either case
    rest: Float[Array, "..."]

    def at(self, index: Any) -> "CumulativeDecay":
        """Returns the sums of some rows or columns, as `array[index]` does."""
        return CumulativeDecay(self.whole[index], self.rest[index])

    def minus(self, other: "CumulativeDecay") -> Float[Array, "..."]:
        """Returns these sums minus the others, as a floating array."""
        whole = (self.whole - other.whole).astype(self.rest.dtype) / UNITS
        return whole + (self.rest - other.rest)

    def total(self) -> Float[Array, "..."]:
        """Returns the sums themselves."""
        return self.whole.astype(self.rest.dtype) / UNITS + self.rest


def cumulative_decay(log_decay: Float[Array, "rows *columns"]) -> CumulativeDecay:
    """Returns the cumulative sums along the first axis.

    A decay of 0, whose logarithm is −∞, becomes one below the smallest number of the dtype.
    """
    limits = np.finfo(log_decay.dtype)
    finite = jnp.maximum(log_decay, np.log(limits.smallest_subnormal).item() - 1.0)
    whole = jax.lax.stop_gradient(jnp.round(finite * UNITS))
    rest = finite - whole / UNITS
    if len(finite) <= 128:  # a product of matrices takes half the time of XLA's cumulative sum
        lower = jnp.tri(len(finite), dtype=finite.dtype)
        sums = (jnp.tensordot(lower, part, 1, precision="highest") for part in (whole, rest))
        return CumulativeDecay(*sums)
    count = whole.astype(jnp.result_type(int))
    return CumulativeDecay(jnp.cumsum(count, axis=0), jnp.cumsum(rest, axis=0))
