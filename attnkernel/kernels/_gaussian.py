"""The Gaussian kernel, and its scale mixtures: the rational quadratic and the Cauchy kernel."""

import math

import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from .._core.parameter_arguments import Number, positive
from .._core.parameters import PositiveParameter
from ._radial import Radial


class Gaussian(Radial):
    r"""The Gaussian (squared-exponential, RBF) kernel.

    $$ \log K(q, k) = -\tfrac12 r^2, \qquad r^2 = \|M^{1/2} (q - k) / \ell\|^2,
       \quad q, k \in \mathbb{R}^d $$

    `lengthscale` is a standard deviation, in the units of x; other conventions come through
    `attnkernel.kernels.convert_lengthscale`. One per dimension, or a full `metric`: see `Radial`.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.Gaussian(1.0).pairwise(x[:1], x)).round(3)
    array([[1.   , 0.882, 0.135]], dtype=float32)

    ```
    """

    __init__ = Radial.__init__

    unit = -0.5

    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return squares


class RationalQuadratic(Radial):
    r"""A scale mixture of Gaussians.

    $$ \log K = -\alpha \log\Big(1 + \frac{r^2}{2 \alpha}\Big), \qquad \alpha > 0 $$

    **Arguments:** as in `Radial`, and `alpha`: α; the Gaussian is its limit at ∞. Default 1.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.kernels.RationalQuadratic(1.0, alpha=2.0).pairwise(x[:1], x)).round(3)
    array([[1.   , 0.886, 0.25 ]], dtype=float32)

    ```
    """

    alpha_parameter: PositiveParameter

    def __init__(
        self, lengthscale: Number = 1.0, alpha: Number = 1.0, *, metric: Number | None = None
    ):
        super().__init__(lengthscale, metric=metric)
        self.alpha_parameter = positive("alpha", alpha, "Try 1.")

    @property
    def alpha(self) -> float | Float[Array, "..."]:
        return self.alpha_parameter.value

    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return -self.alpha * jnp.log1p(squares / (2.0 * self.alpha))

    def _log_radial_integral(self, dim: int) -> Float[Array, ""]:
        r"""Returns $\log \int_0^\infty r^{d - 1} (1 + r^2 / 2 \alpha)^{-\alpha}\, \mathrm{d}r$,
        d = `dim`; NaN for α ≤ d / 2, where it is infinite.

        Close to d / 2 the tail is too long for a quadrature: up to 1 above, in closed form.
        """
        above = self.alpha - 0.5 * dim
        near, half = (above > 0) & (above < 1), 0.5 * dim
        ours = jnp.where(near, self.alpha, half + 0.5)
        beta = math.lgamma(half) + gammaln(ours - half) - gammaln(ours)
        closed = half * jnp.log(2.0 * ours) + beta - math.log(2.0)
        return jnp.where(near, closed, super()._log_radial_integral(dim))


class Cauchy(Radial):
    r"""The Cauchy kernel: $\log K = -\log(1 + r^2)$; arguments as in `Radial`.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.kernels.Cauchy(1.0).pairwise(x[:1], x)).round(3)
    array([[1. , 0.8, 0.2]], dtype=float32)

    ```
    """

    __init__ = Radial.__init__

    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return -jnp.log1p(squares)
