r"""Losses of predictions, one of each row: squared error, absolute error and check loss; robust
losses ρ of standardised residuals u, and their weights $w(u) = \psi(u) / u$, $\psi = \rho'$.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, wider_dtype
from .._core.validation import is_real_number, require_level

MEDIAN_OF_ABSOLUTE_NORMAL = 0.6744897501960817  # the 3/4 quantile of the normal distribution

Numbers = Float[Array, "..."]


def squared_error(prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
    r"""The squared error $\| y_i - \hat y_i \|^2$ of each row, in units of y².

    ```python
    >>> ak.squared_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
    Array([0., 4.], dtype=float32)
    ```

    **Arguments:** `prediction`, `y`: of the same shape, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` if the shapes differ.
    """
    return sum_over_labels(errors_of(prediction, y) ** 2)


def absolute_error(prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
    r"""The absolute error $| y_i - \hat y_i |$ of each row, in units of y.

    An outlier counts in proportion to its error, and not to the square. It is the default score of
    `ak.RobustRegression`, which then has nearly the lengthscale of data without outliers; a fit by
    least squares is moved by outliers whatever the score.

    ```python
    >>> ak.losses.absolute_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
    Array([0., 2.], dtype=float32)
    ```

    **Arguments:** `prediction`, `y`: of the same shape, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` if the shapes differ.

    **Source:** Wang and Scott, *The L1 method for robust nonparametric regression* (1994).
    """
    return sum_over_labels(jnp.abs(errors_of(prediction, y)))


def as_level(level: Any) -> float:
    """Returns the level of a quantile; `ValueError` unless it is between 0 and 1."""
    require_level("level", level)
    return float(level)


class CheckLoss(eqx.Module):
    r"""The check loss (pinball loss) of each row, which the quantile of level τ minimises.

    $$ S_i = \rho_\tau(y_i - \hat y_i), \qquad \rho_\tau(r) = r\, (\tau - 1\{r < 0\}) $$

    In units of y. The check loss of level 1/2 is half the absolute error.

    ```python
    >>> ak.losses.CheckLoss(0.75)(jnp.array([1.0, 2.0]), jnp.array([0.0, 4.0]))
    Array([0.25, 1.5 ], dtype=float32)
    ```

    **Arguments:** `level`: τ, between 0 and 1. The call takes a `prediction` and `y` of the same
    shape, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` for a level outside (0, 1), or if the shapes differ.

    **Source:** Koenker and Bassett, *Regression quantiles* (1978).
    """

    level: float = eqx.field(static=True, converter=as_level)

    def __call__(self, prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
        return sum_over_labels(check_losses(-errors_of(prediction, y), self.level))


def check_losses(
    residuals: Float[Array, "*shape"], level: float | Float[Array, ""]
) -> Float[Array, "*shape"]:
    """Returns $\\rho_\\tau(r)$ of each residual r, with τ = `level`."""
    return jnp.where(residuals < 0, level - 1.0, level) * residuals


def errors_of(prediction: Any, y: Any) -> Float[Array, "..."]:
    """Returns ŷ − y in float32 at least; `ValueError` unless both are (n,) or both (n, out)."""
    labels = as_real_array("y", y)
    errors = require_same_shape(prediction, labels) - labels
    return errors.astype(wider_dtype(errors.dtype))


def sum_over_labels(losses: Float[Array, "..."]) -> Float[Array, " n"]:
    """Returns the sum of the losses of each row, shape (n,). `losses`: shape (n,) or (n, out)."""
    return losses if losses.ndim == 1 else jnp.sum(losses, axis=1)


def require_same_shape(prediction: Any, y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the prediction as an array; raises `ValueError` unless it has the shape of y, and
    that is (n,) or (n, out)."""
    array = as_real_array("prediction", prediction)
    if array.shape != y.shape or array.ndim not in (1, 2):
        raise ValueError(
            f"prediction and y must have the same shape, (n,) or (n, out); got {array.shape} and "
            f"{y.shape}."
        )
    return array


class RobustLoss(eqx.Module):
    r"""A loss ρ of residuals in units of their scale, which grows more slowly than the square.

    $$ \hat\theta = \arg\min_\theta \sum_j \rho(u_j), \qquad u_j = \frac{r_j}{\hat\sigma}, \qquad
       \hat\sigma = \frac{\operatorname{med}_j |r_j|}{0.6745} $$

    A fit by iterated least squares gives residual $r_j$ the weight $w(u_j) = \psi(u_j) / u_j$, with
    $\psi = \rho'$. $\hat\sigma$ is the standard deviation of normal residuals. To add one, subclass
    it and write `weight`, for every entry of an array, from 1 at u = 0, and even in u:

    ```python
    class Cauchy(ak.losses.RobustLoss):
        def weight(self, u):
            return 1.0 / (1.0 + u**2)

    model = ak.RobustRegression(ak.KernelRegression(ak.Gaussian(0.2)), loss=Cauchy())
    x = jnp.linspace(0.0, 1.0, 9)
    print(model(x, x, x**2))
    ```

    **Source:** Huber, *Robust statistics* (1981), chapter 7.
    """

    @abc.abstractmethod
    def weight(self, u: Numbers) -> Numbers:
        r"""$w(u) = \psi(u) / u$, from 0 to 1."""

    def influence(self, u: Numbers) -> Numbers:
        r"""$\psi(u) = u\, w(u)$."""
        return u * self.weight(u)


def _as_cutoff(cutoff: Any) -> float:
    """Returns the cutoff as a float; `ValueError` unless it is positive and finite."""
    if not is_real_number(cutoff) or not 0 < cutoff < float("inf"):
        raise ValueError(
            f"cutoff must be a positive number of standard deviations of the residuals, such as "
            f"4.685; got {cutoff!r}."
        )
    return float(cutoff)


class Huber(RobustLoss):
    r"""Huber's loss: quadratic up to the cutoff, linear beyond it.

    $$ w(u) = \min\Big(1, \frac{c}{|u|}\Big), \qquad \psi(u) = \max(-c, \min(c, u)) $$

    Every label keeps an influence, of at most c $\hat\sigma$. The loss is convex.

    ```python
    >>> ak.Huber(1.0).weight(jnp.array([0.0, 0.5, 4.0]))
    Array([1.  , 1.  , 0.25], dtype=float32)

    ```

    **Arguments:** `cutoff`: c, in standard deviations $\hat\sigma$. Default: 1.345, for which the
    variance of a fit to normal labels is 5 % above that of least squares.

    **Raises:** `ValueError` for a cutoff that is not positive.

    **Source:** Huber, *Robust estimation of a location parameter* (1964).
    """

    cutoff: float = eqx.field(default=1.345, static=True, converter=_as_cutoff)

    def weight(self, u: Numbers) -> Numbers:
        size = jnp.abs(u)
        is_large = size > self.cutoff
        return jnp.where(is_large, self.cutoff / jnp.where(is_large, size, 1.0), 1.0)


class Bisquare(RobustLoss):
    r"""Tukey's bisquare (biweight): the weight falls to 0 at the cutoff.

    $$ w(u) = \big(1 - (u / c)^2\big)_+^2 $$

    A label whose residual is c $\hat\sigma$ or larger has no influence. Its loss is not convex: the
    iterations start at least squares, and go to a minimum near it.

    ```python
    >>> ak.losses.Bisquare(4.0).weight(jnp.array([0.0, 2.0, 4.0]))
    Array([1.    , 0.5625, 0.    ], dtype=float32)

    ```

    **Arguments:** `cutoff`: c, in standard deviations $\hat\sigma$. Default: 4.047, six medians of
    $|r|$, as in lowess and loess. With 4.685 the variance of a fit to normal labels is 5 % above
    that of least squares.

    **Raises:** `ValueError` for a cutoff that is not positive.

    **Source:** Cleveland, *Robust locally weighted regression and smoothing scatterplots* (1979).
    """

    cutoff: float = eqx.field(
        default=6.0 * MEDIAN_OF_ABSOLUTE_NORMAL, static=True, converter=_as_cutoff
    )

    def weight(self, u: Numbers) -> Numbers:
        return jnp.maximum(1.0 - (u / self.cutoff) ** 2, 0.0) ** 2
