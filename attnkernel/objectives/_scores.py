"""Scores of predictions, one of each row: squared, absolute and check loss, log-likelihood."""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, wider_dtype
from .._core.validation import require_level


def squared_error(prediction: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, " n"]:
    r"""The squared error $\| y_i - \hat y_i \|^2$ of each row, in units of y².

    ```python
    >>> ak.squared_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
    Array([0., 4.], dtype=float32)
    ```

    **Arguments:** `prediction`, `y`: of the same shape, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` if the shapes differ.
    """
    errors = _errors(prediction, y)
    return _sum_over_labels(errors**2)


def absolute_error(prediction: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, " n"]:
    r"""The absolute error $| y_i - \hat y_i |$ of each row, in units of y.

    An outlier counts in proportion to its error, and not to the square. It is the default of
    `ak.RobustRegression`, which then has nearly the lengthscale of data without outliers; a fit by
    least squares is moved by outliers whatever the score.

    ```python
    >>> ak.absolute_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
    Array([0., 2.], dtype=float32)
    ```

    **Arguments:** `prediction`, `y`: of the same shape, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` if the shapes differ.

    **Source:** Wang and Scott, *The L1 method for robust nonparametric regression* (1994).
    """
    return _sum_over_labels(jnp.abs(_errors(prediction, y)))


class CheckLoss(eqx.Module):
    r"""The check loss (pinball loss) of each row, which the quantile of level τ minimises.

    $$ S_i = \rho_\tau(y_i - \hat y_i), \qquad \rho_\tau(r) = r\, (\tau - 1\{r < 0\}) $$

    Of level 1/2 it is half the absolute error. In units of y.

    ```python
    >>> ak.CheckLoss(0.75)(jnp.array([1.0, 2.0]), jnp.array([0.0, 4.0]))
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

    def __call__(
        self, prediction: Float[Array, "..."], y: Float[Array, "..."]
    ) -> Float[Array, " n"]:
        residuals = -_errors(prediction, y)
        is_below = residuals < 0
        return _sum_over_labels(jnp.where(is_below, self.level - 1.0, self.level) * residuals)


def log_score(prediction: Any, y: Float[Array, "..."]) -> Float[Array, " n"]:
    r"""The negative log-likelihood of each row under a normal distribution, in nats.

    $$ S_i = \tfrac12 \log 2 \pi \hat\sigma_i^2 + \frac{(y_i - \hat\mu_i)^2}{2 \hat\sigma_i^2} $$

    ```python
    >>> ak.log_score((jnp.zeros(1), jnp.ones(1)), jnp.zeros(1))
    Array([0.9189385], dtype=float32)
    ```

    **Arguments:** `prediction`: (means, variances), as `MeanVarianceRegression` returns them, each
    of the shape of `y`, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` if the prediction is no such pair, or the shapes differ.

    **Source:** Gneiting and Raftery, *Strictly proper scoring rules, prediction, and estimation*
    (2007).
    """
    if not isinstance(prediction, tuple | list) or len(prediction) != 2:
        raise ValueError(
            f"log_score needs a model that predicts a mean and a variance, such as "
            f"ak.MeanVarianceRegression; the prediction is {_shape_or_class_name(prediction)}."
        )
    y = as_real_array("y", y)
    mean, variance = (_require_same_shape(part, y) for part in prediction)
    scores = 0.5 * (jnp.log(2.0 * math.pi * variance) + (y - mean) ** 2 / variance)
    return scores if scores.ndim == 1 else jnp.sum(scores, axis=1)


@runtime_checkable
class HasDeviance(Protocol):
    """A model with a score of its own, by which `LeaveOneOut`, `KFold` and `HoldOut` judge it.

    ```python
    >>> model = ak.LocalLikelihood(ak.Gaussian(0.3), family=ak.Poisson())
    >>> isinstance(model, ak.objectives.HasDeviance)
    True

    ```
    """

    def deviance(self, predicted: Any, y: Array) -> Float[Array, " n"]:
        """Returns the score of each row, from predictions and labels; lower is better."""
        ...


def default_score(model: Any) -> Callable[[Any, Array], Array]:
    """Returns the deviance of a model that has one, else `squared_error`."""
    return model.deviance if isinstance(model, HasDeviance) else squared_error


def _errors(prediction: Any, y: Any) -> Float[Array, "..."]:
    """Returns ŷ − y in float32 at least; `ValueError` unless their shapes are equal."""
    labels = as_real_array("y", y)
    errors = _require_same_shape(prediction, labels) - labels
    return errors.astype(wider_dtype(errors.dtype))


def _sum_over_labels(scores: Float[Array, "..."]) -> Float[Array, " n"]:
    """Returns the sum over the labels of each row, of shape (n,) or (n, out)."""
    return scores if scores.ndim == 1 else jnp.sum(scores, axis=1)


def _require_same_shape(prediction: Any, y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the prediction as an array; raises `ValueError` unless it has the shape of y."""
    array = as_real_array("prediction", prediction)
    if array.shape != y.shape or array.ndim not in (1, 2):
        raise ValueError(
            f"prediction and y must have the same shape, (n,) or (n, out); got {array.shape} and "
            f"{y.shape}."
        )
    return array


def _shape_or_class_name(prediction: Any) -> str:
    """Returns text for an error: `an array of shape (3,)`, or the class of another object."""
    shape = getattr(prediction, "shape", None)
    return type(prediction).__name__ if shape is None else f"an array of shape {shape}"
