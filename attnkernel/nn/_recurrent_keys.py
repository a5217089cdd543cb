"""Queries and keys as an online regression takes them: features of a kernel, points of length 1."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import wider_dtype
from ..kernels import FiniteRank
from ..recurrent import Estimator


def feature_values(
    kernel: FiniteRank, points: Float[Array, "heads rows dim"]
) -> Float[Array, "heads rows features"]:
    """Returns the features of queries or keys, as plain numbers."""
    features = jax.vmap(kernel.features)(points)
    return features.factor * jnp.exp(features.log)


def divided_by_length(points: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
    """Returns points of length 1, or a little less; 0 stays 0, with a finite derivative."""
    wide = points.astype(wider_dtype(points.dtype))
    squares = jnp.sum(wide**2, axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(squares + 1e-12)).astype(points.dtype)


def require_estimator_takes(
    estimator: Estimator, size: int, decay: str | None, max_rate: float | None, qk_norm: bool
) -> None:
    """Raises `ValueError` if the estimator refuses the keys, decays and rates of a layer: keys of
    length 1, or without a norm of any length."""
    key = np.full((1, 1, size), (1.0 if qk_norm else 1e3) / np.sqrt(size))
    channels = size if decay == "channel" else 1
    log_decay = None if decay is None else np.full((1, 1, channels), -0.1)
    rate = None if max_rate is None else np.full((1, 1), max_rate)
    try:
        estimator.check(key, log_decay, rate)
    except ValueError as error:
        raise ValueError(
            f"estimator cannot be used like this: {error} In this layer max_rate=1.0 gives each "
            f"row a rate of at most 1, and qk_norm=True gives keys the length 1."
        ) from None
