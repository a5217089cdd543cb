"""The entmax: sparse weights, by an entropy of Tsallis."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.parameter_arguments import Number, between, fixed, positive
from .._core.parameters import Parameter, described
from ._base import (
    TRY_TEMPERATURE,
    Rule,
    divided_by_temperature,
    weighted_mean,
)
from ._entmax_threshold import Exponent


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

    @property
    def alpha(self) -> float | Float[Array, "..."]:
        return self.alpha_parameter.value

    @property
    def temperature(self) -> float | Float[Array, "..."]:
        return self.temperature_parameter.value

    def scaled_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        return divided_by_temperature(scores, self.temperature_parameter)

    @property
    def entmax_exponent(self) -> Exponent:
        return 1.0 / (self.alpha - 1.0)

    def objective(
        self,
        weights: Float[Array, "*queries keys"],
        scores: Float[Array, "*queries keys"],
        log_prior: Float[Array, "*queries keys"] | None = None,
    ) -> Float[Array, "*queries"]:
        """$\\sum_j a_j (s_j + \\tau \\log \\pi_j) + \\tau H_\\alpha(a)$."""
        tsallis = jnp.sum(weights - weights**self.alpha, axis=-1)
        tsallis = tsallis / (self.alpha * (self.alpha - 1.0)) + weighted_mean(weights, log_prior)
        return weighted_mean(weights, scores) + self.temperature * tsallis
