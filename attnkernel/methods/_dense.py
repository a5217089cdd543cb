"""The readable reference: all scores at once, in O(queries × keys) memory."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..kernels import Kernel
from ..priors import Prior
from ..rules import Rule
from ..rules._entmax_threshold import level_of
from ._base import Method, Task, masked, within_memory
from ._softmax_state import Moments


class Dense(Method):
    r"""Forms the matrix of scores, then its moments.

    $$ s_{ij} = \log K(q_i, k_j) + \log \pi(i, j) $$

    Takes any kernel, prior and rule. O(nm) time and memory.
    """

    def refusal(self, task: Task) -> str | None:
        return None

    def side_by_side(self, task: Task) -> int | None:
        return within_memory(task)

    def moments(
        self,
        q: Float[Array, "queries dim"],
        k: Float[Array, "keys dim"],
        v: Float[Array, "keys dim_v"],
        kernel: Kernel,
        prior: Prior | None,
        rule: Rule,
    ) -> Moments:
        log_weights, level = _log_weights(q, k, kernel, prior, rule)
        return Moments.of(log_weights, v).above(level).with_sink(rule.log_sink())


def weights(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    kernel: Kernel,
    prior: Prior | None,
    rule: Rule,
) -> Float[Array, "queries keys"]:
    """The weights themselves, of sum 1, or less with a sink; 0 where a query sees no key."""
    log_weights, _ = _log_weights(q, k, kernel, prior, rule)
    moments = Moments.of(log_weights, jnp.zeros((k.shape[0], 0), q.dtype))
    log_mass = moments.with_sink(rule.log_sink()).log_mass[:, None]
    some = ~jnp.isneginf(log_weights)
    return jnp.where(some, jnp.exp(log_weights - jnp.where(some, log_mass, 0.0)), 0.0)


def _log_weights(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    kernel: Kernel,
    prior: Prior | None,
    rule: Rule,
) -> tuple[Float[Array, "queries keys"], Float[Array, " queries"] | None]:
    """Log-weights before normalisation, and the level that they are counted from."""
    i, j = jnp.arange(q.shape[0]), jnp.arange(k.shape[0])
    scores = masked(rule.tempered(kernel.pairwise(q, k)), prior, i, j)
    level = None if rule.power is None else level_of(scores, rule.power)
    return rule.log_weights(scores, level), level
