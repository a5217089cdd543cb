"""Losses of predictions, one of each row: squared error, absolute error and check loss."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, wider_dtype
from .._core.validation import require_level


def squared_error(prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
    r"""The squared error $\| y_i - \hat y_i \|^2$ of each row, in units of y².

    ```python
    >>> ak.squared_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
    Array([0., 4.], dtype=float32)
    ```

    **Arguments:** `prediction`, `y`: of the same shape, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` if the shapes differ.
    """
    return sum_over_labels(errors_of(prediction, y) ** 2)


def absolute_error(prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
    r"""The absolute error $| y_i - \hat y_i |$ of each row, in units of y.

    An outlier counts in proportion to its error, and not to the square. It is the default of
    `ak.RobustRegression`, which then has nearly the lengthscale of data without outliers; a fit by
    least squares is moved by outliers whatever the score.

    ```python
    >>> ak.losses.absolute_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
    Array([0., 2.], dtype=float32)
    ```

    **Arguments:** `prediction`, `y`: of the same shape, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` if the shapes differ.

    **Source:** Wang and Scott, *The L1 method for robust nonparametric regression* (1994).
    """
    return sum_over_labels(jnp.abs(errors_of(prediction, y)))


class CheckLoss(eqx.Module):
    r"""The check loss (pinball loss) of each row, which the quantile of level τ minimises.

    $$ S_i = \rho_\tau(y_i - \hat y_i), \qquad \rho_\tau(r) = r\, (\tau - 1\{r < 0\}) $$

    In units of y. The check loss of level 1/2 is half the absolute error.

    ```python
    >>> ak.losses.CheckLoss(0.75)(jnp.array([1.0, 2.0]), jnp.array([0.0, 4.0]))
    Array([0.25, 1.5 ], dtype=float32)
    ```

    **Arguments:** `level`: τ, between 0 and 1. The call takes a `prediction` and `y` of the same
    shape, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` for a level outside (0, 1), or if the shapes differ.

    **Source:** Koenker and Bassett, *Regression quantiles* (1978).
    """

    level: float = eqx.field(static=True)

    def __init__(self, level: float):
        require_level("level", level)
        self.level = float(level)

    def __call__(self, prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
        return sum_over_labels(check_losses(-errors_of(prediction, y), self.level))


def check_losses(
    residuals: Float[Array, "*shape"], level: float | Float[Array, ""]
) -> Float[Array, "*shape"]:
    """Returns $\\rho_\\tau(r)$ of each residual r, with τ = `level`."""
    return jnp.where(residuals < 0, level - 1.0, level) * residuals


def errors_of(prediction: Any, y: Any) -> Float[Array, "..."]:
    """Returns ŷ − y in float32 at least; `ValueError` unless their shapes are equal."""
    labels = as_real_array("y", y)
    errors = require_same_shape(prediction, labels) - labels
    return errors.astype(wider_dtype(errors.dtype))


def sum_over_labels(losses: Float[Array, "..."]) -> Float[Array, " n"]:
    """Returns the sum over the labels of each row, of shape (n,) or (n, out)."""
    return losses if losses.ndim == 1 else jnp.sum(losses, axis=1)


def require_same_shape(prediction: Any, y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the prediction as an array; raises `ValueError` unless it has the shape of y."""
    array = as_real_array("prediction", prediction)
    if array.shape != y.shape or array.ndim not in (1, 2):
        raise ValueError(
            f"prediction and y must have the same shape, (n,) or (n, out); got {array.shape} and "
            f"{y.shape}."
        )
    return array
