"""Kernels of the inner product of query and key."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._checks import as_constant
from ._base import Kernel


class DotProduct(Kernel):
    r"""The exponential of the scaled inner product: the kernel of the transformer.

    $$ \log K(q, k) = c\, q \cdot k, \qquad q, k \in \mathbb{R}^d $$

    **Arguments:** `scale`: c. Default None: $1/\sqrt d$. A number is fixed; a JAX array is
    a parameter to fit.

    **Source:** Vaswani et al., *Attention is all you need* (2017).
    """

    scale: ArrayLike | None = eqx.field(
        default=None, converter=lambda scale: None if scale is None else as_constant(scale)
    )

    def stretched(self, factor: float) -> "DotProduct":
        return self  # it has no lengthscale

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.pairwise(q[None], k[None])[0, 0]

    def pairwise(
        self, q: Float[Array, "queries dim"], k: Float[Array, "keys dim"]
    ) -> Float[Array, "queries keys"]:
        scale = 1.0 / math.sqrt(q.shape[1]) if self.scale is None else self.scale
        return jnp.matmul(q * scale, k.T, precision=jax.lax.Precision.HIGHEST)
