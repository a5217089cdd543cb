r"""Rules: how the scores of one query become the weights of its keys.

The weights of a rule maximise its `objective` on the simplex:

$$ a = \arg\max_{a \in \Delta^n} \sum_j a_j s_j + \tau\, \Omega(a) $$

The scores s are log K. The temperature τ divides log K alone: the prior is the weights where all
scores are equal.

The threshold λ of a query: what makes the weights of an entmax sum to 1.

$$ S(\lambda) = \sum_j \big(1 + (s_j - \lambda) / p\big)_+^{\,p} = 1, \qquad p \ge 1 $$

$S^{1/p}$ is a norm of convex functions of λ, so it is convex, and it falls. Newton's method on it
from a λ that is too low never goes beyond the root; at the highest score S is at least 1. For
p → ∞ the weights are those of a softmax, and one step arrives at their log-mass.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float

from .._core.parameters import (
    Constant,
    Number,
    Parameter,
    PositiveParameter,
    between,
    described,
    fixed,
    natural,
    positive,
    real,
)
from .._core.tracing import vary_alike

Exponent = float | Float[Array, ""]
MassAndSlope = tuple[Float[Array, " queries"], Float[Array, " queries"]]
OfKeys = Float[Array, "*queries keys"]  # one number of each key, for each query

TRY_TEMPERATURE = "It divides the scores: try 1."
NO_SINK = fixed(0.0)


class Rule(eqx.Module):
    """Maps the scores of one query to the weights of its keys.

    To add one, write `scaled_scores`, which must not fall with the score, and `objective`.

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

    def __init_subclass__(cls, **options):
        """Raises `TypeError` if a subclass defines `log_sink` and not `without_sink`."""
        super().__init_subclass__(**options)
        if "log_sink" in vars(cls) and "without_sink" not in vars(cls):
            raise TypeError(
                f"{cls.__name__} defines log_sink, and must define without_sink too: the same rule "
                f"without its sink, for parts of the keys."
            )

    @abc.abstractmethod
    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns g(s), elementwise, of scores s = log K: such as s/τ. g(-inf) must be -inf.

        g must not decrease in s: methods skip blocks by g of an upper bound of their scores.
        """

    @property
    def entmax_exponent(self) -> Exponent | None:
        """p, if the weights are $(1 + (t - \\lambda) / p)_+^p$, with t = `scaled_scores(s)` + log π
        and a threshold λ of each query that makes them sum to 1. None: they are proportional to
        exp(t)."""
        return None

    def log_weights(
        self,
        scores: Float[Array, "queries keys"],
        threshold: Float[Array, " queries"] | None,
    ) -> Float[Array, "queries keys"]:
        """Returns the log-weights of all pairs: of an entmax those that its threshold gives.

        Without a threshold or an `entmax_exponent` they are `scores`, not normalised.

        **Arguments:** `scores`: t = `scaled_scores(s)` + log π, not s. `threshold`: λ of each
        query, for a rule that has an `entmax_exponent`; else None.
        """
        if threshold is None or self.entmax_exponent is None:
            return scores
        return log_entmax_weights(scores - threshold[:, None], self.entmax_exponent)

    def log_sink(self) -> Float[Array, "*heads"] | None:
        """Log-mass of a pseudo-key of value 0 that every query also sees; None if the rule has no
        sink."""
        return None

    def without_sink(self) -> "Rule":
        """This rule without its sink, for a part of the keys: the caller adds `log_sink` once."""
        return self

    @abc.abstractmethod
    def objective(
        self, weights: OfKeys, scores: OfKeys, log_prior: OfKeys | None = None
    ) -> Float[Array, "*queries"]:
        """The objective that the weights of this rule maximise among all weights that sum to 1.

        **Arguments:** `weights`: a, on the simplex. `scores`: log K. `log_prior`: log π.
        """


def divided_by_temperature(
    scores: Float[Array, "..."], temperature: Parameter
) -> Float[Array, "..."]:
    """Returns s / τ. Where s = -inf, the derivative with respect to τ is 0."""
    if temperature.is_fixed:
        return scores / temperature.value
    seen = ~jnp.isneginf(scores)
    return jnp.where(seen, jnp.where(seen, scores, 0.0) / temperature.value, -jnp.inf)


def weighted_mean(weights: OfKeys, numbers: OfKeys | None) -> Float[Array, "*queries"]:
    """Returns $\\sum_j a_j x_j$ with 0 · -inf = 0; `numbers`: x, or None for zeros."""
    if numbers is None:
        return jnp.zeros(weights.shape[:-1], weights.dtype)
    return jnp.sum(jnp.where(weights > 0, weights * numbers, 0.0), axis=-1)


def entropy(weights: OfKeys) -> Float[Array, "*queries"]:
    """Returns the entropy $-\\sum_j a_j \\log a_j$ of the weights of each query."""
    return -jnp.sum(xlogy(weights, weights), axis=-1)


class Softmax(Rule):
    r"""The softmax at temperature τ, with an optional sink of mass ε.

    $$ a_j = \frac{\pi_j \exp(s_j / \tau)}{\varepsilon + \sum_l \pi_l \exp(s_l / \tau)},
       \qquad s \in [-\infty, \infty)^n,\ \tau > 0,\ \varepsilon \ge 0 $$

    It is the maximum of $\sum_j a_j s_j - \tau\, \mathrm{KL}(a \,\|\, \pi)$; with a prior of ones,
    of $\sum_j a_j s_j + \tau H(a)$. The sink is a pseudo-key of value 0. It is what "divide by
    (sum + 1e-16)" does: weights of a query far from all keys then fade to 0 instead of summing to
    1. Use no sink for regression.

    **Arguments:**

    - `temperature`: τ, trained if it is given; default, fixed at 1.
    - `sink_mass`: ε, trained if it is given, then above 0; default, fixed at 0, which normalises
      exactly. To hold either: `ak.fixed(0.5)`.
    - `log_sink_mass`: log ε in its place, any number, trained: a score that joins the sum. It is
      not divided by τ. The learned sinks of heads, an array of one number per head, go into
      `ak.PerHead(ak.Softmax(log_sink_mass=sinks))`.

    **Raises:** `ValueError` if τ is not positive, or ε negative, or 0 and not fixed; if log ε is
    not finite, or both are given.

    **Source:** of learned sinks, OpenAI, *gpt-oss-120b and gpt-oss-20b model card* (2025).

    ```python
    rule = ak.Softmax(0.5, sink_mass=ak.fixed(1e-16))
    x = jnp.linspace(0.0, 1.0, 7)[:, None]
    ak.attend(x, x, x, kernel=ak.Gaussian(0.2), rule=rule)
    heads = ak.PerHead(ak.Softmax(log_sink_mass=jnp.array([-1.0, 2.0])))
    assert ak.attend(x, x, x, kernel=ak.DotProduct(), rule=heads).shape == (2, 7, 1)
    ```
    """

    temperature_parameter: PositiveParameter
    sink_mass_parameter: PositiveParameter | None
    log_sink_mass_parameter: Parameter | None
    __pdoc__ = described

    def __init__(
        self,
        temperature: Number = fixed(1.0),
        sink_mass: Number = NO_SINK,
        *,
        log_sink_mass: Number | None = None,
    ):
        if sink_mass is not NO_SINK and log_sink_mass is not None:
            raise ValueError(
                "Say one of sink_mass=, such as 0.1, and log_sink_mass=, its logarithm; got both."
            )
        self.temperature_parameter = positive("temperature", temperature, TRY_TEMPERATURE)
        self.sink_mass_parameter = self.log_sink_mass_parameter = None
        if log_sink_mass is None:
            hint = "For no sink: ak.fixed(0.0)."
            self.sink_mass_parameter = positive("sink_mass", sink_mass, hint, or_zero=True)
        else:
            hint = "For no sink, leave it out."
            self.log_sink_mass_parameter = real("log_sink_mass", log_sink_mass, hint)

    temperature = natural("temperature")

    @property
    def sink_mass(self) -> float | Float[Array, "..."]:
        """ε, which is added to the sum of the weights before normalisation; 0 without a sink."""
        if self.sink_mass_parameter is None:
            return jnp.exp(self.log_sink_mass)
        return self.sink_mass_parameter.value

    @property
    def log_sink_mass(self) -> Float[Array, "..."]:
        """log ε; -inf without a sink."""
        if self.log_sink_mass_parameter is not None:
            return jnp.asarray(self.log_sink_mass_parameter.value, float)
        assert self.sink_mass_parameter is not None
        return self.sink_mass_parameter.log()

    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        return divided_by_temperature(scores, self.temperature_parameter)

    def log_sink(self) -> Float[Array, "*heads"] | None:
        mass = self.sink_mass_parameter
        return None if mass is not None and mass.equals(0.0) else self.log_sink_mass

    @property
    def has_unit_temperature(self) -> bool:
        """Whether the temperature is fixed at 1, so that scores are those of the kernel."""
        return self.temperature_parameter.equals(1.0)

    def with_temperature_times(self, factor: float) -> "Softmax":
        """The softmax at τ times a positive factor."""
        temperature = self.temperature_parameter.times(factor)
        return eqx.tree_at(lambda rule: rule.temperature_parameter, self, temperature)

    def without_sink(self) -> "Softmax":
        return eqx.tree_at(
            lambda rule: (rule.sink_mass_parameter, rule.log_sink_mass_parameter),
            self,
            (Constant(0.0), None),
            is_leaf=lambda node: node is None or isinstance(node, Parameter),
        )

    def objective(
        self, weights: OfKeys, scores: OfKeys, log_prior: OfKeys | None = None
    ) -> Float[Array, "*queries"]:
        """$\\sum_j a_j s_j - \\tau\\, \\mathrm{KL}(a \\,\\|\\, \\pi)$; it ignores a sink."""
        relative = entropy(weights) + weighted_mean(weights, log_prior)
        return weighted_mean(weights, scores) + self.temperature * relative


class Entmax(Rule):
    r"""The α-entmax: weights that are exactly 0 from some score down.

    $$ a_j = \big(1 + (s_j / \tau + \log \pi_j - \lambda) / p\big)_+^{\,p}, \qquad
       p = \frac{1}{\alpha - 1}, \qquad \lambda \text{ such that } \sum_j a_j = 1 $$

    It is the maximum of $\sum_j a_j (s_j + \tau \log \pi_j) + \tau H_\alpha(a)$, with the entropy
    of Tsallis, $H_\alpha(a) = \sum_j (a_j - a_j^\alpha) / (\alpha (\alpha - 1))$. α = 2 is the
    sparsemax; for α → 1 it is the softmax, and λ its log-mass: `return_log_mass=True` returns λ.

    With the Gaussian kernel of lengthscale 1, α = 1 + 1/p is the regression with the compact kernel
    $(1 - \|q - k\|^2 / b^2)_+^p$ whose width $b^2 = 2 (p - \lambda)$ adapts to the query: for
    p = 1 the Epanechnikov, 2 the biweight, 3 the triweight.

    **Arguments:**

    - `alpha`: α, trained, above 1 and below 2; fixed, such as `ak.fixed(2.0)`, it may be 2.
    - `temperature`: τ, trained if it is given; default, fixed at 1.

    **Raises:** `ValueError` if α or τ is out of range.

    ```python
    x = jnp.linspace(0.0, 1.0, 7)[:, None]
    sparse = ak.attention_weights(x, x, kernel=ak.Gaussian(0.2), rule=ak.Entmax(1.5))
    ```

    **Source:** Peters, Niculae and Martins, *Sparse sequence-to-sequence models* (2019).
    """

    alpha_parameter: Parameter
    temperature_parameter: Parameter
    __pdoc__ = described

    def __init__(self, alpha: Number, temperature: Number = fixed(1.0)):
        hint = "The sparsemax is ak.fixed(2.0); for 1 use ak.Softmax()."
        self.alpha_parameter = between("alpha", alpha, 1.0, 2.0, hint)
        self.temperature_parameter = positive("temperature", temperature, TRY_TEMPERATURE)

    alpha = natural("alpha")

    temperature = natural("temperature")

    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        return divided_by_temperature(scores, self.temperature_parameter)

    @property
    def entmax_exponent(self) -> Exponent:
        return 1.0 / (self.alpha - 1.0)

    def objective(
        self, weights: OfKeys, scores: OfKeys, log_prior: OfKeys | None = None
    ) -> Float[Array, "*queries"]:
        """$\\sum_j a_j (s_j + \\tau \\log \\pi_j) + \\tau H_\\alpha(a)$."""
        tsallis = jnp.sum(weights - weights**self.alpha, axis=-1)
        tsallis = tsallis / (self.alpha * (self.alpha - 1.0)) + weighted_mean(weights, log_prior)
        return weighted_mean(weights, scores) + self.temperature * tsallis


class Uniform(Rule):
    r"""Weights by the prior alone: the softmax at infinite temperature.

    $$ a_j = \frac{\pi_j\, 1\{s_j > -\infty\}}{\sum_l \pi_l\, 1\{s_l > -\infty\}} $$

    The mean of the keys that the mask allows and a compact kernel reaches. It is the maximum of
    $-\mathrm{KL}(a \,\|\, \pi)$ there.

    ```python
    x = jnp.linspace(0.0, 1.0, 7)[:, None]
    ak.attend(x, x, x, kernel=ak.kernels.Boxcar(0.2), rule=ak.rules.Uniform())
    ```
    """

    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns 0 for every score but -inf and NaN, which stay."""
        return jnp.where(jnp.isneginf(scores) | jnp.isnan(scores), scores, 0.0).astype(scores.dtype)

    def objective(
        self, weights: OfKeys, scores: OfKeys, log_prior: OfKeys | None = None
    ) -> Float[Array, "*queries"]:
        """$-\\mathrm{KL}(a \\,\\|\\, \\pi)$; -inf if weight is on a key whose score or log π is
        -inf."""
        kept = weighted_mean(weights, self.scaled_scores(scores))
        return entropy(weights) + weighted_mean(weights, log_prior) + kept


def log_entmax_weights(gaps: Float[Array, "..."], exponent: Exponent) -> Float[Array, "..."]:
    """Returns $p \\log (1 + x / p)$, the log of an entmax weight before normalisation.

    `gaps`: x = s − λ, the score less the threshold. `exponent`: p. Where x ≤ −p it is -inf, with
    a gradient of 0.
    """
    outside = gaps <= -exponent  # NaN is not, and stays NaN
    return jnp.where(
        outside, -jnp.inf, exponent * jnp.log1p(jnp.where(outside, 0.0, gaps) / exponent)
    )


def threshold_sums(
    threshold: Float[Array, " queries"], scores: Float[Array, "queries keys"], exponent: Exponent
) -> MassAndSlope:
    """Returns S(λ), the sum of the entmax weights of each query, and −dS/dλ.

    `threshold`: λ. `scores`: t = `scaled_scores(s)` + log π, not s. `exponent`: p = 1 / (α − 1).
    """
    gaps = scores - threshold[:, None]
    inside = gaps > -exponent
    log_base = jnp.log1p(jnp.where(inside, gaps, 0.0) / exponent)

    def total(order: Exponent) -> Float[Array, " queries"]:
        return jnp.sum(jnp.where(inside, jnp.exp(order * log_base), 0.0), axis=1)

    return total(exponent), total(exponent - 1.0)


@eqx.filter_custom_jvp
def find_threshold(
    sums: Callable[..., MassAndSlope],
    highest: Float[Array, " queries"],
    exponent: Exponent,
    *arguments: Any,
) -> Float[Array, " queries"]:
    """Returns the λ of each query with S(λ) = 1, by Newton's method; 0 for a query without keys.

    Its derivatives with respect to `arguments` are those of the implicit function theorem.

    **Arguments:** `sums`: from thresholds and `arguments` to S and −dS/dλ of each query.
    `highest`: the highest score of each query, where the iteration starts. `exponent`: p.
    """
    max_steps = 100  # about seven are taken
    some = ~jnp.isneginf(highest)
    start = jnp.where(some, highest, 0.0)
    least = 4.0 * jnp.finfo(highest.dtype).eps

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        count, threshold = state
        mass, slope = sums(threshold, *arguments)
        log_mass = jnp.log(jnp.where(some & (mass > 1.0), mass, 1.0))
        # (S^(1/p) − 1) over its slope; 0 where rounding has gone beyond the root
        rise = -exponent * jnp.expm1(-log_mass / exponent) * mass / jnp.where(slope > 0, slope, 1.0)
        more = jnp.any(rise > least * jnp.maximum(1.0, jnp.abs(threshold)))
        return jnp.where(more, count + 1, max_steps), threshold + rise

    first = vary_alike((jnp.array(0), start))
    return jax.lax.while_loop(lambda state: state[0] < max_steps, step, first)[1]


@find_threshold.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (sums, _, _, *arguments), threshold = primals, find_threshold(*primals)
    mass = lambda *moving: sums(threshold, *moving)[0]  # noqa: E731
    change = eqx.filter_jvp(mass, tuple(arguments), tuple(tangents[3:]))[1]
    slope = sums(threshold, *arguments)[1]
    return threshold, change / jnp.where(slope > 0, slope, 1.0)


def entmax_threshold(
    scores: Float[Array, "queries keys"], exponent: Exponent
) -> Float[Array, " queries"]:
    """Returns the threshold λ of each query; 0 for a query without keys.

    `scores`: t = `scaled_scores(s)` + log π, not s. `exponent`: p = 1 / (α − 1).
    """
    highest = jnp.max(jax.lax.stop_gradient(scores), axis=1, initial=-jnp.inf)
    return find_threshold(threshold_sums, highest, exponent, scores, exponent)
