r"""Linear smoothers: regressions whose predictions are linear in the labels, $\hat y = L y$.

$$ \hat f(x) = \sum_{j=1}^{n} L_j(x)\, y_j, \qquad L_{ij} = L_j(x_i) $$
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from .._core.arrays import as_points
from .._core.rows import Rows
from ..priors import Prior
from ._estimate import DataSupport, Estimate, WeightsEstimate
from ._smoother import Smoother


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

    def estimate(
        self, x_new: ArrayLike | None, rows: Rows, *, prior: Prior | None = None
    ) -> Estimate:
        """Predictions with their weights, variances and support, from the same rows.

        Default: two calls, one of them for the columns of the identity. Override it if one pass
        over the data gives all.

        **Arguments:** `x_new`: shape (m, dim) or (m,); None: the inputs of the rows, where there
        are leverages too. `rows`: `Rows.read(x, y, weights)`. `prior`: as for the call.
        """
        at = rows.x if x_new is None else as_points("x_new", x_new)
        value = self(at, rows.x, rows.labels, prior=prior, **rows.kwargs)
        eye = jnp.eye(len(rows.x), dtype=rows.x.dtype)
        found = self(at, rows.x, eye, prior=prior, **rows.kwargs)
        empty = jnp.any(jnp.isnan(found), axis=1)
        weights = jnp.where(empty[:, None], 0.0, found)
        return WeightsEstimate(self, rows, value, DataSupport.of_empty(empty), weights)

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

    def variance_smoother(self, factor: ArrayLike) -> "LinearSmoother | None":
        """The local mean by which `ak.noise_variance` averages squared residuals.

        Its weights are non-negative and sum to 1; its predictions are NaN where no label has
        weight. None, the default: the model has no such mean, and `ak.bands` needs another `noise`.

        **Arguments:** `factor`: its lengthscale over that of this one.
        """
        return None
