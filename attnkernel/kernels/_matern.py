"""Matérn kernels of smoothness 1/2 (Laplace), 3/2 and 5/2, with finite derivatives at r = 0."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._distances import largest_squarable
from ._radial import Radial


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
        return -_safe_sqrt(squares)


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
        return _log_matern32(squares)


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
        return _log_matern52(squares)


def _safe_sqrt(squares: Array) -> Array:
    """Returns the square root of each number, with derivative 0 at 0, where √ has none."""
    zero = squares == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, squares)))


def _log_polynomial_times_exp(log_polynomial: Callable[[Array], Array], t: Array) -> Array:
    """Returns log(p(t) exp(−t)) = log p(t) − t; −∞ where t² overflows."""
    overflows = jnp.isinf(t * t)
    t = jnp.where(overflows, 0.0, t)
    return jnp.where(overflows, -jnp.inf, log_polynomial(t) - t)


@jax.custom_jvp
def _log_matern32(squares: Array) -> Array:
    """Returns log K = log(1 + t) − t, t = √3 r, from r²; its derivative in r² is finite at 0."""
    return _log_polynomial_times_exp(jnp.log1p, jnp.sqrt(3.0 * squares))


@_log_matern32.defjvp
def _log_matern32_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Returns log K and its tangent, −(3/2) / (1 + √3 r) times d(r²), finite at r = 0."""
    (squares,), (tangent,) = primals, tangents
    slope = -1.5 / (1.0 + math.sqrt(3.0) * _safe_sqrt(squares))  # finite where √'s own is not
    return _log_matern32(squares), slope * tangent


@jax.custom_jvp
def _log_matern52(squares: Array) -> Array:
    """Returns log K = log(1 + t + t²/3) − t, t = √5 r, from r²; its derivative in r² is finite at
    0."""
    return _log_polynomial_times_exp(lambda t: jnp.log1p(t + t * t / 3.0), jnp.sqrt(5.0 * squares))


@_log_matern52.defjvp
def _log_matern52_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Returns log K and its tangent, −(5/6) (1 + t) / (1 + t + t²/3) times d(r²), t = √5 r."""
    (squares,), (tangent,) = primals, tangents
    root = jnp.minimum(math.sqrt(5.0) * _safe_sqrt(squares), largest_squarable(squares.dtype))
    slope = -(5.0 / 6.0) * (1.0 + root) / (1.0 + root + root**2 / 3.0)
    return _log_matern52(squares), slope * tangent
