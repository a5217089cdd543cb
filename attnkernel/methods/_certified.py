"""Means about each query with bounds on their errors, and the errors that count as certified."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..priors import KeyMask


class WeightedPowerMeans(NamedTuple):
    r"""Weighted means about each query, of powers and of their products with values.

    $$ E_{ia} = \frac{\sum_j w_{ij}\, u_{ij}^a}{\sum_j w_{ij}}, \qquad
       E^v_{ia} = \frac{\sum_j w_{ij}\, u_{ij}^a\, v_j}{\sum_j w_{ij}}, \qquad
       u_{ij} = \frac{k_j - q_i}{s} $$

    - `log_mass`: $\log \sum_j w_{ij}$, shape (queries,).
    - `means`: shape (queries, degree + 1, 1 + dim_v): $E_{ia}$, then $E^v_{ia}$ of each column.
    - `error`: shape (queries, degree + 1), constant. The error of $E^v_{ia}$ is at most
      `error[i, a]` + `error[i, 0]` $|E^v_{ia}|$, that of $E_{ia}$ likewise; infinite where there is
      no bound.
    - `tol`: the relative error that counts as certified.

    ```python
    with jax.enable_x64(True):
        x = jnp.linspace(0.0, 1.0, 50)[:, None]
        parts = ak.Gaussian(0.3), None, ak.Softmax()
        found = ak.methods.Fourier().moments(x, x, x, parts, degree=1, scale=jnp.array(1.0))
        assert found.means.shape == (50, 2, 2) and jnp.all(found.error < 1e-9)
    ```
    """

    log_mass: Float[Array, " queries"]
    means: Float[Array, "queries degrees width"]
    error: Float[Array, "queries degrees"]
    tol: float

    @property
    def bounds(self) -> Float[Array, "queries degrees width"]:
        """The bound on the error of each of the means."""
        return self.error[:, :, None] + self.error[:, :1, None] * abs(self.means)


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
        # a typical value below 1e-30 of the unit is far below rounding
        typical = jnp.where(count > 0, jnp.maximum(typical, 1e-30), 0.0)
        return cls(z, centre, unit, typical)

    def accepted_error(self, z: Float[Array, "queries dim_v"]) -> Float[Array, "queries dim_v"]:
        r"""Returns the error, in units of h, of predictions c + h z that counts as 1:
        $\max(\min(|z|, |z + c / h|),\, g / 1000)$; infinite for a constant column, which is c.
        """
        zero, typical = -(self.centre / self.unit)[None, :], self.typical[None, :]
        error = jnp.maximum(jnp.minimum(jnp.abs(z), jnp.abs(z - zero)), 1e-3 * typical)
        return jnp.where(typical > 0, error, jnp.inf)
