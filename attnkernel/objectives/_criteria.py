"""Criteria in closed form, of linear smoothers and of densities; `profile`, any criterion as a
function of the lengthscale."""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import Scalar, as_real_array
from .._core.parameters import Positive, log_of
from .._core.rows import Inputs, Labels, Rows
from .._core.validation import require_instance, require_positive
from ..attention import jit_if_pure
from ..kernels import Gaussian, rescaled
from ..losses import squared_error
from ..models import KernelDensity, LinearSmoother
from ..priors import ExcludeSelf
from ._objective import Objective, Sample


class Penalised(Objective):
    r"""A function of the residual sum of squares and of the trace of the hat matrix L.

    $$ \hat y = L y, \qquad \hat\sigma^2 = \frac{\mathrm{RSS}}{n}, \qquad
       \nu = \operatorname{tr} L = \sum_i L_{ii} $$

    To add one, subclass it and write `penalty`. The model must be a `LinearSmoother`. With row
    weights, RSS/n is the weighted mean square, and n counts the rows with positive weight.
    """

    @property
    def can_pad_rows(self) -> bool:
        """Yes: n, ν and RSS are those of the rows with weight."""
        return True

    @abc.abstractmethod
    def penalty(self, mean_square: Scalar, trace: Scalar, n: ArrayLike) -> Scalar:
        """Returns the criterion from RSS/n, ν and n."""

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        if not isinstance(model, LinearSmoother):
            raise ValueError(
                f"{type(self).__name__} needs the hat matrix of a linear smoother, such as "
                f"ak.KernelRegression; {type(model).__name__} has none. Try ak.LeaveOneOut()."
            )
        rows = Rows.read(x, y, self.weights)
        found = model.estimate(None, rows)
        mean_square = self.mean(squared_error(found.value, rows.labels))
        return self.penalty(mean_square, jnp.sum(found.leverage), rows.count)


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

    def penalty(self, mean_square: Scalar, trace: Scalar, n: ArrayLike) -> Scalar:
        left = 1.0 - trace / n
        is_left = left > 16.0 * jnp.finfo(left.dtype).eps  # beyond the rounding of the trace
        return jnp.where(is_left, mean_square / jnp.where(is_left, left, 1.0) ** 2, jnp.inf)


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

    def penalty(self, mean_square: Scalar, trace: Scalar, n: ArrayLike) -> Scalar:
        left = 1.0 - (trace + 2.0) / n
        is_finite = (left > 0) & (mean_square > 0)
        log = jnp.log(jnp.where(is_finite, mean_square, 1.0))
        ratio = (1.0 + trace / n) / jnp.where(is_finite, left, 1.0)
        return jnp.where(is_finite, log + ratio, jnp.inf)


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

    @property
    def can_pad_rows(self) -> bool:
        return True

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        if not isinstance(model, KernelDensity) or type(model.kernel) is not Gaussian:
            raise ValueError(
                f"UnbiasedCV is for ak.KernelDensity(ak.Gaussian(...)), whose squares have a known "
                f"integral; model is {model}. Try ak.LeaveOneOut(), likelihood cross-validation."
            )
        kernel = rescaled(model.kernel, math.sqrt(2.0))
        wider = eqx.tree_at(lambda model: model.kernel, model, kernel)
        squares = self.mean(jnp.exp(wider(x, x, **self.weight_kwargs())))
        left_out = jnp.exp(model(x, x, prior=ExcludeSelf(), **self.weight_kwargs()))
        weights = Rows(x, x, self.weights).row_weights(x.dtype)
        # a left-out density divides by the weights of the others, the sum over i ≠ j by all
        return squares - 2.0 * self.mean(left_out * (1.0 - weights / jnp.sum(weights)))


def profile(
    model: Any, x: ArrayLike, y: ArrayLike, lengthscales: ArrayLike, *, objective: Objective
) -> Float[Array, " grid"]:
    r"""The profile of a deterministic objective, $\ell \mapsto L(f_\ell, x, y)$.

    ```python
    data = ak.data.load("mcycle")
    model = ak.KernelRegression(ak.Gaussian(1.0))
    at = jnp.array([0.5, 1.0, 2.0])
    losses = ak.profile(model, data.x, data.y, at, objective=ak.LeaveOneOut())
    ```

    **Arguments:**

    - `model`: has a `kernel` with one lengthscale, which is replaced.
    - `x`, `y`: as for `fit`.
    - `lengthscales`: shape (grid,), in the units of x.
    - `objective`: for example `LeaveOneOut()`.

    **Returns:** shape (grid,). Lengthscales are evaluated one after the other, so that memory does
    not grow with the grid.

    **Raises:** `ValueError` if a lengthscale is not positive, the kernel has no or several
    lengthscales, or the objective is stochastic.
    """
    if np.ndim(lengthscales) != 1:
        raise ValueError(
            f"lengthscales must have shape (grid,); got {np.shape(lengthscales)}. For one use "
            f"[lengthscale]."
        )
    at = as_real_array("lengthscales", lengthscales)
    require_positive("lengthscales", at)
    require_instance("objective", objective, Objective, "ak.LeaveOneOut()")
    if not hasattr(getattr(model, "kernel", None), "lengthscale_parameter"):
        raise ValueError(
            f"model must have a kernel with a lengthscale, such as "
            f"ak.KernelRegression(ak.Gaussian(0.3)); got {model!r}."
        )
    if objective.is_stochastic:
        raise ValueError(f"{type(objective).__name__} draws rows at random: it has no profile.")
    if model.kernel.lengthscale_parameter.shape:
        raise ValueError("A profile is over one lengthscale; this kernel has several.")
    rows = Rows.read(x, y)
    sample = Sample(rows.x, rows.labels, objective).sorted_by_input().padded(model)
    points, labels, objective = sample
    parts = (model, objective, log_of(at, jnp.result_type(float)))
    return jit_if_pure(_losses, parts, points, labels)


def _losses(
    model: Any, objective: Objective, logs: Float[Array, " grid"], x: Inputs, y: Labels
) -> Float[Array, " grid"]:
    """Returns the objective for the logarithms of lengthscales, one after the other."""

    def at(lengthscale: Positive) -> Array:
        moved = eqx.tree_at(lambda tree: tree.kernel.lengthscale_parameter, model, lengthscale)
        return objective(moved, x, y)

    return jax.lax.map(at, Positive(logs, 0))
