r"""Families: the distribution of a label given its mean μ, and the link $g(\mu) = \eta$.

$$ \log p(y \mid \eta) = \frac{w}{\phi}\, \ell(y, \eta) + c(y, w, \phi), \qquad
   \operatorname{Var}(y) = \frac{\phi}{w}\, V(\mu) $$
"""

import abc
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_float64, is_concrete

Numbers = Float[Array, "..."]


class Family(eqx.Module):
    r"""The distribution of a label given its mean, as a function of the linear predictor η.

    To add one, write `log_likelihood`, `link`, `mean`, `variance`, `deviance` and `valid_mean`,
    each for every entry of an array. ℓ must be concave in η. This one is the normal distribution:

    ```python
    class Normal(ak.families.Family):
        def log_likelihood(self, y, eta):
            return -0.5 * (y - eta) ** 2

        def link(self, mean):
            return mean

        def mean(self, eta):
            return eta

        def variance(self, mean):
            return jnp.ones_like(mean)

        def deviance(self, mean, y):
            return (y - mean) ** 2

        def valid_mean(self, mean):
            return mean

    x = jnp.linspace(0.0, 1.0, 9)
    model = ak.LocalLikelihood(ak.Gaussian(0.2), family=Normal(), order=1)
    least_squares = ak.KernelRegression(ak.Gaussian(0.2), order=1)
    assert jnp.allclose(model(x, x, x**2), least_squares(x, x, x**2), atol=1e-4)
    ```

    **Source:** McCullagh and Nelder, *Generalized linear models* (1989), chapter 2.
    """

    has_known_dispersion: ClassVar[bool] = False  # whether φ is 1; else it is estimated

    @abc.abstractmethod
    def log_likelihood(self, y: Numbers, eta: Numbers) -> Numbers:
        r"""$\ell(y, \eta)$ of a label of weight 1, up to a term of y alone."""

    @abc.abstractmethod
    def link(self, mean: Numbers) -> Numbers:
        r"""$\eta = g(\mu)$."""

    @abc.abstractmethod
    def mean(self, eta: Numbers) -> Numbers:
        r"""$\mu = g^{-1}(\eta)$."""

    @abc.abstractmethod
    def variance(self, mean: Numbers) -> Numbers:
        r"""$V(\mu)$, the variance of a label of weight 1, in units of the dispersion φ."""

    @abc.abstractmethod
    def deviance(self, mean: Numbers, y: Numbers) -> Numbers:
        r"""$2 (\ell(y, g(y)) - \ell(y, g(\mu)))$; finite for each mean that a fit may predict."""

    @abc.abstractmethod
    def valid_mean(self, mean: Numbers) -> Numbers:
        """The nearest mean whose link is finite and whose variance is not 0 to rounding."""

    def score_and_curvature(self, y: Numbers, eta: Numbers) -> tuple[Numbers, Numbers]:
        r"""Returns $\partial \ell / \partial \eta$ and $-\partial^2 \ell / \partial \eta^2$ of the
        log-likelihood ℓ of each label. Default: by automatic differentiation."""
        score = lambda eta: jax.jvp(  # noqa: E731
            lambda eta: self.log_likelihood(y, eta), (eta,), (jnp.ones_like(eta),)
        )[1]
        slope, curvature = jax.jvp(score, (eta,), (jnp.ones_like(eta),))
        return slope, -curvature

    def mean_slope(self, eta: Numbers) -> Numbers:
        r"""$\mathrm{d} \mu / \mathrm{d} \eta$. Default: by differentiation."""
        return jax.jvp(self.mean, (eta,), (jnp.ones_like(eta),))[1]

    def check(self, y: ArrayLike) -> None:
        """Raises `ValueError` for labels outside the support of the distribution. Default: never.

        The families of attnkernel do not check traced labels.
        """


class Binomial(Family):
    r"""Proportions of successes; $w\, y$ successes of w trials.

    $$ \eta = \log \frac{\mu}{1 - \mu}, \qquad \ell(y, \eta) = y \eta - \log(1 + e^\eta), \qquad
       V(\mu) = \mu (1 - \mu), \qquad \phi = 1 $$

    Labels are 0 and 1, or proportions between, whose numbers of trials are the weights of the rows.
    The deviance takes a mean to be at least ε and at most 1 − ε, the rounding of the dtype: a label
    of 1 where 0 is certain costs at most 72 in float64 and 32 in float32.

    ```python
    >>> ak.Binomial().deviance(jnp.array([0.5, 0.5]), jnp.array([1.0, 0.5]))
    Array([1.3862944, 0.       ], dtype=float32)

    ```

    **Source:** McCullagh and Nelder, *Generalized linear models* (1989), chapter 4.
    """

    has_known_dispersion: ClassVar[bool] = True

    def log_likelihood(self, y: Numbers, eta: Numbers) -> Numbers:
        return y * eta - jnp.maximum(eta, 0.0) - jnp.log1p(jnp.exp(-jnp.abs(eta)))

    def score_and_curvature(self, y: Numbers, eta: Numbers) -> tuple[Numbers, Numbers]:
        small = jnp.exp(-jnp.abs(eta))
        mean = jnp.where(eta > 0, 1.0, small) / (1.0 + small)
        rest = jnp.where(eta > 0, small, 1.0) / (1.0 + small)  # 1 − mean would lose digits
        return y * rest - (1.0 - y) * mean, mean * rest

    def link(self, mean: Numbers) -> Numbers:
        return jnp.log(mean) - jnp.log1p(-mean)

    def mean(self, eta: Numbers) -> Numbers:
        return jax.nn.sigmoid(eta)

    def variance(self, mean: Numbers) -> Numbers:
        return mean * (1.0 - mean)

    def deviance(self, mean: Numbers, y: Numbers) -> Numbers:
        mean = self.valid_mean(mean)
        likelihood = xlogy(y, mean) + xlogy(1.0 - y, 1.0 - mean)
        return 2.0 * (_y_log_y(y) + _y_log_y(1.0 - y) - likelihood)

    def valid_mean(self, mean: Numbers) -> Numbers:
        eps = float(jnp.finfo(mean.dtype).eps)
        return jnp.clip(mean, eps, 1.0 - eps)

    def check(self, y: ArrayLike) -> None:
        """Raises `ValueError` for labels that are not from 0 to 1; traced ones are not checked."""
        hint = "Give proportions, and the numbers of trials as weights=."
        _require_labels(
            y, lambda labels: (labels >= 0) & (labels <= 1), "Binomial", "from 0 to 1", hint
        )


class Poisson(Family):
    r"""Counts; or rates, counts per exposure, whose exposures are the weights of the rows.

    $$ \eta = \log \mu, \qquad \ell(y, \eta) = y \eta - e^\eta, \qquad V(\mu) = \mu, \qquad
       \phi = 1 $$

    The deviance takes a mean to be at least ε y, with ε the rounding of the dtype: a count y where
    0 is certain costs at most 70 y in float64 and 30 y in float32.

    ```python
    >>> ak.Poisson().deviance(jnp.array([2.0, 2.0]), jnp.array([2.0, 0.0]))
    Array([0., 4.], dtype=float32)

    ```

    **Source:** McCullagh and Nelder, *Generalized linear models* (1989), chapter 6.
    """

    has_known_dispersion: ClassVar[bool] = True

    def log_likelihood(self, y: Numbers, eta: Numbers) -> Numbers:
        return y * eta - jnp.exp(eta)

    def link(self, mean: Numbers) -> Numbers:
        return jnp.log(mean)

    def mean(self, eta: Numbers) -> Numbers:
        return jnp.exp(eta)

    def variance(self, mean: Numbers) -> Numbers:
        return mean

    def deviance(self, mean: Numbers, y: Numbers) -> Numbers:
        mean = jnp.maximum(mean, float(jnp.finfo(mean.dtype).eps) * y)
        # 0 where both are 0: log(mean) has no derivative there
        some = y > 0
        ratio = jnp.where(some, y, 1.0) / jnp.where(some, mean, 1.0)
        return 2.0 * (xlogy(y, ratio) - (y - mean))

    def valid_mean(self, mean: Numbers) -> Numbers:
        return jnp.maximum(mean, float(jnp.finfo(mean.dtype).tiny) ** 0.5)

    def check(self, y: ArrayLike) -> None:
        """Raises `ValueError` for labels below 0 or NaN; traced ones are not checked."""
        hint = "Give counts, or rates with their exposures as weights=."
        _require_labels(y, lambda labels: labels >= 0, "Poisson", "at least 0", hint)


class Gamma(Family):
    r"""Positive labels whose standard deviation is proportional to their mean.

    $$ \eta = \log \mu, \qquad \ell(y, \eta) = -y e^{-\eta} - \eta, \qquad V(\mu) = \mu^2 $$

    The dispersion φ, the squared coefficient of variation, does not change the fit; `ak.bands`
    estimates it.

    ```python
    >>> ak.Gamma().deviance(jnp.array([2.0]), jnp.array([1.0])).round(3)
    Array([0.386], dtype=float32)

    ```

    **Source:** McCullagh and Nelder, *Generalized linear models* (1989), chapter 8.
    """

    def log_likelihood(self, y: Numbers, eta: Numbers) -> Numbers:
        return -y * jnp.exp(-eta) - eta

    def link(self, mean: Numbers) -> Numbers:
        return jnp.log(mean)

    def mean(self, eta: Numbers) -> Numbers:
        return jnp.exp(eta)

    def variance(self, mean: Numbers) -> Numbers:
        return mean**2

    def deviance(self, mean: Numbers, y: Numbers) -> Numbers:
        ratio = y / mean
        return 2.0 * (ratio - 1.0 - jnp.log(ratio))

    def valid_mean(self, mean: Numbers) -> Numbers:
        return jnp.maximum(mean, float(jnp.finfo(mean.dtype).tiny) ** 0.25)

    def check(self, y: ArrayLike) -> None:
        """Raises `ValueError` for labels that are not above 0; traced ones are not checked."""
        hint = "Labels of 0 are of no gamma distribution: is it ak.Poisson()?"
        _require_labels(y, lambda labels: labels > 0, "Gamma", "above 0", hint)


def _y_log_y(y: Numbers) -> Numbers:
    """Returns $y \\log y$, with a derivative of 0, in place of an infinite one, where y is 0."""
    some = y > 0
    return jnp.where(some, y * jnp.log(jnp.where(some, y, 1.0)), 0.0)


def _require_labels(
    y: ArrayLike, allowed: Callable[[np.ndarray], np.ndarray], family: str, expected: str, hint: str
) -> None:
    """Raises `ValueError` that names the first row of y that is not `allowed`, or if y is no array
    of real numbers. Traced labels are not checked.

    `family`, `expected` and `hint` are words of the error.
    """
    if not is_concrete(y):
        return
    valid = allowed(as_float64("y", y, "real labels"))
    if np.all(valid):
        return
    row = int(np.argmin(np.all(valid.reshape(len(valid), -1), axis=1)))
    got = np.squeeze(np.asarray(y)[row]).tolist()
    raise ValueError(
        f"y must be {expected} for the family {family}; row {row} (counted from 0) has {got}. "
        f"{hint}"
    )
