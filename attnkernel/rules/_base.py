r"""Rules: how the scores of one query become the weights of its keys.

A rule is the solution of a problem on the simplex, and says of which (`objective`):

$$ a = \arg\max_{a \in \Delta^n} \sum_j a_j s_j + \tau\, \Omega(a) $$

The scores s are log K. The temperature τ divides log K alone: the prior is the weights where all
scores are equal.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float

from .._core.parameters import Parameter
from ._entmax_threshold import Exponent, log_entmax_weights

TRY_TEMPERATURE = "It divides the scores: try 1."


class Rule(eqx.Module):
    """From the scores of one query to the weights of its keys.

    To add one, write `scaled_scores` and `objective`.

    ```python
    class Hard(ak.rules.Rule):  # equal weights near the query
        def scaled_scores(self, scores):
            return jnp.where(scores < -0.5, -jnp.inf, 0.0)

        def objective(self, weights, scores, log_prior=None):
            return ak.rules.Uniform().objective(weights, self.scaled_scores(scores), log_prior)

    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    assert ak.attention_weights(x, x, kernel=ak.Gaussian(0.3), rule=Hard())[0, 4] == 0.0
    ```
    """

    @abc.abstractmethod
    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        """Scores of the kernel, at the temperature of the rule; -inf stays -inf."""

    @property
    def entmax_exponent(self) -> Exponent | None:
        """p, if the weights are $(1 + (s - \\lambda) / p)_+^p$, which a threshold λ of each query
        makes sum to 1. None: the weights are exp(s)."""
        return None

    def log_weights(
        self,
        scores: Float[Array, "queries keys"],
        threshold: Float[Array, " queries"] | None,
    ) -> Float[Array, "queries keys"]:
        """Log-weights before normalisation, of scaled scores and log π together.

        **Arguments:** `threshold`: λ, of a rule that has an `entmax_exponent`.
        """
        if threshold is None or self.entmax_exponent is None:
            return scores
        return log_entmax_weights(scores - threshold[:, None], self.entmax_exponent)

    def log_sink(self) -> Float[Array, "*heads"] | None:
        """Log-mass of a pseudo-key of value 0 that every query also sees; None for none."""
        return None

    def without_sink(self) -> "Rule":
        """This rule without its sink, for a part of the keys: the caller adds `log_sink` once."""
        return self

    @abc.abstractmethod
    def objective(
        self,
        weights: Float[Array, "*queries keys"],
        scores: Float[Array, "*queries keys"],
        log_prior: Float[Array, "*queries keys"] | None = None,
    ) -> Float[Array, "*queries"]:
        """The objective that the weights of this rule maximise among all weights that sum to 1.

        **Arguments:** `weights`: a, on the simplex. `scores`: log K. `log_prior`: log π.
        """


def divided_by_temperature(
    scores: Float[Array, "..."], temperature: Parameter
) -> Float[Array, "..."]:
    """Returns the scores divided by the temperature; the derivative in it is 0 where s = -inf."""
    if temperature.is_fixed:
        return scores / temperature.value
    seen = ~jnp.isneginf(scores)
    return jnp.where(seen, jnp.where(seen, scores, 0.0) / temperature.value, -jnp.inf)


def weighted_mean(
    weights: Float[Array, "*queries keys"], numbers: Float[Array, "*queries keys"] | None
) -> Float[Array, "*queries"]:
    """Returns $\\sum_j a_j x_j$ with 0 · -inf = 0; `numbers`: x, or None for zeros."""
    if numbers is None:
        return jnp.zeros(weights.shape[:-1], weights.dtype)
    return jnp.sum(jnp.where(weights > 0, weights * numbers, 0.0), axis=-1)


def entropy(weights: Float[Array, "*queries keys"]) -> Float[Array, "*queries"]:
    """Returns the entropy $-\\sum_j a_j \\log a_j$ of the weights of each query."""
    return -jnp.sum(xlogy(weights, weights), axis=-1)
