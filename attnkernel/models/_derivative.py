r"""Derivatives of kernel regressions: linear in the labels, as the regressions themselves.

$$ \widehat{\partial^a f}(x) = \sum_j D_j(x)\, y_j, \qquad \sum_j D_j(x) = 0 $$
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import wider_dtype
from .._core.validation import as_integer_tuple, require_instance
from ..local import warn_of_extrapolation
from ..priors import Prior
from ._data import read_data, with_weights
from ._local_regression import support_of
from ._local_smoother import LocalSmoother
from ._prediction import on_padded_rows
from ._smoother import DataSupport

MAX_ORDER = 2


class Derivative(eqx.Module):
    r"""A partial derivative of a local polynomial regression.

    $$ \widehat{\partial^a f}(x) = a!\, \hat\beta_a \ \ (p \ge 1), \qquad
       \widehat{\partial^a f}(x) = \partial^a \sum_j L_j(x)\, y_j \ \ (p = 0), \qquad
       a! = \textstyle\prod_c a_c! $$

    $\hat\beta_a$ is the coefficient of $(x_j - x)^a$ in the local polynomial at x, and not the
    derivative of the curve $\hat f$; it is the estimate of locfit, of nprobust, and of np with
    `regtype = "ll"`. For p = 0 there is no such coefficient, and the curve of Nadaraya and Watson
    itself is differentiated, as np does.

    **Arguments:**

    - `model`: a `KernelRegression` of order p.
    - `derivative`: a, the order of the derivative along each column of x; an integer for one
      column. Its sum is 1 or 2, and at most p where p ≥ 1.

    Called as the model. NaN where no label has weight, and where the local design is
    rank-deficient, so that the data do not determine a derivative.

    **Raises:** `ValueError` for another model, another number of columns, an order above p, and a
    column that holds categories.

    **Source:** Fan and Gijbels, *Local polynomial modelling and its applications* (1996), 3.1;
    Hayfield and Racine, *Nonparametric econometrics: the np package* (2008).

    ```python
    x = jnp.linspace(0.0, 1.0, 50)
    model = ak.KernelRegression(ak.Gaussian(0.1), order=2)
    slope = ak.models.Derivative(model, 1)(jnp.array([0.5]), x, jnp.sin(6 * x))  # near 6 cos 3
    ```
    """

    model: Any  # a `LocalSmoother`
    derivative: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, model: Any, derivative: int | Sequence[int]):
        require_instance("model", model, LocalSmoother, "ak.KernelRegression(ak.Gaussian(0.3))")
        self.model = model
        self.derivative = as_integer_tuple("derivative", derivative, 0)
        total, order = sum(self.derivative), model.order
        if not 1 <= total <= MAX_ORDER:
            raise ValueError(
                f"The orders of a derivative must add up to 1 or {MAX_ORDER}; got "
                f"derivative={self.derivative}."
            )
        if 0 < order < total:
            raise ValueError(
                f"A local polynomial of order {order} has no derivative of order {total}; got "
                f"derivative={self.derivative}. Take a model of order {total}."
            )

    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        """Derivatives at new inputs, in units of y over those of x; arguments as for the model."""
        data = read_data(x_new, x, y, weights, self.model.kernel)
        self.check_columns(data[1].shape[1])
        out, support = on_padded_rows(_predict, self, prior, weights, *data, np.ndim(y) == 1)
        if self.model.order > 0:
            flags = support.deficient, support.extrapolates
            warn_of_extrapolation(self.description, *flags, wider_dtype(out.dtype))
        return out

    @property
    def description(self) -> str:
        """Such as `derivative (1, 0) of local linear`."""
        return f"derivative {self.derivative} of {self.model.description}"

    @property
    def can_pad_rows(self) -> bool:
        """Whether the model can."""
        return self.model.can_pad_rows

    def predict_with_variance(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        variance: ArrayLike,
        *,
        weights: ArrayLike | None = None,
    ) -> tuple[Array, Array, DataSupport]:
        r"""Derivatives, their variances $\sum_j D_j(x)^2 \sigma_j^2$, and `data_support`."""
        q, k, v = read_data(x_new, x, y, weights, self.model.kernel)
        _, _, variances = read_data(x_new, x, variance, weights, self.model.kernel, "variance")
        self.check_columns(k.shape[1])
        self.model.require_softmax()
        prior = with_weights(None, weights, k)
        out, local = self.model.fitted_derivative(q, k, v, prior, self.derivative)
        squares = self.model.sum_of_squares(q, k, variances, local, prior, self.derivative)
        squares = squares[:, 0] if np.ndim(variance) == 1 else squares
        return (out[:, 0] if np.ndim(y) == 1 else out), squares, support_of(local)

    def check_columns(self, dim: int) -> None:
        """Raises `ValueError` unless there is one order per column, 0 for those of categories."""
        if len(self.derivative) != dim:
            example = (1,) + (0,) * (dim - 1)
            raise ValueError(
                f"derivative must have one order for each of {dim} columns, such as {example}; got "
                f"{self.derivative}."
            )
        for column in self.model.category_counts(dim):
            if self.derivative[column]:
                raise ValueError(
                    f"Column {column} holds categories, along which there is no derivative; got "
                    f"derivative={self.derivative}. Compare predictions of two categories."
                )


def _predict(
    derivative: Any,
    prior: Prior | None,
    weights: Array | None,
    has_one_label: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Float[Array, "m"] | Float[Array, "m out"], DataSupport]:
    """Returns derivatives from checked data, and how well the data determine them."""
    prior = with_weights(prior, weights, k)
    out, local = derivative.model.fitted_derivative(q, k, v, prior, derivative.derivative)
    return out[:, 0] if has_one_label else out, support_of(local)
