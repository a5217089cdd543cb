"""Kernels of the distance ‖q − k‖ measured in lengthscales.

The difference q − k is taken before anything is squared, so that a common shift of all points
cancels exactly, in float32 too.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import wadler_lindig as wl
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._checks import is_known, require_positive
from ._base import Kernel


class Gaussian(Kernel):
    r"""The Gaussian (squared-exponential, RBF) kernel.

    $$ \log K(q, k) = -\tfrac12 \sum_{c=1}^{d} \Big(\frac{q_c - k_c}{\ell_c}\Big)^2,
       \qquad q, k \in \mathbb{R}^d,\ \ell_c > 0 $$

    `lengthscale` is a standard deviation, in the units of x; other conventions come through
    `attnkernel.kernels.convert_lengthscale`. It is held as its logarithm, so that no step of any
    optimiser can make it negative.

    **Arguments:**

    - `lengthscale`: ℓ, one number, or an array of shape (dim,): one per dimension. Default 1.

    **Raises:** `ValueError` if a lengthscale is not positive and finite, or if there is one per
    dimension and the points have another number of dimensions.
    """

    log_lengthscale: Float[Array, "*dim"]

    def __init__(self, lengthscale: ArrayLike = 1.0):
        require_positive("lengthscale", lengthscale)
        if np.ndim(lengthscale) > 1:
            raise ValueError(
                f"lengthscale must be one number or one per dimension, shape (dim,); got shape "
                f"{np.shape(lengthscale)}. For several heads make a stack of kernels: "
                f"eqx.filter_vmap(ak.Gaussian)(lengthscales)."
            )
        with np.errstate(over="ignore"):
            array = jnp.asarray(lengthscale)
            array = array.astype(jnp.promote_types(array.dtype, jnp.result_type(float)))
        require_positive("lengthscale", array)  # also once it is rounded to this precision
        self.log_lengthscale = jnp.log(array)

    @property
    def lengthscale(self) -> Float[Array, "*dim"]:
        """ℓ, in the units of x."""
        return jnp.exp(self.log_lengthscale)

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        self._require_dimensions(q.shape[0])
        difference, inverse = q - k, jnp.exp(-self.log_lengthscale)
        if inverse.ndim == 1:
            return -0.5 * jnp.sum((difference * inverse) ** 2)
        # scaled after the sum: a multiplication per pair, and its gradient, instead of one per
        # coordinate; twice by 1/ℓ, because 1/ℓ² overflows first
        return -0.5 * jnp.sum(difference**2) * inverse * inverse

    def bounds(self, x: Float[Array, "n dim"]) -> tuple["Gaussian", "Gaussian"]:
        r"""Lengthscales that inputs x can tell apart: from half a typical gap to ten ranges.

        Below half the gap between neighbours the estimate is that of the nearest neighbour
        whatever ℓ; beyond ten times the range of x it is the mean of y. Per dimension, the gap is
        the smaller of the mean and of the median gap between distinct neighbours, so that neither
        clusters nor ties hide the fine structure. A single ℓ takes the widest interval.
        """
        self._require_dimensions(x.shape[1])
        gaps = jnp.diff(jnp.sort(x, axis=0), axis=0)
        spread = jnp.sum(gaps, axis=0)
        median = jnp.nanmedian(jnp.where(gaps > 0, gaps, jnp.nan), axis=0)
        lower, upper = 0.5 * jnp.minimum(spread / gaps.shape[0], median), 10.0 * spread
        constant = spread == 0  # such a dimension has no say
        if self.log_lengthscale.ndim == 0:
            lower = jnp.min(jnp.where(constant, jnp.inf, lower))
            upper = jnp.max(upper)
        else:
            lower, upper = jnp.where(constant, 1.0, lower), jnp.where(constant, 1.0, upper)

        def at(lengthscale: Array) -> "Gaussian":
            log = jnp.log(lengthscale).astype(self.log_lengthscale.dtype)
            return eqx.tree_at(lambda kernel: kernel.log_lengthscale, self, log)

        return at(lower), at(upper)

    def _require_dimensions(self, dim: int) -> None:
        if self.log_lengthscale.ndim == 1 and self.log_lengthscale.shape != (dim,):
            raise ValueError(
                f"This Gaussian has {self.log_lengthscale.shape[0]} lengthscales, one per "
                f"dimension, but the points have {dim} dimensions. Give one number, or {dim} of "
                f"them."
            )

    def __pdoc__(self, **kwargs) -> wl.AbstractDoc | None:
        """`Gaussian(lengthscale=0.1355)` where the value is known, shapes elsewhere."""
        leaf = self.log_lengthscale
        if not isinstance(leaf, jax.Array) or not is_known(leaf) or leaf.ndim > 1 or leaf.size > 8:
            return None
        values = [f"{value:.4g}" for value in jnp.exp(leaf).ravel().tolist()]
        shown = values[0] if leaf.ndim == 0 else "[" + ", ".join(values) + "]"
        return wl.TextDoc(f"{type(self).__name__}(lengthscale={shown})")
