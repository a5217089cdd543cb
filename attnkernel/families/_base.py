r"""Families: the distribution of a label given its mean μ, and the link $g(\mu) = \eta$.

$$ \log p(y \mid \eta) = \frac{w}{\phi}\, \ell(y, \eta) + c(y, w, \phi), \qquad
   \operatorname{Var}(y) = \frac{\phi}{w}\, V(\mu) $$
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_float64
from .._core.host_arrays import is_concrete

Numbers = Float[Array, "..."]


class Family(eqx.Module):
    r"""The distribution of a label given its mean, as a function of the linear predictor η.

    To add one, write `log_likelihood`, `link`, `mean`, `variance`, `deviance` and `inside`, each
    for every entry of an array. ℓ must be concave in η. This one is the normal distribution:

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

        def inside(self, mean):
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
    def inside(self, mean: Numbers) -> Numbers:
        """The nearest mean whose link is finite and whose variance is not 0 to rounding."""

    def score_and_curvature(self, y: Numbers, eta: Numbers) -> tuple[Numbers, Numbers]:
        r"""$\partial \ell / \partial \eta$ and $-\partial^2 \ell / \partial \eta^2$: what the label
        adds to the gradient and to the Hessian of a Newton step. Default: by differentiation."""
        score = lambda eta: jax.jvp(  # noqa: E731
            lambda eta: self.log_likelihood(y, eta), (eta,), (jnp.ones_like(eta),)
        )[1]
        slope, curvature = jax.jvp(score, (eta,), (jnp.ones_like(eta),))
        return slope, -curvature

    def mean_slope(self, eta: Numbers) -> Numbers:
        r"""$\mathrm{d} \mu / \mathrm{d} \eta$. Default: by differentiation."""
        return jax.jvp(self.mean, (eta,), (jnp.ones_like(eta),))[1]

    def check(self, y: ArrayLike) -> None:
        """Raises `ValueError` for labels that the distribution does not have. Default: none."""


def require_labels(
    y: ArrayLike, allowed: np.ndarray, family: str, expected: str, hint: str
) -> None:
    """Raises `ValueError` with the first row of y that is not `allowed`."""
    if np.all(allowed):
        return
    row = int(np.argmin(np.all(allowed.reshape(len(allowed), -1), axis=1)))
    got = np.squeeze(np.asarray(y)[row]).tolist()
    raise ValueError(
        f"y must be {expected} for the family {family}; row {row} (counted from 0) has {got}. "
        f"{hint}"
    )


def concrete_labels(y: ArrayLike) -> np.ndarray | None:
    """Returns the labels as float64 where their values are known, outside `jit`, else None."""
    return as_float64("y", y, "real labels") if is_concrete(y) else None
