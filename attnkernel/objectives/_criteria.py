"""Criteria of a linear smoother: residual sum of squares and penalty on degrees of freedom."""

import abc
from typing import Any, ClassVar

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import as_real_array
from ..models import LinearSmoother
from ._objective import Objective


class Penalised(Objective):
    r"""A function of the residual sum of squares and of the trace of the hat matrix L.

    $$ \hat y = L y, \qquad \hat\sigma^2 = \frac{\mathrm{RSS}}{n}, \qquad
       \nu = \operatorname{tr} L = \sum_i L_{ii} $$

    To add one, subclass it and write `penalty`. The model must be a `LinearSmoother`. With row
    weights, RSS/n is the weighted mean square, and n counts the rows with positive weight.
    """

    is_stochastic: ClassVar[bool] = False

    @property
    def can_pad_rows(self) -> bool:
        """Yes: n, ν and RSS are those of the rows with weight."""
        return True

    @abc.abstractmethod
    def penalty(
        self, mean_square: Float[Array, ""], trace: Float[Array, ""], n: ArrayLike
    ) -> Float[Array, ""]:
        """Returns the criterion from RSS/n, ν and n."""

    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        if not isinstance(model, LinearSmoother):
            raise ValueError(
                f"{type(self).__name__} needs the hat matrix of a linear smoother, such as "
                f"ak.KernelRegression; {type(model).__name__} has none. Try ak.LeaveOneOut()."
            )
        fitted, leverage = model.fitted_and_leverage(x, y, **self.weight_kwargs())
        n = jnp.sum(self.masked_by_weight(jnp.ones_like(leverage)))
        return self.penalty(self.mean_square(fitted - as_real_array("y", y)), jnp.sum(leverage), n)


class GCV(Penalised):
    r"""Generalised cross-validation.

    $$ \mathrm{GCV} = \frac{\mathrm{RSS} / n}{(1 - \nu / n)^2} $$

    Leave-one-out with each leverage $L_{ii}$ replaced by their mean; in units of y². Infinite if
    ν ≥ n.

    ```python
    data = ak.data.load("mcycle")
    loss = ak.GCV()(ak.KernelRegression(ak.Gaussian(3.0)), data.x, data.y)
    ```

    **Source:** Craven and Wahba, *Smoothing noisy data with spline functions* (1979).
    """

    def penalty(
        self, mean_square: Float[Array, ""], trace: Float[Array, ""], n: ArrayLike
    ) -> Float[Array, ""]:
        left = 1.0 - trace / n
        return jnp.where(left > 0, mean_square / jnp.where(left > 0, left, 1.0) ** 2, jnp.inf)


class AICc(Penalised):
    r"""The corrected criterion of Akaike for linear smoothers.

    $$ \mathrm{AIC_c} = \log \frac{\mathrm{RSS}}{n} + \frac{1 + \nu / n}{1 - (\nu + 2) / n} $$

    It chooses longer lengthscales than cross-validation in small samples; the same formula as in
    R's np. Infinite if ν + 2 ≥ n, or if the residuals are 0.

    ```python
    data = ak.data.load("mcycle")
    loss = ak.AICc()(ak.KernelRegression(ak.Gaussian(3.0)), data.x, data.y)
    ```

    **Source:** Hurvich, Simonoff and Tsai, *Smoothing parameter selection in nonparametric
    regression using an improved Akaike information criterion* (1998).
    """

    def penalty(
        self, mean_square: Float[Array, ""], trace: Float[Array, ""], n: ArrayLike
    ) -> Float[Array, ""]:
        left = 1.0 - (trace + 2.0) / n
        is_finite = (left > 0) & (mean_square > 0)
        log = jnp.log(jnp.where(is_finite, mean_square, 1.0))
        ratio = (1.0 + trace / n) / jnp.where(is_finite, left, 1.0)
        return jnp.where(is_finite, log + ratio, jnp.inf)
