"""Uniform weights: the mean of the keys that a query may see."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import Rule, entropy, weighted_mean


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
        return jnp.where(jnp.isneginf(scores) | jnp.isnan(scores), scores, 0.0).astype(scores.dtype)

    def objective(
        self,
        weights: Float[Array, "*queries keys"],
        scores: Float[Array, "*queries keys"],
        log_prior: Float[Array, "*queries keys"] | None = None,
    ) -> Float[Array, "*queries"]:
        """$-\\mathrm{KL}(a \\,\\|\\, \\pi)$; -inf, where weight is on a key without any."""
        kept = weighted_mean(weights, self.scaled_scores(scores))
        return entropy(weights) + weighted_mean(weights, log_prior) + kept
