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

from .._core.arrays import AnyArray, is_concrete, power_of_two, precise_matmul
from .._core.hints import explained
from .._core.parameters import Fixed, Free, Number, Parameter, as_trained, constant, fixed
from ._base import Inputs, Keys, PointBoxes, Queries, Scores
from ._distances import as_row, pairwise_squares, scaled_squares
from ._scaled import Scaled


class Metric(Parameter):
    """The parameter of a symmetric positive definite matrix M = AᵀA, stored as its factor A."""

    factor_parameter: Parameter

    @classmethod
    def of(cls, metric: Number) -> "Metric":
        """The parameter of a matrix; `ValueError` if it is not symmetric positive definite.

        A traced matrix is only checked to be square.
        """
        if isinstance(metric, Fixed):
            return cls(constant(fixed(_cholesky_factor(metric.numbers)), 2))
        return cls(Free(_cholesky_factor(metric), 2))

    @property
    def value(self) -> Float[Array, "..."]:
        """The matrix M = AᵀA."""
        return self.factor.mT @ self.factor

    @property
    def factor(self) -> Float[Array, "..."]:
        """The factor A, with AᵀA = M."""
        return jnp.asarray(self.factor_parameter.value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.factor_parameter.shape

    @property
    def is_fixed(self) -> bool:  # type: ignore[override]
        """Whether the factor A is fixed, not trained."""
        return self.factor_parameter.is_fixed

    @property
    def has_heads(self) -> bool:  # type: ignore[override]
        """Whether the factor A holds the numbers of several heads."""
        return self.factor_parameter.has_heads


class Radial(Scaled):
    r"""A kernel of the distance: $\log K(q, k) = g(r^2)$, $r^2 = \|M^{1/2} (q - k) / \ell\|^2$.

    To add one, subclass and write `log_of`: g, which does not rise with r², since distant blocks
    of pairs are skipped by it, and has finite derivatives at 0.

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

    @explained
    def __init__(self, lengthscale: Number = 1.0, *, metric: Number | None = None):
        super().__init__(lengthscale)
        if metric is not None and self.lengthscale_parameter.shape:
            raise ValueError("A full metric goes with one lengthscale, not one per dimension.")
        self.metric_parameter = None if metric is None else Metric.of(metric)

    # g has a slope at 0: a rounding of r² is one of log K, and products of matrices may form r²
    is_smooth: ClassVar[bool] = True

    @abc.abstractmethod
    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        """$g(r^2)$ = log K, from the squared distance in lengthscales."""

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
        """$r^2$ of one query and one key: what `log_pair` gives to `log_of`."""
        power, inverse, factor = self._split_lengthscale(q)
        # sliced before they are subtracted: the sums of 10 000² pairs in 8 dimensions 1.2 x as fast
        steps = [a - b for a, b in zip(q * power, k * power, strict=True)]
        return scaled_squares(steps, inverse, factor)

    def in_lengthscales(self, points: Float[Array, "points dim"]) -> Float[Array, "points dim"]:
        r"""$A x / \ell$ of each point x, with $A^\top A = M$: their distances are r."""
        power, inverse, factor = self._split_lengthscale(points)
        points = points * as_row(power) * as_row(inverse)
        return points if factor is None else precise_matmul(points, factor.T)

    def pairwise(self, q: Queries, k: Keys) -> Scores:
        power, inverse, factor = self._split_lengthscale(q)
        q, k = q * as_row(power), k * as_row(power)
        return self.log_of(pairwise_squares(q, k, inverse, factor, self.is_smooth))

    @property
    def is_cheap(self) -> bool:  # type: ignore[override]
        """Whether repeating `log_pair` costs less than storing its result: without a metric."""
        return self.metric_parameter is None

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
        exponent, factor = jnp.clip(exponent, -limit, limit), self._metric_factor
        power = power_of_two(-exponent, points.dtype)
        inverse = jnp.exp(-log) * power_of_two(exponent, points.dtype)
        return power, inverse, None if factor is None else factor.astype(points.dtype)

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        """g at a lower bound on r between the two boxes: g does not rise with r.

        The bound is the least distance, lowered by a factor of 1 − 1e-5. With a metric A takes its
        least singular value in all directions.
        """
        gap, kernel = boxes.gap() * (1.0 - 1e-5), self  # rounding must not rule out a pair
        if (factor := self._metric_factor) is not None:
            # ‖A d‖ is at least the least singular value of A times ‖d‖
            gap = gap * jnp.linalg.norm(factor, ord=-2).astype(gap.dtype)
            kernel = eqx.tree_at(lambda kernel: kernel.metric_parameter, self, None)
        return kernel.log_pair(gap, jnp.zeros_like(gap))

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Scaled, Scaled]:
        """The box of `Scaled`; with a metric M = AᵀA, that for the points A x in place of x."""
        self._require_parameter_shape(x.shape[1])
        factor = self._metric_factor
        return super().search_box(x if factor is None else x @ factor.T, weights)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        r"""$\log \int K = \log \int K_1 + \sum_c \log \ell_c - \tfrac12 \log \det M$, with
        $K_1$ the kernel of lengthscale 1, by quadrature, exact to rounding:

        $$ \int_{\mathbb{R}^d} K_1(\|u\|)\, \mathrm{d}u = \frac{2 \pi^{d/2}}{\Gamma(d/2)}
           \int_0^\infty r^{d - 1} K_1(r)\, \mathrm{d}r $$

        `ValueError` where the integral is infinite; NaN instead if parameters are traced.
        """
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
        log_surface = math.log(2.0) + 0.5 * dim * math.log(math.pi) - math.lgamma(0.5 * dim)
        return log_surface + volume + logs

    def _log_radial_integral(self, dim: int) -> Float[Array, ""]:
        r"""Returns $\log \int_0^\infty r^{d - 1} K(r)\, \mathrm{d}r$, d = `dim`.

        The trapezoidal rule in log r, whose error falls exponentially for a K that is smooth there.
        NaN where the integrand has not fallen by $e^{27}$ at $r = e^{40}$: the integral is
        infinite, or nearly so. No square of $e^{40}$ overflows, in float32 neither.
        """
        dtype, step = self.lengthscale_parameter.log().dtype, 1 / 16
        logs = np.arange(-40.0, 40.0 + step, step)
        terms = self.log_of(jnp.asarray(np.exp(2.0 * logs), dtype))
        terms = terms + jnp.asarray(dim * logs + math.log(step), dtype)
        # XLA's exp on CPU turns a NaN that is folded into a constant into any number (jaxlib 0.10)
        terms = jax.lax.optimization_barrier(terms)
        total = jax.nn.logsumexp(terms)
        return jnp.where(terms[-1] < total - 27.0, total, jnp.nan)

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
    positive definite. A traced metric is only checked to be square."""
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
