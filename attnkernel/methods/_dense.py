"""The readable reference: all scores at once, in O(queries × keys) memory."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._rules import Rule
from ..kernels import Kernel
from ..priors import Prior
from ._base import Method, Task, masked, within_memory
from ._moments import Moments


class Dense(Method):
    r"""Forms the matrix of scores, then its moments.

    $$ s_{ij} = \log K(q_i, k_j) + \log \pi(i, j) $$

    Takes any kernel, prior and rule. O(nm) time and memory.
    """

    loops = False

    def refusal(self, task: Task) -> str | None:
        return None

    def side_by_side(self, task: Task) -> int:
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
        i, j = jnp.arange(q.shape[0]), jnp.arange(k.shape[0])
        scores = masked(kernel.pairwise(q, k), prior, i, j)
        return Moments.of(rule.log_weights(scores), v).with_sink(rule.log_sink())
