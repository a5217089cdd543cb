"""Kernels of the distance ‖q − k‖ measured in lengthscales.

Points are brought near the lengthscale by a power of two, which rounds nothing, so that squares
neither overflow nor vanish.
"""

import abc
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, is_concrete, wider_dtype
from .._core.symbolic_sizes import is_at_most
from ._boxes import PointBoxes
from ._distances import as_row, pairwise_squares, squares_of
from ._integrals import log_integral, log_sphere
from ._scaled import Scaled

MAX_LIGHT_DIFFERENCES = 12  # of a distance: recomputing them costs less than storing the result
MAX_UNROLLED_PAIRS = 2**15  # up to which a program of fewer steps is faster


class Radial(Scaled):
    r"""A kernel of the distance: $\log K(q, k) = g(r^2)$, $r^2 = \|M^{1/2} (q - k) / \ell\|^2$.

    To add one, subclass and write `log_of`: g, with finite derivatives at 0.

    **Arguments:**

    - `lengthscale`: ℓ > 0 in the units of x: one number, or shape (dim,): one per dimension. It is
      held as in `Scaled`.
    - `metric`: M, symmetric positive definite, shape (dim, dim): the full metric, for a single ℓ.
      Default: the identity. It is held as a factor A with $A^\top A = M$, free to fit.

    **Raises:** `ValueError` if a lengthscale is not positive and finite, the metric is not
    positive definite, or either is of another dimension than the points.
    """

    metric_factor: Float[Array, "dim dim"] | None

    def __init__(self, lengthscale: ArrayLike = 1.0, *, metric: ArrayLike | None = None):
        super().__init__(lengthscale)
        if metric is not None and self.log_lengthscale.ndim:
            raise ValueError("A full metric goes with one lengthscale, not one per dimension.")
        self.metric_factor = None if metric is None else _factor(metric)

    # log_of is given this many times r²: a factor of its own costs a multiplication per pair
    unit: ClassVar[float] = 1.0
    # g has a slope at 0: a rounding of r² is one of log K, and products of matrices may form r²
    is_smooth: ClassVar[bool] = True

    @abc.abstractmethod
    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        """$g(r^2)$ = log K, from `unit` times the squared distance in lengthscales."""

    @property
    def metric(self) -> Float[Array, "dim dim"] | None:
        """M, or None for the identity."""
        factor = self.metric_factor
        return None if factor is None else factor.T @ factor

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        near, inverse = self.unit_scale(q)
        columns = tuple(q * near), tuple(k * near)
        return self.log_of(squares_of(*columns, inverse, self.metric_factor, self.unit))

    def pairwise(
        self, q: Float[Array, "queries dim"], k: Float[Array, "keys dim"]
    ) -> Float[Array, "queries keys"]:
        near, inverse = self.unit_scale(q)
        q, k, scale = q * as_row(near), k * as_row(near), (inverse, self.metric_factor, self.unit)
        if is_at_most(q.shape[0] * k.shape[0], MAX_UNROLLED_PAIRS):
            rows = tuple(a[:, None] for a in q.T), tuple(b[None, :] for b in k.T)
            # pairs so far apart that their squares overflow are constants to derivatives
            far = jnp.isinf(jax.lax.stop_gradient(squares_of(*rows, *scale)))
            near_by = tuple(jnp.where(far, 0.0, a - b) for a, b in zip(*rows, strict=True))
            squares = squares_of(near_by, (0.0,) * len(near_by), *scale)
            return self.log_of(jnp.where(far, math.copysign(math.inf, self.unit), squares))
        return self.log_of(pairwise_squares(q, k, *scale, self.is_smooth))

    def is_light(self, dim: int) -> bool:
        return (dim if self.metric_factor is None else dim**2 // 2) <= MAX_LIGHT_DIFFERENCES

    def unit_scale(
        self, points: Float[Array, "... dim"]
    ) -> tuple[Float[Array, "*dim"], Float[Array, "*dim"]]:
        """A power of two near 1/ℓ, constant to differentiation, and 1/ℓ in units of it."""
        self._require_dimensions(points.shape[-1])
        most = jnp.finfo(points.dtype).maxexp // 2 - 4  # points that overflow are none of ours
        exponent = jnp.round(jax.lax.stop_gradient(self.log_lengthscale) / math.log(2.0))
        exponent = jnp.clip(jnp.nan_to_num(exponent), -most, most).astype(int)
        one = jnp.ones((), points.dtype)
        near, far = jnp.ldexp(one, -exponent), jnp.ldexp(one, exponent)
        return near, jnp.exp(-self.log_lengthscale) * far

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        """g at the least distance of the two boxes: g falls with the distance."""
        gap, kernel = boxes.gap() * (1.0 - 1e-5), self  # rounding must not rule out a pair
        if self.metric_factor is not None:
            # ‖A d‖ is at least the least singular value of A times ‖d‖
            gap = gap * jnp.linalg.norm(self.metric_factor, ord=-2)
            kernel = eqx.tree_at(lambda kernel: kernel.metric_factor, self, None)
        return kernel.log_pair(gap, jnp.zeros_like(gap))

    def search_box(self, x: Float[Array, "n dim"]) -> tuple[Scaled, Scaled]:
        """As of `Scaled`; with a metric, of inputs in its coordinates."""
        self._require_dimensions(x.shape[1])
        return super().search_box(x if self.metric_factor is None else x @ self.metric_factor.T)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        r"""$\log \int K = \log \int K_1 + \sum_c \log \ell_c - \tfrac12 \log \det M$, with
        $K_1$ the kernel of lengthscale 1: by quadrature, exact to rounding."""
        self._require_dimensions(dim)
        logs = jnp.sum(jnp.broadcast_to(self.log_lengthscale, (dim,)))
        if self.metric_factor is not None:
            logs = logs - jnp.linalg.slogdet(self.metric_factor)[1]
        volume = self._log_integral(dim)
        if is_concrete(volume) and not np.isfinite(volume):
            raise ValueError(
                f"{self} falls too slowly to be a density in {dim} dimensions: its integral is "
                f"infinite. Try ak.Gaussian, or fewer columns."
            )
        return log_sphere(dim) + volume + logs

    def _log_integral(self, dim: int) -> Float[Array, ""]:
        """$\\log \\int_0^\\infty r^{d - 1} K(r)\\, \\mathrm{d}r$; NaN where it is infinite."""
        dtype = self.log_lengthscale.dtype
        return log_integral(lambda squares: self.log_of(squares * self.unit), dim, dtype)

    def _require_dimensions(self, dim: int) -> None:
        super()._require_dimensions(dim)
        if self.metric_factor is not None and self.metric_factor.shape != (dim, dim):
            raise ValueError(
                f"The metric of this {type(self).__name__} has shape {self.metric_factor.shape}, "
                f"but the points have {dim} dimensions; expected ({dim}, {dim})."
            )

    def _texts_of_others(self) -> list[str]:
        metric = self.metric
        return [] if metric is None else [f"metric={np.round(np.asarray(metric), 4).tolist()}"]


def _factor(metric: ArrayLike) -> Float[Array, "dim dim"]:
    """A with AᵀA = the metric."""
    array = as_real_array("metric", metric)
    array = array.astype(wider_dtype(array.dtype, jnp.result_type(float)))
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ValueError(f"metric must have shape (dim, dim); got {array.shape}.")
    factor = jnp.linalg.cholesky(array).T
    if is_concrete(array) and not (
        np.allclose(array, array.T) and np.all(np.isfinite(np.asarray(factor)))
    ):
        raise ValueError(
            f"metric must be symmetric and positive definite; got {np.asarray(array).tolist()}."
        )
    return factor
