"""Rules: how scores become weights."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ._checks import as_constant, is_known, require_positive


class Rule(eqx.Module):
    """From the scores of one query to the unnormalised log-weights of its keys."""

    @abc.abstractmethod
    def log_weights(self, scores: Float[Array, "queries keys"]) -> Float[Array, "queries keys"]:
        """Log-weights before normalisation."""

    @abc.abstractmethod
    def log_sink(self) -> Float[Array, ""] | None:
        """Log-mass of a pseudo-key of value 0 that every query also sees; None for none."""


class Softmax(Rule):
    r"""The softmax at temperature τ, with an optional sink of mass ε.

    $$ a_i = \frac{\exp(s_i / \tau)}{\varepsilon + \sum_j \exp(s_j / \tau)},
       \qquad s \in [-\infty, \infty)^n,\ \tau > 0,\ \varepsilon \ge 0 $$

    The sink is a pseudo-key of value 0. It is what "divide by (sum + 1e-16)" does: weights of a
    query far from all keys then fade to 0 instead of summing to 1. Regression wants none.

    **Arguments:**

    - `temperature`: τ. Default 1. A number is fixed; a JAX array is a parameter to fit.
    - `sink_mass`: ε. Default 0: exact normalisation.

    **Raises:** `ValueError` if τ is not positive, or ε negative.
    """

    temperature: ArrayLike
    sink_mass: ArrayLike

    def __init__(self, temperature: ArrayLike = 1.0, sink_mass: ArrayLike = 0.0):
        require_positive("temperature", temperature)
        if is_known(sink_mass) and not 0.0 <= float(np.asarray(sink_mass)) < float("inf"):
            raise ValueError(f"sink_mass must be at least 0 and finite; got {sink_mass!r}.")
        self.temperature = as_constant(temperature)
        self.sink_mass = as_constant(sink_mass)

    def log_weights(self, scores: Float[Array, "queries keys"]) -> Float[Array, "queries keys"]:
        if isinstance(self.temperature, float | int):
            return scores / self.temperature
        # a temperature to fit: -inf / τ would have a NaN for its derivative in τ
        seen = ~jnp.isneginf(scores)
        return jnp.where(seen, jnp.where(seen, scores, 0.0) / self.temperature, -jnp.inf)

    def log_sink(self) -> Float[Array, ""] | None:
        if isinstance(self.sink_mass, float | int) and self.sink_mass == 0:
            return None
        return jnp.log(jnp.asarray(self.sink_mass, dtype=float))
