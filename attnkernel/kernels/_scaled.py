"""Kernels with a lengthscale: what a fit needs of one, so that a new one is `log_pair` alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import wadler_lindig as wl
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import is_concrete, wider_dtype
from .._core.validation import require_positive
from ._base import Kernel, unbounded


class Scaled(Kernel):
    r"""A kernel with a lengthscale: $\log K(q, k)$ is a function of $(q - k) / \ell$.

    To add one, subclass and write `log_pair`, with `self.lengthscale` for ℓ and finite derivatives
    at q = k. Fits then know where ℓ may move, plots and reports what it is, configs how to make
    one. A kernel of the distance alone is faster as a `Radial`.

    **Arguments:** `lengthscale`: ℓ > 0 in the units of x: one number, or shape (dim,): one per
    dimension. It is held as its logarithm, so that no step of any optimiser can make it negative.

    **Raises:** `ValueError` if a lengthscale is not positive and finite, or there are not as many
    as dimensions of the points.
    """

    log_lengthscale: Float[Array, "*dim"]

    def __init__(self, lengthscale: ArrayLike = 1.0):
        self.log_lengthscale = log_positive("lengthscale", lengthscale)
        if self.log_lengthscale.ndim > 1:
            raise ValueError(
                f"lengthscale must be one number or one per dimension, shape (dim,); got shape "
                f"{np.shape(lengthscale)}. For several heads make a stack of kernels: "
                f"eqx.filter_vmap({type(self).__name__})(lengthscales)."
            )

    @property
    def lengthscale(self) -> Float[Array, "*dim"]:
        """ℓ, in the units of x."""
        return jnp.exp(self.log_lengthscale)

    def check(self, dim_q: int, dim_k: int) -> None:
        super().check(dim_q, dim_k)
        self._require_dimensions(dim_k)

    def search_box(self, x: Float[Array, "n dim"]) -> tuple["Scaled", "Scaled"]:
        r"""Lengthscales that inputs x can tell apart: from half a typical gap to ten ranges.

        Below half the gap between neighbours the estimate is that of the nearest neighbour
        whatever ℓ; beyond ten times the range of x it is the mean of y. Per dimension, the gap is
        the smaller of the mean and of the median gap between distinct neighbours, so that neither
        clusters nor ties hide the fine structure. A single ℓ takes the widest interval. Other
        parameters are free.
        """
        self._require_dimensions(x.shape[1])
        gaps = jnp.diff(jnp.sort(x, axis=0), axis=0)
        spread = jnp.sum(gaps, axis=0)
        lower, upper = self._least(gaps), 10.0 * spread
        constant = spread == 0  # such a dimension has no say
        if self.log_lengthscale.ndim == 0:
            lower = jnp.min(jnp.where(constant, jnp.inf, lower))
            upper = jnp.max(upper)
        else:
            lower, upper = jnp.where(constant, 1.0, lower), jnp.where(constant, 1.0, upper)
        sides = []
        for side, lengthscale in zip(unbounded(self), (lower, upper), strict=True):
            log = jnp.log(lengthscale).astype(self.log_lengthscale.dtype)
            sides.append(eqx.tree_at(lambda kernel: kernel.log_lengthscale, side, log))
        return sides[0], sides[1]

    def rescaled(self, factor: ArrayLike) -> "Scaled":
        log = self.log_lengthscale + jnp.log(jnp.asarray(factor, self.log_lengthscale.dtype))
        return eqx.tree_at(lambda kernel: kernel.log_lengthscale, self, log)

    def _least(self, gaps: Float[Array, "gaps dim"]) -> Float[Array, " dim"]:
        """Half a typical gap between neighbours, per dimension."""
        median = jnp.nanmedian(jnp.where(gaps > 0, gaps, jnp.nan), axis=0)
        return 0.5 * jnp.minimum(jnp.mean(gaps, axis=0), median)

    def _require_dimensions(self, dim: int) -> None:
        if self.log_lengthscale.ndim == 1 and self.log_lengthscale.shape != (dim,):
            raise ValueError(
                f"This {type(self).__name__} has {self.log_lengthscale.shape[0]} lengthscales, one "
                f"per dimension, but the points have {dim} dimensions. Give one number, or {dim} "
                f"of them."
            )

    def __pdoc__(self, **kwargs) -> wl.AbstractDoc | None:
        """`Gaussian(lengthscale=0.1355)` where the value is known, shapes elsewhere."""
        shown = {"lengthscale": self.log_lengthscale, **self._logs_of_others()}
        if not all(
            isinstance(leaf, jax.Array) and is_concrete(leaf) and leaf.ndim <= 1 and leaf.size <= 8
            for leaf in shown.values()
        ):
            return None
        texts = []
        for name, leaf in shown.items():
            values = [f"{value:.4g}" for value in jnp.exp(leaf).ravel().tolist()]
            texts.append(f"{name}=" + (f"[{', '.join(values)}]" if leaf.ndim else values[0]))
        return wl.TextDoc(f"{type(self).__name__}({', '.join([*texts, *self._texts_of_others()])})")

    def _logs_of_others(self) -> dict[str, Array]:
        """Positive parameters besides the lengthscale, by name, as logarithms."""
        return {}

    def _texts_of_others(self) -> list[str]:
        """What else is shown of it, such as `metric=...`."""
        return []


def log_single(name: str, value: ArrayLike) -> Float[Array, ""]:
    """`log_positive` of one number."""
    log = log_positive(name, value)
    if log.ndim:
        raise ValueError(
            f"{name} must be one number; got shape {log.shape}. For several heads make a stack of "
            f"kernels with eqx.filter_vmap."
        )
    return log


def log_positive(name: str, value: ArrayLike) -> Float[Array, "..."]:
    """The logarithm of a positive parameter, in floating point of at least float32.

    **Raises:** `ValueError` if it is not positive and finite, also once rounded to this precision.
    """
    require_positive(name, value)
    with np.errstate(over="ignore"):
        array = jnp.asarray(value)
        array = array.astype(wider_dtype(array.dtype, jnp.result_type(float)))
    require_positive(name, array)
    return jnp.log(array)
