r"""Robust losses ρ of standardised residuals u, and their weights $w(u) = \psi(u) / u$,
$\psi = \rho'$.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.validation import is_real_number

MEDIAN_OF_ABSOLUTE_NORMAL = 0.6744897501960817  # the 3/4 quantile of the normal distribution

Numbers = Float[Array, "..."]


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


class Tuned(RobustLoss):
    """A loss with a cutoff, a positive number of standard deviations $\\hat\\sigma$."""

    cutoff: float = eqx.field(static=True)
    default_cutoff: ClassVar[float]

    def __init__(self, cutoff: float | None = None):
        self.cutoff = _as_cutoff(self.default_cutoff if cutoff is None else cutoff)


class Huber(Tuned):
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

    default_cutoff: ClassVar[float] = 1.345
    __init__ = Tuned.__init__

    def weight(self, u: Numbers) -> Numbers:
        size = jnp.abs(u)
        is_large = size > self.cutoff
        return jnp.where(is_large, self.cutoff / jnp.where(is_large, size, 1.0), 1.0)

    def influence(self, u: Numbers) -> Numbers:
        return jnp.clip(u, -self.cutoff, self.cutoff)


class Bisquare(Tuned):
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

    default_cutoff: ClassVar[float] = 6.0 * MEDIAN_OF_ABSOLUTE_NORMAL
    __init__ = Tuned.__init__

    def weight(self, u: Numbers) -> Numbers:
        return jnp.maximum(1.0 - (u / self.cutoff) ** 2, 0.0) ** 2


def _as_cutoff(cutoff: Any) -> float:
    """Returns the cutoff as a float; `ValueError` unless it is positive and finite."""
    if not is_real_number(cutoff) or not 0 < cutoff < float("inf"):
        raise ValueError(
            f"cutoff must be a positive number of standard deviations of the residuals, such as "
            f"4.685; got {cutoff!r}."
        )
    return float(cutoff)
