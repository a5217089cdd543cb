r"""Estimates: what a linear smoother says at m inputs, from one pass over the labelled rows.

$$ \hat f(x) = \sum_j L_j(x)\, y_j, \qquad
   \operatorname{var} \hat f(x) = \sum_j L_j(x)^2\, \sigma_j^2 $$
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .._core.arrays import precise_matmul
from .._core.rows import Rows, as_variances
from ..priors import ExcludeSelf


class DataSupport(NamedTuple):
    """How well the data determine predictions at m inputs: three Booleans of each.

    - `empty`: no label has weight.
    - `deficient`: the local design is rank-deficient, so that the fit is of lower order.
    - `extrapolates`: the prediction extrapolates outside the data; see `LocalFit`.

    ```python
    >>> x = np.linspace(0.0, 1.0, 5)
    >>> model, rows = ak.KernelRegression(ak.kernels.Boxcar(0.3)), ak.models.Rows.read(x, x)
    >>> model.estimate(np.array([0.5, 9.0]), rows).support.empty
    Array([False,  True], dtype=bool)

    ```
    """

    empty: Bool[Array, " m"]
    deficient: Bool[Array, " m"]
    extrapolates: Bool[Array, " m"]

    @classmethod
    def of_empty(cls, empty: Bool[Array, " m"]) -> "DataSupport":
        """Returns the support of predictions that extrapolate nowhere."""
        return cls(empty, jnp.zeros_like(empty), jnp.zeros_like(empty))


class Estimate(eqx.Module):
    r"""What `LinearSmoother.estimate` returns, for m inputs and n labelled rows.

    - `value`: $\hat f(x)$, in the shape of the labels: (m,) or (m, out).
    - `support`: a `DataSupport`.
    - `weights`: $L_j(x)$, shape (m, n); 0 where no label has weight.
    - `variance_of(variance)`: $\sum_j L_j(x)^2 \sigma_j^2$ of independent labels.
    - `leverage`: $L_{ii}$, shape (n,), and `loo_residuals`: $y_i - \hat f_{-i}(x_i)$, in the shape
      of the labels; of an estimate at the rows themselves (`x_new=None`) alone.

    All but the first two are computed when they are asked for.

    ```python
    >>> x = np.linspace(0.0, 1.0, 5)
    >>> found = ak.KernelRegression(ak.Gaussian(0.1)).estimate(None, ak.models.Rows.read(x, x**2))
    >>> found.value.shape, found.variance_of(np.ones(5)).shape, found.leverage.shape
    ((5,), (5,), (5,))

    ```
    """

    model: eqx.AbstractVar[Any]  # a `LinearSmoother`
    rows: eqx.AbstractVar[Rows]
    value: eqx.AbstractVar[Float[Array, "m"] | Float[Array, "m out"]]
    support: eqx.AbstractVar[DataSupport]

    @property
    @abc.abstractmethod
    def weights(self) -> Float[Array, "m n"]:
        """$L_j(x)$; 0 where no label has weight."""

    @property
    def leverage(self) -> Float[Array, " n"]:
        """$L_{ii}$ of each row, without a unit."""
        return jnp.diagonal(self.weights)

    def variance_of(self, variance: ArrayLike) -> Float[Array, "m"] | Float[Array, "m columns"]:
        r"""$\sum_j L_j(x)^2 \sigma_j^2$, in squared units of the labels.

        **Arguments:** `variance`: $\sigma_j^2$ of each label, shape (n,) or (n, columns). Of 1, it
        gives the squared norm of the weights.
        """
        out = self.sum_of_squares(as_variances(variance))
        return out[:, 0] if jnp.ndim(variance) == 1 else out

    def sum_of_squares(self, variances: Float[Array, "n columns"]) -> Float[Array, "m columns"]:
        """`variance_of` columns; override it where there is a formula without the weights."""
        return precise_matmul(self.weights**2, variances)

    @property
    def loo_residuals(self) -> Float[Array, "n"] | Float[Array, "n out"]:
        """Each label less its prediction from all others."""
        x, y = self.rows.x, self.rows.labels
        return y - self.model(x, x, y, prior=ExcludeSelf(), **self.rows.kwargs)


class WeightsEstimate(Estimate):
    """An estimate whose weights are stored."""

    model: Any
    rows: Rows
    value: Float[Array, "m"] | Float[Array, "m out"]
    support: DataSupport
    matrix: Float[Array, "m n"]

    @property
    def weights(self) -> Float[Array, "m n"]:
        """The matrix that is stored."""
        return self.matrix
