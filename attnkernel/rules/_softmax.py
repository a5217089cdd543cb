"""The softmax: weights proportional to exp(s / τ)."""

import equinox as eqx
from jaxtyping import Array, Float

from .._core.parameter_arguments import Number, fixed, positive
from .._core.parameters import Constant, PositiveParameter, described
from ._base import (
    TRY_TEMPERATURE,
    Rule,
    divided_by_temperature,
    entropy,
    weighted_mean,
)


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

    **Raises:** `ValueError` if τ is not positive, or ε negative, or 0 and not fixed.

    ```python
    rule = ak.Softmax(0.5, sink_mass=ak.fixed(1e-16))
    x = jnp.linspace(0.0, 1.0, 7)[:, None]
    ak.attend(x, x, x, kernel=ak.Gaussian(0.2), rule=rule)
    ```
    """

    temperature_parameter: PositiveParameter
    sink_mass_parameter: PositiveParameter
    __pdoc__ = described

    def __init__(self, temperature: Number = fixed(1.0), sink_mass: Number = fixed(0.0)):
        self.temperature_parameter = positive("temperature", temperature, TRY_TEMPERATURE)
        self.sink_mass_parameter = positive(
            "sink_mass", sink_mass, "For no sink: ak.fixed(0.0).", or_zero=True
        )

    @property
    def temperature(self) -> float | Float[Array, "..."]:
        return self.temperature_parameter.value

    @property
    def sink_mass(self) -> float | Float[Array, "..."]:
        return self.sink_mass_parameter.value

    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        return divided_by_temperature(scores, self.temperature_parameter)

    def log_sink(self) -> Float[Array, ""] | None:
        if self.sink_mass_parameter.equals(0.0):
            return None
        return self.sink_mass_parameter.log()

    @property
    def has_unit_temperature(self) -> bool:
        """Whether the temperature is fixed at 1, so that scores are those of the kernel."""
        return self.temperature_parameter.equals(1.0)

    def with_temperature_times(self, factor: float) -> "Softmax":
        """The softmax at τ times a positive factor."""
        temperature = self.temperature_parameter.times(factor)
        return eqx.tree_at(lambda rule: rule.temperature_parameter, self, temperature)

    def without_sink(self) -> "Softmax":
        return eqx.tree_at(lambda rule: rule.sink_mass_parameter, self, Constant(0.0))

    def objective(
        self,
        weights: Float[Array, "*queries keys"],
        scores: Float[Array, "*queries keys"],
        log_prior: Float[Array, "*queries keys"] | None = None,
    ) -> Float[Array, "*queries"]:
        """$\\sum_j a_j s_j - \\tau\\, \\mathrm{KL}(a \\,\\|\\, \\pi)$, of a rule without a sink."""
        relative = entropy(weights) + weighted_mean(weights, log_prior)
        return weighted_mean(weights, scores) + self.temperature * relative
