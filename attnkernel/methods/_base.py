"""A method is a way to evaluate the sum. All methods give the same function."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._core.tracing import is_symbolic
from ..kernels import Kernel
from ..priors import Prior, key_mask_of
from ..rules import Rule
from ._certified import WeightedPowerMeans
from ._softmax_state import SoftmaxState

Queries = Float[Array, "queries dim"]
Keys = Float[Array, "keys dim"]
Values = Float[Array, "keys dim_v"]
Parts = tuple[Kernel, Prior | None, Rule]


class Task(NamedTuple):
    """What is to be summed: the parts of a score, and the sizes and dtype of the arrays.

    ```python
    task = ak.methods.Task(ak.Gaussian(0.3), None, ak.Softmax(), 5, 5, 1, 1, jnp.dtype("float32"))
    print(ak.methods.Sorted().unsupported_reason(task))
    ```
    """

    kernel: Kernel
    prior: Prior | None
    rule: Rule
    queries: int
    keys: int
    dim: int
    dim_v: int
    dtype: Any
    input_dtype: Any = None  # the dtype of the arrays before sums raise it to float32
    degree: int = 0  # of the powers of k - q in moments; 0: sums of the values alone


class Method(eqx.Module):
    """Evaluates, for every query, $\\sum_i w_i v_i$ and $\\sum_i w_i$ over all keys.

    To add one, write `softmax_state`, and `unsupported_reason` of what it does not take; the other
    methods have defaults.

    ```python
    class Halves(ak.methods.Method):
        def unsupported_reason(self, task):
            known = task.keys > 1 and task.prior is None
            return None if known else "it takes two keys or more, and no prior"

        def softmax_state(self, q, k, v, kernel, prior, rule):
            half = len(k) // 2
            dense = ak.methods.Dense()
            first = dense.softmax_state(q, k[:half], v[:half], kernel, None, rule)
            without = rule.without_sink()  # the first half has it
            return first.merge(dense.softmax_state(q, k[half:], v[half:], kernel, None, without))

    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    out = ak.attend(x, x, x, kernel=ak.Gaussian(0.3), method=Halves())
    assert jnp.allclose(out, ak.attend(x, x, x, kernel=ak.Gaussian(0.3)), atol=1e-5)
    ```
    """

    def unsupported_reason(self, task: Task) -> str | None:
        """Why this method cannot evaluate the task; None where it can. Default: it can."""
        return None

    def resolve(self, task: Task) -> "Method":
        """The method that carries out the task. Default: this one."""
        return self

    def batch_size(self, task: Task) -> int | None:
        """How many members of a batch are evaluated at a time; None: all. Default: all."""
        return None

    def precomputed_prior(self, prior: Prior | None, task: Task) -> Prior | None:
        """The same prior with what the whole batch shares computed once. Default: as it is."""
        return prior

    @property
    def has_moments(self) -> bool:
        """Whether it sums `moments` itself; local polynomials else attend to augmented values."""
        return type(self).moments is not Method.moments

    def moments(
        self, q: Queries, k: Keys, v: Values, parts: Parts, degree: int, scale: Float[Array, ""]
    ) -> WeightedPowerMeans:
        """The moments about each query up to a degree, with bounds on their errors; optional.

        **Arguments:** `v`: of root mean square near 1, 0 for a key that the prior hides. `parts`:
        kernel, prior and rule. `scale`: s in `WeightedPowerMeans`, constant. Only for tasks of this
        `degree` that `unsupported_reason` does not refuse.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        """The state of all keys that the prior shows and of the sink of the rule, for every query,
        in the dtype of the inputs; there is a query and a key."""


def batch_size_within_memory(task: Task) -> int | None:
    """Returns how many batch elements have at most 2²⁴ pairs together, 64 MB of scores; at least 1.

    A pair is one query with one key. Returns None, the whole batch, if the number of queries or
    of keys is symbolic.
    """
    if is_symbolic(task.queries, task.keys):
        return None
    # gradient of 2²⁴ pairs of 1024 members: 470 ms, in chunks of 2²² pairs 960 ms; of 2²⁶ pairs of
    # 256 members: 552 ms, at once 688 ms
    return max(1, 2**24 // max(1, task.queries * task.keys))


def mask_unsupported_reason(prior: Prior | None, masks: str, *factors: str) -> str | None:
    """Returns why a method that supports only masks of keys rejects this prior, or None.

    `masks`: what it takes, in words; `factors`: of a `KeyMask`, those which it also supports, such
    as "is_causal".
    """
    got = key_mask_of(prior).reason_beyond(*factors)
    return (
        None if got is None else f"it takes no prior, or masks of keys such as {masks}; got {got}"
    )


def apply_prior(
    scores: Float[Array, "queries keys"],
    prior: Prior | None,
    i: Int[Array, " queries"],
    j: Int[Array, " keys"],
) -> Float[Array, "queries keys"]:
    """Returns log K / τ + log π; -inf for a forbidden pair, even if its score is NaN.

    `scores`: log K / τ. `i`, `j`: the positions of the queries and of the keys.
    """
    scores = materialise_before_shift(scores)
    if prior is None:
        return scores
    return prior.add_to_scores(scores, i, j)


@jax.custom_jvp
def materialise_before_shift(scores: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the scores unchanged, but rounded to their dtype before a shift is subtracted.

    A compiler may fuse the subtraction with the product that a score ends in (an FMA). The highest
    score minus itself is then the rounding error of the score, which exceeds 1 for scores above
    1/ε.
    """
    largest = jnp.finfo(scores.dtype).max
    return jax.lax.min(scores, jnp.full_like(scores, largest))


@materialise_before_shift.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Returns `materialise_before_shift` and its tangent, which is that of the identity."""
    return materialise_before_shift(*primals), tangents[0]
