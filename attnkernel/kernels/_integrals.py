r"""Integrals of kernels of the distance, by quadrature: what makes densities of them.

$$ \int_{\mathbb{R}^d} K(\|u\|)\, \mathrm{d}u = \frac{2 \pi^{d/2}}{\Gamma(d/2)}
   \int_0^\infty r^{d - 1} K(r)\, \mathrm{d}r $$
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_FAR, _STEP = 40.0, 1 / 16  # of log r: no square overflows, in float32 neither
_LOST = 27.0  # e^-27 of the integral may be beyond

Profile = Callable[[Float[Array, " nodes"]], Float[Array, " nodes"]]


def log_sphere_surface(dim: int) -> float:
    """Returns log(2 π^(d/2) / Γ(d/2)): of the surface of the unit sphere, d = `dim`."""
    return math.log(2.0) + 0.5 * dim * math.log(math.pi) - math.lgamma(0.5 * dim)


def log_integral(log_of: Profile, dim: int, dtype: np.dtype) -> Float[Array, ""]:
    r"""$\log \int_0^\infty r^{d - 1} K(r)\, \mathrm{d}r$, from log K of r².

    The trapezoidal rule in log r, whose error falls exponentially for a K that is smooth there. NaN
    where the integrand has not fallen by $e^{27}$ at $r = e^{40}$: it is infinite, or nearly so.
    """
    logs = np.arange(-_FAR, _FAR + _STEP, _STEP)
    terms = log_of(jnp.asarray(np.exp(2.0 * logs), dtype))
    terms = terms + jnp.asarray(dim * logs + math.log(_STEP), dtype)
    # of a NaN that it folds into a constant, XLA's exp on CPU makes any number (jaxlib 0.10)
    terms = jax.lax.optimization_barrier(terms)
    total = jax.nn.logsumexp(terms)
    return jnp.where(terms[-1] < total - _LOST, total, jnp.nan)


def log_integral_to_one(log_of: Profile, dim: int, dtype: np.dtype) -> Float[Array, ""]:
    r"""Returns $\log \int_0^1 r^{d - 1} K(r)\, \mathrm{d}r$, from log K of r², d = `dim`: by
    Gauss–Legendre quadrature, for a K that is smooth up to r = 1."""
    nodes, weights = np.polynomial.legendre.leggauss(64 + dim // 2)
    r = 0.5 * (1.0 + nodes)
    terms = np.log(0.5 * weights) + (dim - 1) * np.log(r)
    return jax.nn.logsumexp(log_of(jnp.asarray(r**2, dtype)) + jnp.asarray(terms, dtype))
