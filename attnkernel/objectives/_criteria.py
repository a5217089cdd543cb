"""Criteria of a linear smoother: the error at the labels, and a price for their number."""

import abc
from typing import Any, ClassVar

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import as_real_array
from ._objective import Objective


class Penalised(Objective):
    r"""A function of the residual sum of squares and of the trace of the hat matrix.

    $$ \hat\sigma^2 = \frac{\mathrm{RSS}}{n}, \qquad \nu = \operatorname{tr} L
       = \sum_i L_{ii}, \qquad \hat y = L y $$

    To add one, write `price`. Of models that say `smooth(x, y)`: their predictions at x, and the
    diagonal of L. With weights of rows, RSS/n is their mean square by weight, and n is the number
    of those above 0.
    """

    is_stochastic: ClassVar[bool] = False

    @abc.abstractmethod
    def price(self, mean_square: Float[Array, ""], trace: Float[Array, ""], n: ArrayLike) -> Array:
        """The criterion, from RSS/n, ν and n."""

    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        if not hasattr(model, "smooth"):
            raise ValueError(
                f"{type(self).__name__} needs the hat matrix of a linear smoother, such as "
                f"ak.KernelRegression; {type(model).__name__} has none. Try ak.LeaveOneOut()."
            )
        fitted, hat = model.smooth(x, y, **self.given())
        n = jnp.sum(self.counted(jnp.ones_like(hat)))
        return self.price(self.mean_square(fitted - as_real_array("y", y)), jnp.sum(hat), n)


class GCV(Penalised):
    r"""Generalised cross-validation.

    $$ \mathrm{GCV} = \frac{\mathrm{RSS} / n}{(1 - \nu / n)^2} $$

    Leave-one-out with each $L_{ii}$ replaced by their mean; in units of y². Infinite, where ν = n.

    **Source:** Craven and Wahba, *Smoothing noisy data with spline functions* (1979).
    """

    def price(self, mean_square: Float[Array, ""], trace: Float[Array, ""], n: ArrayLike) -> Array:
        left = 1.0 - trace / n
        return jnp.where(left > 0, mean_square / jnp.where(left > 0, left, 1.0) ** 2, jnp.inf)


class AICc(Penalised):
    r"""The corrected criterion of Akaike, for smoothers.

    $$ \mathrm{AIC_c} = \log \frac{\mathrm{RSS}}{n} + \frac{1 + \nu / n}{1 - (\nu + 2) / n} $$

    It smooths more than cross-validation where the sample is small. As in R's np. Infinite, where
    ν + 2 ≥ n: more parameters than the labels can pay for.

    **Source:** Hurvich, Simonoff and Tsai, *Smoothing parameter selection in nonparametric
    regression using an improved Akaike information criterion* (1998).
    """

    def price(self, mean_square: Float[Array, ""], trace: Float[Array, ""], n: ArrayLike) -> Array:
        left = 1.0 - (trace + 2.0) / n
        some = (left > 0) & (mean_square > 0)
        log = jnp.log(jnp.where(some, mean_square, 1.0))
        return jnp.where(some, log + (1.0 + trace / n) / jnp.where(some, left, 1.0), jnp.inf)
