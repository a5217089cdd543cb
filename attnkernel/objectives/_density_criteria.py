"""Criteria of densities: an unbiased estimate of the integrated squared error."""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..kernels import Gaussian
from ..models import KernelDensity
from ..priors import ExcludeSelf
from ._objective import Objective


class UnbiasedCV(Objective):
    r"""Unbiased (least-squares) cross-validation of a `KernelDensity`.

    $$ \mathrm{UCV} = \int \hat f^2 - \frac2{n^2} \sum_{i \ne j} K(x_i, x_j), \qquad
       \int \hat f^2 = \frac1{n^2} \sum_{i, j} (K * K)(x_i - x_j) $$

    with $\int K = 1$. Its expectation is that of $\int (\hat f - f)^2$ less the constant
    $\int f^2$, to order 1/n. For a `Gaussian` of any number of columns, whose K ∗ K is a Gaussian
    of √2 ℓ, on a bounded support too. In the inverse units of x.

    It is the criterion of R's `bw.ucv`, which rounds points to 1000 cells.

    **Raises:** `ValueError` for another model or kernel.

    **Source:** Scott and Terrell, *Biased and unbiased cross-validation in density estimation*
    (1987).

    ```python
    x = ak.data.load("faithful").x
    fit = ak.fit(ak.KernelDensity(ak.Gaussian(0.3)), x, objective=ak.objectives.UnbiasedCV())
    print(fit.model.kernel)
    ```
    """

    is_stochastic: ClassVar[bool] = False

    @property
    def can_pad_rows(self) -> bool:
        return True

    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        if not isinstance(model, KernelDensity) or type(model.kernel) is not Gaussian:
            raise ValueError(
                f"UnbiasedCV is for ak.KernelDensity(ak.Gaussian(...)), whose squares have a known "
                f"integral; model is {model}. Try ak.LeaveOneOut(), likelihood cross-validation."
            )
        kernel = model.kernel.rescaled(math.sqrt(2.0))
        wider = eqx.tree_at(lambda model: model.kernel, model, kernel)
        squares = self.mean(jnp.exp(wider(x, x, **self.weight_kwargs())))
        left_out = jnp.exp(model(x, x, prior=ExcludeSelf(), **self.weight_kwargs()))
        weights = jnp.ones(len(x)) if self.weights is None else self.weights
        weights = weights.astype(x.dtype)
        return squares - 2.0 * self.mean(left_out * (1.0 - weights / jnp.sum(weights)))
