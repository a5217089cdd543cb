r"""Linear smoothers: regressions whose predictions are linear in the labels, $\hat y = L y$.

$$ \hat f(x) = \sum_{j=1}^{n} L_j(x)\, y_j, \qquad L_{ij} = L_j(x_i) $$
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_points, as_real_array
from ..priors import ExcludeSelf, Prior
from ._smoother import DataSupport, Smoother


class LinearSmoother(Smoother):
    r"""A regression whose predictions are linear in the labels. To add one, write `__call__`.

    $$ \hat f(x) = \sum_{j=1}^{n} L_j(x)\, y_j, \qquad \hat y = L y $$

    L depends on inputs, parameters and weights of rows, and not on the labels. Criteria (`ak.GCV`,
    `ak.AICc`), `ak.bands`, `ak.conformal`, `ak.summarise` and the other functions of inference ask
    a model for the methods below and for nothing else. Each has a default, which predicts the
    columns of the identity in O(n²) memory; override those for which there is a formula. Those of
    `ak.models.Smoother` are inherited.

    Predictions are NaN where no label has weight, and rows of weight 0 are ignored.

    **Source:** Buja, Hastie and Tibshirani, *Linear smoothers and additive models* (1989).

    ```python
    class RidgeLine(ak.LinearSmoother):
        log_penalty: jax.Array

        def __call__(self, x_new, x, y, *, prior=None, weights=None):
            design = lambda x: jnp.stack([jnp.ones_like(x), x], axis=1)
            a = design(x[:, 0])
            gram = a.T @ a + jnp.exp(self.log_penalty) * jnp.eye(2)
            return design(x_new[:, 0]) @ jnp.linalg.solve(gram, a.T @ y)

    x = jnp.linspace(0.0, 1.0, 11)[:, None]
    print(ak.AICc()(RidgeLine(jnp.array(-3.0)), x, jnp.sin(x[:, 0])))
    ```
    """

    @property
    def has_nonnegative_weights(self) -> bool:
        """Whether no $L_j(x)$ is negative, so that a fit is a distribution over labels."""
        return False

    def effective_weights(
        self, x_new: ArrayLike, x: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "m n"]:
        """$L_j(x)$ at new inputs; 0 where no label has weight."""
        keys = as_points("x", x)
        found = self(x_new, x, jnp.eye(len(keys), dtype=keys.dtype), weights=weights)
        return jnp.where(jnp.isnan(found), 0.0, found)

    def fitted_and_leverage(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> tuple[Float[Array, "n"] | Float[Array, "n out"], Float[Array, " n"]]:
        r"""Predictions at the labelled inputs, $L y$, and the leverages, $L_{ii}$.

        **Returns:** shapes (n,) or (n, out), in the units of y, and (n,), without a unit.
        """
        return self(x, x, y, weights=weights), jnp.diag(
            self.effective_weights(x, x, weights=weights)
        )

    def prediction_variance(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        variance: ArrayLike,
        *,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        r"""The variance of predictions, $\sum_j L_j(x)^2 \sigma_j^2$, of independent labels.

        **Arguments:** `variance`: $\sigma_j^2$ of each label, shape (n,) or (n, out), in squared
        units of y; the rest as for the call. With `variance` 1, the squared norm of the weights.
        """
        rows = self.effective_weights(x_new, x, weights=weights)
        return jnp.matmul(rows**2, as_real_array("variance", variance), precision="highest")

    def predict_with_variance(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        variance: ArrayLike,
        *,
        weights: ArrayLike | None = None,
    ) -> tuple[Array, Array, DataSupport]:
        """Predictions, `prediction_variance` and `data_support` at the same new inputs.

        Default: three calls. Override it if one pass over the data gives all three.
        """
        return (
            self(x_new, x, y, weights=weights),
            self.prediction_variance(x_new, x, variance, weights=weights),
            self.data_support(x_new, x, weights=weights),
        )

    def fitted_with_variance(
        self, x: ArrayLike, y: ArrayLike, variance: ArrayLike, *, weights: ArrayLike | None = None
    ) -> tuple[Array, Float[Array, " n"], Array, DataSupport]:
        """Predictions and leverages at the labelled inputs, as `fitted_and_leverage`, with
        `prediction_variance` and `data_support` there.

        Default: three calls. Override it if one pass over the data gives all four.
        """
        return (
            *self.fitted_and_leverage(x, y, weights=weights),
            self.prediction_variance(x, x, variance, weights=weights),
            self.data_support(x, x, weights=weights),
        )

    def predict_with_support(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> tuple[Array, DataSupport]:
        """Predictions, and `data_support` at the same new inputs; arguments as for the call.

        Default: two calls. Override it if one pass over the data gives both.
        """
        return (
            self(x_new, x, y, prior=prior, weights=weights),
            self.data_support(x_new, x, prior=prior, weights=weights),
        )

    def left_out_residuals(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "n"] | Float[Array, "n out"]:
        r"""Each label less its prediction from all others, $y_i - \hat f_{-i}(x_i)$."""
        return as_real_array("y", y) - self(x, x, y, prior=ExcludeSelf(), weights=weights)

    def data_support(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> DataSupport:
        """How well the data determine the prediction at each new input.

        Default: `empty` where a prediction is NaN, and neither `deficient` nor `extrapolates`.
        """
        zeros = jnp.zeros(np.shape(x)[0])
        empty = jnp.isnan(self(x_new, x, zeros, prior=prior, weights=weights))
        no = jnp.zeros_like(empty)
        return DataSupport(empty, no, no)

    def derivative(self, derivative: int | Sequence[int]) -> Any:
        """The derivative of the regression, as `Derivative` is that of a `KernelRegression`.

        None, the default: the model has none, and `ak.bands` refuses `derivative=`.

        **Arguments:** `derivative`: its order along each column of x.
        """
        return None

    def component(self, column: int) -> Any:
        """The curve of one column, where the regression is a sum of one curve for each column.

        None, the default: the model is no such sum, and `ak.bands` refuses `component=`.

        **Arguments:** `column`: its number, from 0.
        """
        return None

    def local_mean(self, factor: ArrayLike) -> "LinearSmoother | None":
        """The local mean by which `ak.noise_variance` averages squared residuals.

        Its weights are non-negative and sum to 1; its predictions are NaN where no label has
        weight. None, the default: the model has no such mean, and `ak.bands` needs another `noise`.

        **Arguments:** `factor`: its lengthscale over that of this one.
        """
        return None
