"""The readable reference: all scores at once, in O(queries × keys) memory."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._rules import Rule
from ..kernels import Kernel
from ..priors import Prior
from ._base import Method
from ._moments import Moments


class Dense(Method):
    r"""Forms the matrix of scores, then its moments.

    $$ s_{ij} = \log K(q_i, k_j) + \log \pi(i, j) $$

    Takes any kernel, prior and rule. O(nm) time and memory.
    """

    def refusal(self, kernel: Kernel, prior: Prior | None, rule: Rule) -> str | None:
        return None

    def moments(
        self,
        q: Float[Array, "queries dim"],
        k: Float[Array, "keys dim"],
        v: Float[Array, "keys dim_v"],
        kernel: Kernel,
        prior: Prior | None,
        rule: Rule,
    ) -> Moments:
        scores = kernel.pairwise(q, k)
        if prior is not None:
            log_prior = prior.pairwise(jnp.arange(q.shape[0]), jnp.arange(k.shape[0]))
            # a forbidden pair is -inf whatever its kernel says, a NaN there included
            scores = jnp.where(jnp.isneginf(log_prior), -jnp.inf, scores + log_prior)
        moments = Moments.of(rule.log_weights(scores), v)
        log_sink = rule.log_sink()
        if log_sink is None:
            return moments
        log_sink = log_sink.astype(moments.total.dtype)
        return moments.merge(Moments.of_sink(log_sink, *moments.total.shape))
