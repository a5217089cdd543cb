"""The softmax: weights proportional to exp(s / τ)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.parameter_arguments import Number, fixed, positive, real
from .._core.parameters import Constant, Parameter, PositiveParameter, described
from ._base import (
    TRY_TEMPERATURE,
    Rule,
    divided_by_temperature,
    entropy,
    weighted_mean,
)

NO_SINK = fixed(0.0)


class Softmax(Rule):
    r"""The softmax at temperature τ, with an optional sink of mass ε.

    $$ a_j = \frac{\pi_j \exp(s_j / \tau)}{\varepsilon + \sum_l \pi_l \exp(s_l / \tau)},
       \qquad s \in [-\infty, \infty)^n,\ \tau > 0,\ \varepsilon \ge 0 $$

    It is the maximum of $\sum_j a_j s_j - \tau\, \mathrm{KL}(a \,\|\, \pi)$; with a prior of ones,
    of $\sum_j a_j s_j + \tau H(a)$. The sink is a pseudo-key of value 0. It is what "divide by
    (sum + 1e-16)" does: weights of a query far from all keys then fade to 0 instead of summing to
    1. Regression wants none.

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

    @property
    def temperature(self) -> float | Float[Array, "..."]:
        return self.temperature_parameter.value

    @property
    def sink_mass(self) -> float | Float[Array, "..."]:
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
        self,
        weights: Float[Array, "*queries keys"],
        scores: Float[Array, "*queries keys"],
        log_prior: Float[Array, "*queries keys"] | None = None,
    ) -> Float[Array, "*queries"]:
        """$\\sum_j a_j s_j - \\tau\\, \\mathrm{KL}(a \\,\\|\\, \\pi)$, of a rule without a sink."""
        relative = entropy(weights) + weighted_mean(weights, log_prior)
        return weighted_mean(weights, scores) + self.temperature * relative
