"""Scores of predictions: how far labels are from what was said of them, row by row."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import as_real_array


def squared_error(prediction: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, " n"]:
    r"""$\| y_i - \hat y_i \|^2$ of each row; in units of y²."""
    labels = as_real_array("y", y)
    squares = (_of_labels(prediction, labels) - labels) ** 2
    return squares if squares.ndim == 1 else jnp.sum(squares, axis=1)


def log_score(prediction: Any, y: Float[Array, "..."]) -> Float[Array, " n"]:
    r"""The negative log-likelihood of each row under a normal law, in nats.

    $$ S_i = \tfrac12 \log 2 \pi \hat\sigma_i^2 + \frac{(y_i - \hat\mu_i)^2}{2 \hat\sigma_i^2} $$

    **Arguments:** `prediction`: means and variances, as `MeanVarianceRegression` gives them, each
    of the shape of `y`. Of several labels a row, the sum over them.

    **Source:** Gneiting and Raftery, *Strictly proper scoring rules, prediction, and estimation*
    (2007).
    """
    if not isinstance(prediction, tuple | list) or len(prediction) != 2:
        raise ValueError(
            f"log_score is of models that predict a mean and a variance, such as "
            f"ak.MeanVarianceRegression; the prediction is {_what(prediction)}."
        )
    y = as_real_array("y", y)
    mean, variance = (_of_labels(part, y) for part in prediction)
    scores = 0.5 * (jnp.log(2.0 * math.pi * variance) + (y - mean) ** 2 / variance)
    return scores if scores.ndim == 1 else jnp.sum(scores, axis=1)


def _of_labels(prediction: Any, y: Float[Array, "..."]) -> Float[Array, "..."]:
    """A prediction for each label: of a (n,) and a (n, 1) a difference would have n² entries."""
    array = as_real_array("prediction", prediction)
    if array.shape != y.shape or array.ndim not in (1, 2):
        raise ValueError(
            f"prediction and y must have the same shape, (n,) or (n, out); got {array.shape} and "
            f"{y.shape}."
        )
    return array


def _what(prediction: Any) -> str:
    shape = getattr(prediction, "shape", None)
    return type(prediction).__name__ if shape is None else f"an array of shape {shape}"
