r"""Rules: how the scores of one query become the weights of its keys.

A rule is the solution of a problem on the simplex, and says of which (`objective`):

$$ a = \arg\max_{a \in \Delta^n} \sum_j a_j s_j + \tau\, \Omega(a) $$

The scores s are those of the kernel, log K. The temperature τ is theirs alone: what it divides is
log K, and the prior stays what it is, the weights that are left where the scores say nothing.
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
    """

    @abc.abstractmethod
    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        """Scores of the kernel, at the temperature of the rule; -inf stays -inf."""

    @property
    def entmax_exponent(self) -> Exponent | None:
        """p, of a rule whose weights are $(1 + (s - \\lambda) / p)_+^p$, with a threshold λ of each
        query that makes them sum to 1. None: they are exp(s), and λ is their log-mass."""
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

    def log_sink(self) -> Float[Array, ""] | None:
        """Log-mass of a pseudo-key of value 0 that every query also sees; None for none."""
        return None

    def without_sink(self) -> "Rule":
        """This rule of a part of the keys: a sink is added once. It goes with `log_sink`."""
        return self

    @abc.abstractmethod
    def objective(
        self,
        weights: Float[Array, "*queries keys"],
        scores: Float[Array, "*queries keys"],
        log_prior: Float[Array, "*queries keys"] | None = None,
    ) -> Float[Array, "*queries"]:
        """What the weights of this rule are the maximum of, among all weights that sum to 1.

        **Arguments:** `weights`: a, on the simplex. `scores`: log K. `log_prior`: log π.
        """


def divided_by_temperature(
    scores: Float[Array, "..."], temperature: Parameter
) -> Float[Array, "..."]:
    """s / τ, whose derivative in τ is 0 where s is -inf."""
    if temperature.is_fixed:
        return scores / temperature.value
    seen = ~jnp.isneginf(scores)
    return jnp.where(seen, jnp.where(seen, scores, 0.0) / temperature.value, -jnp.inf)


def weighted_mean(
    weights: Float[Array, "*queries keys"], of: Float[Array, "*queries keys"] | None
) -> Float[Array, "*queries"]:
    """$\\sum_j a_j x_j$, where 0 · -inf is 0; of nothing, 0."""
    if of is None:
        return jnp.zeros(weights.shape[:-1], weights.dtype)
    return jnp.sum(jnp.where(weights > 0, weights * of, 0.0), axis=-1)


def entropy(weights: Float[Array, "*queries keys"]) -> Float[Array, "*queries"]:
    return -jnp.sum(xlogy(weights, weights), axis=-1)
