"""The Gaussian kernel, its scale mixtures, and the Matérn kernels, with finite derivatives at 0."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from .._core.parameters import Number, PositiveParameter, natural, positive
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

    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return -0.5 * squares


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

    alpha = natural("alpha")

    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return -self.alpha * jnp.log1p(squares / (2.0 * self.alpha))

    def _log_radial_integral(self, dim: int) -> Float[Array, ""]:
        r"""Returns $\log \int_0^\infty r^{d - 1} (1 + r^2 / 2 \alpha)^{-\alpha}\, \mathrm{d}r$,
        d = `dim`; NaN for α ≤ d / 2, where it is infinite.

        For d / 2 < α < d / 2 + 1 the tail is too long for a quadrature, and a closed form is used.
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


class Laplace(Radial):
    r"""The Laplace (exponential, Matérn-1/2) kernel: $\log K = -r$; arguments as in `Radial`.

    At coincident points, where it has no derivative, its derivative is 0.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.Laplace(1.0).pairwise(x[:1], x)).round(3)
    array([[1.   , 0.607, 0.135]], dtype=float32)

    ```
    """

    is_smooth = False
    __init__ = Radial.__init__

    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return -square_root(squares)


class Matern32(Radial):
    r"""The Matérn kernel of smoothness 3/2; arguments as in `Radial`.

    $$ \log K = \log(1 + \sqrt3\, r) - \sqrt3\, r $$

    **Source:** Rasmussen and Williams, *Gaussian Processes for Machine Learning* (2006), 4.17.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.kernels.Matern32(1.0).pairwise(x[:1], x)).round(3)
    array([[1.   , 0.785, 0.14 ]], dtype=float32)

    ```
    """

    __init__ = Radial.__init__

    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        def log_kernel(t: Array) -> Array:  # t = √3 r
            return jnp.log1p(t) - t

        return function_of_root(log_kernel, lambda t: -0.5 / (1.0 + t), 3.0 * squares)


class Matern52(Radial):
    r"""The Matérn kernel of smoothness 5/2; arguments as in `Radial`.

    $$ \log K = \log(1 + \sqrt5\, r + \tfrac53 r^2) - \sqrt5\, r $$

    **Source:** Rasmussen and Williams, *Gaussian Processes for Machine Learning* (2006), 4.17.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.Matern52(1.0).pairwise(x[:1], x)).round(3)
    array([[1.   , 0.829, 0.139]], dtype=float32)

    ```
    """

    __init__ = Radial.__init__

    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        def log_kernel(t: Array) -> Array:  # t = √5 r
            return jnp.log1p(t + t * t / 3.0) - t

        def slope(t: Array) -> Array:
            return -(1.0 + t) / 6.0 / (1.0 + t + t * t / 3.0)

        return function_of_root(log_kernel, slope, 5.0 * squares)


def square_root(squares: Array) -> Array:
    """Returns the square root of each number, with derivative 0 at 0, where √ has none."""
    zero = squares == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, squares)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def function_of_root(
    function: Callable[[Array], Array], slope: Callable[[Array], Array], squares: Array
) -> Array:
    r"""Returns $f(\sqrt u)$ of each number u in `squares`; −∞ where u overflows.

    `slope`: $\mathrm{d} f / \mathrm{d} u$ as a function of $\sqrt u$. It is finite at 0, where the
    derivative of the root is not.
    """
    overflows = jnp.isinf(squares)
    return jnp.where(overflows, -jnp.inf, function(jnp.sqrt(jnp.where(overflows, 0.0, squares))))


@function_of_root.defjvp
def _(
    function: Callable, slope: Callable, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    """Returns f(√u) and its tangent."""
    (squares,), (tangent,) = primals, tangents
    finite = jnp.where(jnp.isinf(squares), 0.0, squares)
    return function_of_root(function, slope, squares), slope(square_root(finite)) * tangent
