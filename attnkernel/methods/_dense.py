"""The readable reference: all scores at once, in O(queries × keys) memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._core.arrays import as_precision
from .._core.parameters import described
from ..kernels import Kernel
from ..priors import Prior
from ..rules import Rule, entmax_threshold
from ._base import Keys, Method, Parts, Queries, Task, Values, apply_prior, batch_size_within_memory
from ._softmax_state import SoftmaxState, materialise_before_shift


class Dense(Method):
    r"""Forms the matrix of scores, then its state.

    $$ s_{ij} = \log K(q_i, k_j) + \log \pi(i, j) $$

    Takes any kernel, prior and rule. O(nm) time and memory.

    **Arguments:** `precision`: of the products of weights and values on accelerators, a
    `jax.lax.Precision` or its name: "default", the fastest, "high" or "highest". Default None:
    "highest". That of queries and keys is `precision` of `ak.DotProduct`.

    **Raises:** `ValueError` if `precision` is another.

    ```python
    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    assert ak.attend(x, x, x, kernel=ak.Gaussian(0.3), method=ak.methods.Dense()).shape == (5, 1)
    ```
    """

    precision: str | None = eqx.field(static=True)
    __pdoc__ = described

    def __init__(self, *, precision: str | jax.lax.Precision | None = None):
        self.precision = as_precision("precision", precision)

    def batch_size(self, task: Task) -> int | None:
        """How many members have at most 2²⁴ pairs together, at least 1; None for symbolic sizes."""
        return batch_size_within_memory(task)

    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        i, j = jnp.arange(q.shape[0]), jnp.arange(k.shape[0])
        state = self.state_of_block(q, k, v, (kernel, prior, rule), i, j)
        return state.with_sink(rule.log_sink())

    def state_of_block(
        self,
        q: Queries,
        k: Keys,
        v: Values,
        parts: Parts,
        i: Int[Array, " queries"],
        j: Int[Array, " keys"],
    ) -> SoftmaxState:
        """The state of queries and keys at the positions i and j, without the sink of the rule."""
        log_weights, threshold = log_weights_of_block(q, k, *parts, i, j)
        return SoftmaxState.from_log_weights(log_weights, v, self.precision).shifted(threshold)


def dense_weights(
    q: Queries, k: Keys, kernel: Kernel, prior: Prior | None, rule: Rule
) -> Float[Array, "queries keys"]:
    """Returns the normalised weights of all pairs.

    A row sums to 1, to less with a sink, and to 0 if the query sees no key.

    ```python
    >>> x = jnp.array([[0.0], [1.0]])
    >>> weights = ak.methods.dense_weights(x, x, ak.Laplace(1.0), ak.Causal(), ak.Softmax())
    >>> np.asarray(weights).round(3)
    array([[1.   , 0.   ],
           [0.269, 0.731]], dtype=float32)

    ```
    """
    i, j = jnp.arange(q.shape[0]), jnp.arange(k.shape[0])
    log_weights, _ = log_weights_of_block(q, k, kernel, prior, rule, i, j)
    state = SoftmaxState.from_log_weights(log_weights, jnp.zeros((k.shape[0], 0), q.dtype))
    log_mass = state.with_sink(rule.log_sink()).log_mass[:, None]
    log_weights, some = materialise_before_shift(log_weights), ~jnp.isneginf(log_weights)
    # the exponential comes last: XLA computes it once, and a selection anew for each use
    return jnp.exp(jnp.where(some, log_weights - jnp.where(some, log_mass, 0.0), -jnp.inf))


def log_weights_of_block(
    q: Queries, k: Keys, kernel: Kernel, prior: Prior | None, rule: Rule, i: Array, j: Array
) -> tuple[Float[Array, "queries keys"], Float[Array, " queries"] | None]:
    """Returns the log-weights before normalisation of queries and keys at the positions i and j,
    and the threshold of each query.

    The threshold is that of entmax, whose log-weights depend on it; None for any other rule.
    Callers materialise log-weights before they subtract a shift.
    """
    scores, threshold = apply_prior(rule.scaled_scores(kernel.pairwise(q, k)), prior, i, j), None
    if rule.entmax_exponent is not None:
        scores = materialise_before_shift(scores)
        threshold = entmax_threshold(scores, rule.entmax_exponent)
    return rule.log_weights(scores, threshold), threshold
