"""Kernels of compact support: no weight beyond ℓ, the half-width of the support.

Outside they are -inf with zero gradient. Their weights are sums over neighbours alone; a query
without any has no estimate.
"""

import abc

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import AnyArray, namespace_of
from ._radial import Radial
from ._radial_kernels import function_of_root, square_root
from ._scaled import SortedGaps


class Compact(Radial):
    r"""A radial kernel that is zero from r = 1 on; arguments as in `Radial`.

    To add one, subclass and write `log_inside`: g(r²) for r² < 1.

    ```python
    class Parabola(ak.kernels.Compact):
        def log_inside(self, squares):
            return jnp.log1p(-squares)

    x = jnp.array([[0.0], [1.0], [3.0]])
    assert ak.attention_weights(x, x, kernel=Parabola(2.0))[0, 2] == 0.0
    ```
    """

    __init__ = Radial.__init__

    @abc.abstractmethod
    def log_inside(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns $g(r^2)$ = log K inside the support. `squares`: $r^2 < 1$."""

    def log_of(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        outside = squares >= 1.0  # NaN is not, and stays NaN
        return jnp.where(outside, -jnp.inf, self.log_inside(jnp.where(outside, 0.0, squares)))

    def _log_radial_integral(self, dim: int) -> Float[Array, ""]:
        r"""Returns $\log \int_0^1 r^{d - 1} K(r)\, \mathrm{d}r$, d = `dim`: by Gauss–Legendre
        quadrature, for a K that is smooth up to r = 1."""
        dtype = self.lengthscale_parameter.log().dtype
        nodes, weights = np.polynomial.legendre.leggauss(64 + dim // 2)
        r = 0.5 * (1.0 + nodes)
        terms = np.log(0.5 * weights) + (dim - 1) * np.log(r)
        logs = self.log_inside(jnp.asarray(r**2, dtype))
        return jax.nn.logsumexp(logs + jnp.asarray(terms, dtype))

    def _shortest_lengthscale(self, gaps: SortedGaps) -> Float[AnyArray, " dim"]:
        """Returns the lower end of a search for ℓ, per dimension: at least 1.01 times the largest
        distance of an input to its nearest neighbour, so that each has one in the support."""
        typical = super()._shortest_lengthscale(gaps)
        return namespace_of(typical).maximum(typical, 1.01 * gaps.isolation)


class Boxcar(Compact):
    r"""The uniform kernel: $K = 1\{r < 1\}$.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.kernels.Boxcar(1.0).pairwise(x[:1], x)).round(3)
    array([[1., 1., 0.]], dtype=float32)

    ```
    """

    __init__ = Radial.__init__

    def log_inside(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.zeros_like(squares)


class Triangular(Compact):
    r"""The triangular kernel: $K = (1 - r)_+$.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.kernels.Triangular(1.0).pairwise(x[:1], x)).round(3)
    array([[1. , 0.5, 0. ]], dtype=float32)

    ```
    """

    is_smooth = False
    __init__ = Radial.__init__

    def log_inside(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log1p(-square_root(squares))


class Epanechnikov(Compact):
    r"""The parabola: $K = (1 - r^2)_+$.

    **Source:** Epanechnikov, *Non-parametric estimation of a multivariate probability density*
    (1969).

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.Epanechnikov(1.0).pairwise(x[:1], x)).round(3)
    array([[1.  , 0.75, 0.  ]], dtype=float32)

    ```
    """

    __init__ = Radial.__init__

    def log_inside(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log1p(-squares)


class Biweight(Compact):
    r"""The biweight (quartic): $K = (1 - r^2)_+^2$.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.kernels.Biweight(1.0).pairwise(x[:1], x)).round(3)
    array([[1.   , 0.562, 0.   ]], dtype=float32)

    ```
    """

    __init__ = Radial.__init__

    def log_inside(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return 2.0 * jnp.log1p(-squares)


class Triweight(Compact):
    r"""The triweight: $K = (1 - r^2)_+^3$.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.kernels.Triweight(1.0).pairwise(x[:1], x)).round(3)
    array([[1.   , 0.422, 0.   ]], dtype=float32)

    ```
    """

    __init__ = Radial.__init__

    def log_inside(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return 3.0 * jnp.log1p(-squares)


class Tricube(Compact):
    r"""The tricube of locally weighted regression: $K = (1 - r^3)_+^3$.

    **Source:** Cleveland, *Robust locally weighted regression* (1979).

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.kernels.Tricube(1.0).pairwise(x[:1], x)).round(3)
    array([[1.  , 0.67, 0.  ]], dtype=float32)

    ```
    """

    __init__ = Radial.__init__

    def log_inside(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return 3.0 * jnp.log1p(-(square_root(squares) ** 3))


class Cosine(Compact):
    r"""The cosine bump: $K = \cos(\tfrac\pi2 r)_+$.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.kernels.Cosine(1.0).pairwise(x[:1], x)).round(3)
    array([[1.   , 0.707, 0.   ]], dtype=float32)

    ```
    """

    __init__ = Radial.__init__

    def log_inside(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        def log_kernel(r: Array) -> Array:  # log cos(π r / 2), without its cancellation near r = 1
            return jnp.log(jnp.sin(0.5 * jnp.pi * (1.0 - r)))

        def slope(r: Array) -> Array:  # −(π² / 8) tan(a) / a, a = π r / 2
            angle = 0.5 * jnp.pi * jnp.where(r > 0, r, 0.5)
            return -0.125 * jnp.pi**2 * jnp.where(r > 0, jnp.tan(angle) / angle, 1.0)

        return function_of_root(log_kernel, slope, squares)
