"""Scores by which objectives judge a model: the log-likelihood of each row, or a deviance."""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import as_real_array
from ..losses import require_same_shape, squared_error, sum_over_labels


def log_score(prediction: Any, y: Float[Array, "..."]) -> Float[Array, " n"]:
    r"""The negative log-likelihood of each row under a normal distribution, in nats.

    $$ S_i = \tfrac12 \log 2 \pi \hat\sigma_i^2 + \frac{(y_i - \hat\mu_i)^2}{2 \hat\sigma_i^2} $$

    ```python
    >>> ak.objectives.log_score((jnp.zeros(1), jnp.ones(1)), jnp.zeros(1))
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
    mean, variance = (require_same_shape(part, y) for part in prediction)
    scores = 0.5 * (jnp.log(2.0 * math.pi * variance) + (y - mean) ** 2 / variance)
    return sum_over_labels(scores)


@runtime_checkable
class HasDeviance(Protocol):
    """A model with a score of its own, by which `LeaveOneOut`, `KFold` and `HoldOut` judge it.

    ```python
    >>> model = ak.LocalLikelihood(ak.Gaussian(0.3), family=ak.Poisson())
    >>> isinstance(model, ak.objectives.HasDeviance)
    True

    ```
    """

    def deviance(self, prediction: Any, y: Array) -> Float[Array, " n"]:
        """Returns the score of each row, from predictions and labels; lower is better."""
        ...


def default_score(model: Any) -> Callable[[Any, Array], Array]:
    """Returns the deviance of a model that has one, else `squared_error`."""
    return model.deviance if isinstance(model, HasDeviance) else squared_error


def _shape_or_class_name(prediction: Any) -> str:
    """Returns text for an error: `an array of shape (3,)`, or the class of another object."""
    shape = getattr(prediction, "shape", None)
    return type(prediction).__name__ if shape is None else f"an array of shape {shape}"
