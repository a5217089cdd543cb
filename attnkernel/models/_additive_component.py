"""One curve of an additive regression: linear in the labels, as the sum of all of them."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, precise_matmul
from ._data import read_data
from ._smoother import DataSupport


class AdditiveComponent(eqx.Module):
    r"""The curve of one column, $\hat m_j(x_j) = \sum_i L_{ji}(x_j)\, y_i$, $\sum_i L_{ji} = 0$.

    **Arguments:** `model`: an `AdditiveRegression`. `column`: j. Inputs have all columns, of which
    the curve reads its own.
    """

    model: Any
    column: int = eqx.field(static=True)

    def __call__(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        """The curve at new inputs; arguments as for the model."""
        variance = jnp.ones(jnp.shape(x)[0])
        return self.predict_with_variance(x_new, x, y, variance, weights=weights)[0]

    def predict_with_variance(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        variance: ArrayLike,
        *,
        weights: ArrayLike | None = None,
    ) -> tuple[Array, Array, DataSupport]:
        r"""The curve, its variance $\sum_i L_{ji}^2 \sigma_i^2$, and its `data_support`."""
        q, k, v = read_data(x_new, x, y, weights)
        rows = self.model.component_weights(q, k, weights=weights)[self.column]
        out = precise_matmul(rows, v - jnp.mean(v, axis=0, keepdims=True))
        squares = precise_matmul(rows**2, as_real_array("variance", variance))
        support = self.model.column_support(self.column, q, k, weights=weights)
        return (out[:, 0] if jnp.ndim(y) == 1 else out), squares, support
