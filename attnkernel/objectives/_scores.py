"""Scores of predictions: the squared error and the Gaussian log-likelihood of each row."""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, wider_dtype


def squared_error(prediction: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, " n"]:
    r"""The squared error $\| y_i - \hat y_i \|^2$ of each row, in units of y².

    ```python
    >>> ak.squared_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
    Array([0., 4.], dtype=float32)
    ```

    **Arguments:** `prediction`, `y`: of the same shape, (n,) or (n, out); labels are summed.

    **Raises:** `ValueError` if the shapes differ.
    """
    labels = as_real_array("y", y)
    errors = _require_same_shape(prediction, labels) - labels
    squares = errors.astype(wider_dtype(errors.dtype)) ** 2
    return squares if squares.ndim == 1 else jnp.sum(squares, axis=1)


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
