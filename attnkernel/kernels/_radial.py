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

from .._core.arrays import precise_matmul
from .._core.host_arrays import AnyArray, is_concrete
from .._core.parameter_arguments import Fixed, Number, as_trained, constant, fixed
from .._core.parameters import Free, Parameter
from .._core.symbolic_sizes import is_at_most
from ._boxes import PointBoxes
from ._distances import as_row, pairwise_squares, scaled_squares
from ._integrals import log_integral, log_sphere_surface
from ._scaled import Scaled

MAX_LIGHT_DIFFERENCES = 12  # of a distance: recomputing them costs less than storing the result
MAX_UNROLLED_PAIRS = 2**15  # up to which a program of fewer steps is faster


class Metric(Parameter):
    """A symmetric positive definite matrix M = AᵀA, by its factor A."""

    factor_parameter: Parameter

    @classmethod
    def of(cls, metric: Number) -> "Metric":
        """The parameter of a matrix; `ValueError` if it is not symmetric positive definite."""
        if isinstance(metric, Fixed):
            return cls(constant(fixed(_cholesky_factor(metric.numbers)), 2))
        return cls(Free(_cholesky_factor(metric), 2))

    @property
    def value(self) -> Float[Array, "..."]:
        return self.factor.mT @ self.factor

    @property
    def factor(self) -> Float[Array, "..."]:
        """A."""
        return jnp.asarray(self.factor_parameter.value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.factor_parameter.shape

    @property
    def is_fixed(self) -> bool:
        return self.factor_parameter.is_fixed

    @property
    def has_heads(self) -> bool:
        return self.factor_parameter.has_heads


class Radial(Scaled):
    r"""A kernel of the distance: $\log K(q, k) = g(r^2)$, $r^2 = \|M^{1/2} (q - k) / \ell\|^2$.

    To add one, subclass and write `log_of`: g, with finite derivatives at 0.

    **Arguments:**

    - `lengthscale`: ℓ > 0 in the units of x: one number, or shape (dim,): one per dimension. It is
      trained, also if it is left out; `ak.fixed(0.3)` holds it fixed.
    - `metric`: M, symmetric positive definite, shape (dim, dim): the full metric, for a single ℓ.
      It is trained if it is given, as a factor A with $A^\top A = M$. Default: the identity.

    **Raises:** `ValueError` if a lengthscale is not positive and finite, the metric is not
    positive definite, or either is of another dimension than the points.

    ```python
    class Quartic(ak.kernels.Radial):
        def log_of(self, squares):
            return -(squares**2)

    x = jnp.array([[0.0], [2.0]])
    assert Quartic(2.0).pairwise(x, x)[0, 1] == -1.0
    ```
    """

    metric_parameter: Metric | None

    def __init__(self, lengthscale: Number = 1.0, *, metric: Number | None = None):
        super().__init__(lengthscale)
        if metric is not None and self.lengthscale_parameter.shape:
            raise ValueError("A full metric goes with one lengthscale, not one per dimension.")
        self.metric_parameter = None if metric is None else Metric.of(metric)

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
        return None if self.metric_parameter is None else self.metric_parameter.value

    @property
    def _metric_factor(self) -> Float[Array, "dim dim"] | None:
        """The matrix A with AᵀA = M, the metric; None for the identity."""
        return None if self.metric_parameter is None else self.metric_parameter.factor

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.log_of(self.scaled_square(q, k))

    def scaled_square(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        """`unit` times $r^2$ of one query and one key: what `log_pair` gives to `log_of`."""
        power, inverse, factor = self._split_lengthscale(q)
        return scaled_squares(tuple(q * power), tuple(k * power), inverse, factor, self.unit)

    def in_lengthscales(self, points: Float[Array, "points dim"]) -> Float[Array, "points dim"]:
        r"""$M^{1/2} x / \ell$ of each point x: the coordinates in which r is the distance."""
        power, inverse, factor = self._split_lengthscale(points)
        points = points * as_row(power) * as_row(inverse)
        return points if factor is None else precise_matmul(points, factor.T)

    def pairwise(
        self, q: Float[Array, "queries dim"], k: Float[Array, "keys dim"]
    ) -> Float[Array, "queries keys"]:
        power, inverse, factor = self._split_lengthscale(q)
        scale = inverse, factor, self.unit
        q, k = q * as_row(power), k * as_row(power)
        if is_at_most(q.shape[0] * k.shape[0], MAX_UNROLLED_PAIRS):
            rows = tuple(a[:, None] for a in q.T), tuple(b[None, :] for b in k.T)
            # pairs so far apart that their squares overflow are constants to derivatives
            far = jnp.isinf(jax.lax.stop_gradient(scaled_squares(*rows, *scale)))
            near_by = tuple(jnp.where(far, 0.0, a - b) for a, b in zip(*rows, strict=True))
            squares = scaled_squares(near_by, (0.0,) * len(near_by), *scale)
            return self.log_of(jnp.where(far, math.copysign(math.inf, self.unit), squares))
        return self.log_of(pairwise_squares(q, k, *scale, self.is_smooth))

    def is_light(self, dim: int) -> bool:
        return (dim if self.metric_parameter is None else dim**2 // 2) <= MAX_LIGHT_DIFFERENCES

    def _split_lengthscale(
        self, points: Float[Array, "... dim"]
    ) -> tuple[Float[Array, "*dim"], Float[Array, "*dim"], Float[Array, "dim dim"] | None]:
        r"""Returns $(2^{-e}, 2^e / \ell, A)$ with $2^e$ near ℓ and AᵀA the metric, None for the
        identity: $r = \|A (q - k)\, 2^{-e} (2^e / \ell)\|$. Derivatives take e as constant.
        `points` give the dtype of the three and the dimension that ℓ and A are checked against."""
        self._require_parameter_shape(points.shape[-1])
        log = self.lengthscale_parameter.log().astype(points.dtype)
        limit = jnp.finfo(points.dtype).maxexp // 2 - 4  # squares of such points are finite
        exponent = jnp.round(jax.lax.stop_gradient(log) / math.log(2.0))
        exponent = jnp.clip(jnp.nan_to_num(exponent), -limit, limit).astype(int)
        one, factor = jnp.ones((), points.dtype), self._metric_factor
        power, inverse = jnp.ldexp(one, -exponent), jnp.exp(-log) * jnp.ldexp(one, exponent)
        return power, inverse, None if factor is None else factor.astype(points.dtype)

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        """g at the least distance of the two boxes: g falls with the distance."""
        gap, kernel = boxes.gap() * (1.0 - 1e-5), self  # rounding must not rule out a pair
        if (factor := self._metric_factor) is not None:
            # ‖A d‖ is at least the least singular value of A times ‖d‖
            gap = gap * jnp.linalg.norm(factor, ord=-2).astype(gap.dtype)
            kernel = eqx.tree_at(lambda kernel: kernel.metric_parameter, self, None)
        return kernel.log_pair(gap, jnp.zeros_like(gap))

    def search_box(
        self, x: Float[AnyArray, "n dim"], weights: AnyArray | None = None
    ) -> tuple[Scaled, Scaled]:
        """As of `Scaled`; with a metric, of inputs in its coordinates."""
        self._require_parameter_shape(x.shape[1])
        factor = self._metric_factor
        return super().search_box(x if factor is None else x @ factor.T, weights)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        r"""$\log \int K = \log \int K_1 + \sum_c \log \ell_c - \tfrac12 \log \det M$, with
        $K_1$ the kernel of lengthscale 1: by quadrature, exact to rounding."""
        self._require_parameter_shape(dim)
        logs = jnp.sum(jnp.broadcast_to(self.lengthscale_parameter.log(), (dim,)))
        if (factor := self._metric_factor) is not None:
            logs = logs - jnp.linalg.slogdet(factor)[1]
        volume = self._log_radial_integral(dim)
        if is_concrete(volume) and not np.isfinite(volume):
            raise ValueError(
                f"{self} falls too slowly to be a density in {dim} dimensions: its integral is "
                f"infinite. Try ak.Gaussian, or fewer columns."
            )
        return log_sphere_surface(dim) + volume + logs

    def _log_radial_integral(self, dim: int) -> Float[Array, ""]:
        """Returns $\\log \\int_0^\\infty r^{d - 1} K(r)\\, \\mathrm{d}r$, d = `dim`; NaN where
        it is infinite."""
        dtype = self.lengthscale_parameter.log().dtype
        return log_integral(lambda squares: self.log_of(squares * self.unit), dim, dtype)

    def _require_parameter_shape(self, dim: int) -> None:
        """Raises `ValueError` unless there is one lengthscale, or `dim` of them, and the metric, if
        any, has shape (dim, dim)."""
        super()._require_parameter_shape(dim)
        if (metric := self.metric_parameter) is not None and metric.shape != (dim, dim):
            raise ValueError(
                f"The metric of this {type(self).__name__} has shape {metric.shape}, "
                f"but the points have {dim} dimensions; expected ({dim}, {dim})."
            )


def _cholesky_factor(metric: ArrayLike) -> Float[Array, "dim dim"]:
    """Returns the upper triangular A with AᵀA = the metric; `ValueError` unless that is symmetric
    positive definite."""
    array = as_trained("metric", metric)
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
