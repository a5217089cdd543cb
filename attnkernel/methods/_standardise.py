"""Values about their mean in units of their root mean square, and the error that they allow."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..priors import KeyMask

MIN_TYPICAL = 1e-30  # of values in their unit: one that is less is far below rounding


class Standardised(NamedTuple):
    r"""Values v = c + h z of the keys that a mask allows; c, h and g are constants.

    - `z`: shape (keys, dim_v), 0 for a hidden key.
    - `centre`, `unit`: c and h of each column. `typical`: the geometric mean g of those |z| that
      are not 0; 0 for a column whose values are all equal to c.
    """

    z: Float[Array, "keys dim_v"]
    centre: Float[Array, " dim_v"]
    unit: Float[Array, " dim_v"]
    typical: Float[Array, " dim_v"]

    @classmethod
    def of(cls, v: Float[Array, "keys dim_v"], mask: KeyMask) -> "Standardised":
        """Standardises the values of the keys that the mask allows; others are not read."""
        hidden = jnp.zeros((1, 1), bool) if mask.allowed is None else ~mask.allowed[:, None]
        number = len(v) if mask.allowed is None else jnp.maximum(jnp.sum(mask.allowed), 1)
        constant = jax.lax.stop_gradient(jnp.where(hidden, 0.0, v))
        centre = jnp.sum(constant, axis=0) / number
        spread = jnp.where(hidden, 0.0, constant - centre[None, :])
        largest = jnp.max(jnp.abs(spread), axis=0, initial=0.0)
        largest = jnp.where(largest > 0, largest, 1.0)  # squares of what is left do not overflow
        mean_square = jnp.sum((spread / largest[None, :]) ** 2, axis=0) / number
        unit = jnp.where(mean_square > 0, largest * jnp.sqrt(mean_square), 1.0)
        z = jnp.where(hidden, 0.0, jnp.where(hidden, 0.0, v) - centre[None, :]) / unit[None, :]
        differs = spread != 0
        logs = jnp.log(jnp.where(differs, jnp.abs(spread), 1.0))
        count = jnp.sum(differs, axis=0)
        typical = jnp.exp(jnp.sum(logs, axis=0) / jnp.maximum(1, count)) / unit
        typical = jnp.where(count > 0, jnp.maximum(typical, MIN_TYPICAL), 0.0)
        return cls(z, centre, unit, typical)

    def accepted_error(self, z: Float[Array, "queries dim_v"]) -> Float[Array, "queries dim_v"]:
        r"""Returns the error, in units of h, of predictions c + h z that counts as 1:
        $\max(\min(|z|, |z + c / h|),\, g / 1000)$; infinite for a constant column, which is c.
        """
        zero, typical = -(self.centre / self.unit)[None, :], self.typical[None, :]
        error = jnp.maximum(jnp.minimum(jnp.abs(z), jnp.abs(z - zero)), 1e-3 * typical)
        return jnp.where(typical > 0, error, jnp.inf)
