"""The gamma family with the logarithmic link: positive labels of a constant relative error."""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ._base import Family, concrete_labels, require_labels

Numbers = Float[Array, "..."]


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

    def score_and_curvature(self, y: Numbers, eta: Numbers) -> tuple[Numbers, Numbers]:
        ratio = y * jnp.exp(-eta)
        return ratio - 1.0, ratio

    def link(self, mean: Numbers) -> Numbers:
        return jnp.log(mean)

    def mean(self, eta: Numbers) -> Numbers:
        return jnp.exp(eta)

    def variance(self, mean: Numbers) -> Numbers:
        return mean**2

    def deviance(self, mean: Numbers, y: Numbers) -> Numbers:
        ratio = y / mean
        return 2.0 * (ratio - 1.0 - jnp.log(ratio))

    def inside(self, mean: Numbers) -> Numbers:
        return jnp.maximum(mean, float(jnp.finfo(mean.dtype).tiny) ** 0.25)

    def check(self, y: ArrayLike) -> None:
        """Raises `ValueError` for labels that are not above 0."""
        if (labels := concrete_labels(y)) is not None:
            hint = "Labels of 0 are of no gamma distribution: is it ak.Poisson()?"
            require_labels(y, labels > 0, "Gamma", "above 0", hint)
