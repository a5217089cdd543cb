"""What the same letter means elsewhere: lengthscale and bandwidth conventions, by name."""

import math

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._checks import require_positive

_STANDARD_DEVIATIONS_PER_UNIT = {
    "standard": 1.0,  # exp(-d²/2ℓ²): here, R np, statsmodels
    "unhalved": 1.0 / math.sqrt(2.0),  # exp(-(d/ℓ)²): Czyż (2024)
}


def convert_lengthscale(
    lengthscale: ArrayLike, *, source: str = "standard", target: str = "standard"
) -> Float[Array, "..."]:
    r"""A Gaussian's lengthscale in another convention: $\ell_t = \ell_s\, c_s / c_t$.

    `c` is the standard deviation of the Gaussian that a lengthscale of 1 names:

    | name | kernel | c |
    |---|---|---|
    | `"standard"` | $\exp(-d^2 / 2\ell^2)$ | 1 |
    | `"unhalved"` | $\exp(-(d / \ell)^2)$ | $1/\sqrt2$ |

    **Arguments:** `lengthscale`: any shape, positive; `source`, `target`: names of the table.

    **Raises:** `ValueError` for a name that is not in the table, or a lengthscale ≤ 0.
    """
    require_positive("lengthscale", lengthscale)
    for name in (source, target):
        if name not in _STANDARD_DEVIATIONS_PER_UNIT:
            known = ", ".join(repr(known) for known in _STANDARD_DEVIATIONS_PER_UNIT)
            raise ValueError(f"Unknown lengthscale convention {name!r}; known are {known}.")
    factor = _STANDARD_DEVIATIONS_PER_UNIT[source] / _STANDARD_DEVIATIONS_PER_UNIT[target]
    return jnp.asarray(lengthscale) * factor
