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
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.parameters import Constant, Parameter, between, described, positive
from ._entmax_threshold import Exponent, log_entmax_weights

_TRY = "It divides the scores: try 1."


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


class Softmax(Rule):
    r"""The softmax at temperature τ, with an optional sink of mass ε.

    $$ a_j = \frac{\pi_j \exp(s_j / \tau)}{\varepsilon + \sum_l \pi_l \exp(s_l / \tau)},
       \qquad s \in [-\infty, \infty)^n,\ \tau > 0,\ \varepsilon \ge 0 $$

    It is the maximum of $\sum_j a_j s_j - \tau\, \mathrm{KL}(a \,\|\, \pi)$; with a prior of ones,
    of $\sum_j a_j s_j + \tau H(a)$. The sink is a pseudo-key of value 0. It is what "divide by
    (sum + 1e-16)" does: weights of a query far from all keys then fade to 0 instead of summing to
    1. Regression wants none.

    **Arguments:**

    - `temperature`: τ. Default 1. A number is fixed, and each compiles a program of its own; a JAX
      array is a parameter, to fit or to vary, and stays above 0 whatever an optimiser does. An
      array of NumPy is a fixed number of each head, for `PerHead`.
    - `sink_mass`: ε. Default 0: exact normalisation. As for `temperature`; to fit it, begin above
      0.

    **Raises:** `ValueError` if τ is not positive, or ε negative.
    """

    temperature_parameter: Parameter
    sink_mass_parameter: Parameter
    __pdoc__ = described

    def __init__(self, temperature: ArrayLike = 1.0, sink_mass: ArrayLike = 0.0):
        self.temperature_parameter = positive("temperature", temperature, _TRY)
        self.sink_mass_parameter = positive(
            "sink_mass", sink_mass, "It is a mass of weights.", or_zero=True
        )

    @property
    def temperature(self) -> ArrayLike:
        return self.temperature_parameter.value

    @property
    def sink_mass(self) -> ArrayLike:
        return self.sink_mass_parameter.value

    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        return _divided(scores, self.temperature)

    def log_sink(self) -> Float[Array, ""] | None:
        if isinstance(self.sink_mass, float | int) and self.sink_mass == 0:
            return None
        return self.sink_mass_parameter.log()

    def without_sink(self) -> "Softmax":
        return eqx.tree_at(lambda rule: rule.sink_mass_parameter, self, Constant(0.0))

    def objective(
        self,
        weights: Float[Array, "*queries keys"],
        scores: Float[Array, "*queries keys"],
        log_prior: Float[Array, "*queries keys"] | None = None,
    ) -> Float[Array, "*queries"]:
        """$\\sum_j a_j s_j - \\tau\\, \\mathrm{KL}(a \\,\\|\\, \\pi)$, of a rule without a sink."""
        relative = _entropy(weights) + _mean(weights, log_prior)
        return _mean(weights, scores) + self.temperature * relative


class Uniform(Rule):
    r"""Weights by the prior alone: the softmax at infinite temperature.

    $$ a_j = \frac{\pi_j\, 1\{s_j > -\infty\}}{\sum_l \pi_l\, 1\{s_l > -\infty\}} $$

    The mean of the keys that the mask allows and a compact kernel reaches. It is the maximum of
    $-\mathrm{KL}(a \,\|\, \pi)$ there.
    """

    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(jnp.isneginf(scores) | jnp.isnan(scores), scores, 0.0).astype(scores.dtype)

    def objective(
        self,
        weights: Float[Array, "*queries keys"],
        scores: Float[Array, "*queries keys"],
        log_prior: Float[Array, "*queries keys"] | None = None,
    ) -> Float[Array, "*queries"]:
        """$-\\mathrm{KL}(a \\,\\|\\, \\pi)$; -inf, where weight is on a key without any."""
        kept = _mean(weights, self.scaled_scores(scores))
        return _entropy(weights) + _mean(weights, log_prior) + kept


class Entmax(Rule):
    r"""The α-entmax: weights that are exactly 0 from some score down.

    $$ a_j = \big(1 + (s_j / \tau + \log \pi_j - \lambda) / p\big)_+^{\,p}, \qquad
       p = \frac{1}{\alpha - 1}, \qquad \lambda \text{ such that } \sum_j a_j = 1 $$

    It is the maximum of $\sum_j a_j (s_j + \tau \log \pi_j) + \tau H_\alpha(a)$, with the entropy
    of Tsallis, $H_\alpha(a) = \sum_j (a_j - a_j^\alpha) / (\alpha (\alpha - 1))$. α = 2 is the
    sparsemax; for α → 1 it is the softmax, and λ its log-mass, which is what λ is returned as.

    With the Gaussian kernel of lengthscale 1, α = 1 + 1/p is the regression with the compact kernel
    $(1 - \|q - k\|^2 / b^2)_+^p$ whose width $b^2 = 2 (p - \lambda)$ adapts to the query: for
    p = 1 the Epanechnikov, 2 the biweight, 3 the triweight.

    **Arguments:**

    - `alpha`: α, above 1 and up to 2. A number is fixed; a JAX array is a parameter to fit, and
      stays above 1 and below 2.
    - `temperature`: τ. Default 1. As for `alpha`.

    **Raises:** `ValueError` if α or τ is out of range.

    **Source:** Peters, Niculae and Martins, *Sparse sequence-to-sequence models* (2019).
    """

    alpha_parameter: Parameter
    temperature_parameter: Parameter
    __pdoc__ = described

    def __init__(self, alpha: ArrayLike, temperature: ArrayLike = 1.0):
        hint = "2 is the sparsemax; for 1 use ak.Softmax()."
        self.alpha_parameter = between("alpha", alpha, 1.0, 2.0, hint)
        self.temperature_parameter = positive("temperature", temperature, _TRY)

    @property
    def alpha(self) -> ArrayLike:
        return self.alpha_parameter.value

    @property
    def temperature(self) -> ArrayLike:
        return self.temperature_parameter.value

    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        return _divided(scores, self.temperature)

    @property
    def entmax_exponent(self) -> Exponent:
        if isinstance(self.alpha, float | int):
            return 1.0 / (self.alpha - 1.0)
        return 1.0 / (jnp.asarray(self.alpha) - 1.0)

    def objective(
        self,
        weights: Float[Array, "*queries keys"],
        scores: Float[Array, "*queries keys"],
        log_prior: Float[Array, "*queries keys"] | None = None,
    ) -> Float[Array, "*queries"]:
        """$\\sum_j a_j (s_j + \\tau \\log \\pi_j) + \\tau H_\\alpha(a)$."""
        entropy = jnp.sum(weights - weights**self.alpha, axis=-1)
        entropy = entropy / (self.alpha * (self.alpha - 1.0)) + _mean(weights, log_prior)
        return _mean(weights, scores) + self.temperature * entropy


def _divided(scores: Float[Array, "..."], temperature: ArrayLike) -> Float[Array, "..."]:
    if isinstance(temperature, float | int):
        return scores / temperature
    # a temperature to fit: -inf / τ would have a NaN for its derivative in τ
    seen = ~jnp.isneginf(scores)
    return jnp.where(seen, jnp.where(seen, scores, 0.0) / temperature, -jnp.inf)


def _mean(
    weights: Float[Array, "*queries keys"], of: Float[Array, "*queries keys"] | None
) -> Float[Array, "*queries"]:
    """$\\sum_j a_j x_j$, where 0 · -inf is 0; of nothing, 0."""
    if of is None:
        return jnp.zeros(weights.shape[:-1], weights.dtype)
    return jnp.sum(jnp.where(weights > 0, weights * of, 0.0), axis=-1)


def _entropy(weights: Float[Array, "*queries keys"]) -> Float[Array, "*queries"]:
    return -jnp.sum(xlogy(weights, weights), axis=-1)
