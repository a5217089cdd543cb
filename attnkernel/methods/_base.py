"""A method is a way to evaluate the sum. All methods give the same function.

Some methods also give moments about each query, with bounds on their errors. Moments with
small bounds count as certified.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._core.tracing import is_symbolic
from ..kernels import Kernel
from ..priors import PairMask, Prior, pair_mask_of
from ..rules import Rule
from ._softmax_state import SoftmaxState, materialise_before_shift

# Sizes from which one way to evaluate a sum is faster than another, and sizes of blocks. No size
# changes a result beyond rounding. Figures are of a CPU with 2 cores, float32.

# Dense up to here: 4 MB of scores. Gradient of n² pairs in one dimension, Dense against Blockwise:
# n = 1024 0.9 against 1.3 ms, 2048 14 against 8 ms, 4096 86 against 29 ms.
MAX_DENSE_PAIRS = 2**20

# Rows of a block of queries or of keys. T = 4096, 8 heads x 64, no mask: 238 ms in blocks of 1024,
# 269 ms of 512, 348 ms of 256.
MAX_BLOCK_ROWS = 1024


class WeightedPowerMeans(NamedTuple):
    r"""Weighted means about each query, of powers and of their products with values.

    $$ E_{ia} = \frac{\sum_j w_{ij}\, u_{ij}^a}{\sum_j w_{ij}}, \qquad
       E^v_{ia} = \frac{\sum_j w_{ij}\, u_{ij}^a\, v_j}{\sum_j w_{ij}}, \qquad
       u_{ij} = \frac{k_j - q_i}{s} $$

    - `log_mass`: $\log \sum_j w_{ij}$, shape (queries,).
    - `means`: shape (queries, degree + 1, 1 + dim_v): $E_{ia}$, then $E^v_{ia}$ of each column.
    - `error`: shape (queries, degree + 1), without derivatives. The error of $E^v_{ia}$ is at most
      `error[i, a]` + `error[i, 0]` $|E^v_{ia}|$, that of $E_{ia}$ likewise; infinite where there is
      no bound.
    - `tol`: the relative error that counts as certified.

    ```python
    with jax.enable_x64(True):
        x = jnp.linspace(0.0, 1.0, 50)[:, None]
        parts = ak.Gaussian(0.3), None, ak.Softmax()
        found = ak.methods.Fourier().moments(x, x, x, parts, degree=1, scale=jnp.array(1.0))
        assert found.means.shape == (50, 2, 2) and jnp.all(found.error < 1e-9)
    ```
    """

    log_mass: Float[Array, " queries"]
    means: Float[Array, "queries degrees width"]
    error: Float[Array, "queries degrees"]
    tol: float

    @property
    def bounds(self) -> Float[Array, "queries degrees width"]:
        """The bound on the error of each of the means."""
        return self.error[:, :, None] + self.error[:, :1, None] * abs(self.means)


class Standardised(NamedTuple):
    r"""Standardised values z = (v − c) / h of the keys that a mask allows.

    - `z`: shape (keys, dim_v), 0 for a hidden key.
    - `centre`, `unit`: the mean c and the standard deviation h of each column; h is 1 if that is 0.
    - `typical`: the geometric mean g of the nonzero |z| of each column; 0 for a constant column.

    c, h and g have no derivatives.
    """

    z: Float[Array, "keys dim_v"]
    centre: Float[Array, " dim_v"]
    unit: Float[Array, " dim_v"]
    typical: Float[Array, " dim_v"]

    @classmethod
    def of(cls, v: Float[Array, "keys dim_v"], mask: PairMask) -> "Standardised":
        """Standardises the values of the keys where `mask.allowed` is true; others are not read.

        If `mask.allowed` is None, all keys count. Other factors of the mask are ignored.
        """
        hidden = jnp.zeros((1, 1), bool) if mask.allowed is None else ~mask.allowed[:, None]
        number = len(v) if mask.allowed is None else jnp.maximum(jnp.sum(mask.allowed), 1)
        constant = jax.lax.stop_gradient(jnp.where(hidden, 0.0, v))
        centre = jnp.sum(constant, axis=0) / number
        spread = jnp.where(hidden, 0.0, constant - centre[None, :])
        largest = jnp.max(jnp.abs(spread), axis=0, initial=0.0)
        largest = jnp.where(largest > 0, largest, 1.0)  # squares of what is left do not overflow
        mean_square = jnp.sum((spread / largest[None, :]) ** 2, axis=0) / number
        unit = jnp.where(mean_square > 0, largest * jnp.sqrt(mean_square), 1.0)
        z = jnp.where(hidden, 0.0, jnp.where(hidden, 0.0, v) - centre[None, :]) / unit[None, :]
        differs = spread != 0
        logs = jnp.log(jnp.where(differs, jnp.abs(spread), 1.0))
        count = jnp.sum(differs, axis=0)
        typical = jnp.exp(jnp.sum(logs, axis=0) / jnp.maximum(1, count)) / unit
        # a typical value below 1e-30 of the unit is far below rounding
        typical = jnp.where(count > 0, jnp.maximum(typical, 1e-30), 0.0)
        return cls(z, centre, unit, typical)

    def error_scale(self, z: Float[Array, "queries dim_v"]) -> Float[Array, "queries dim_v"]:
        r"""Returns the magnitude to which the error of a prediction c + h z is relative.

        In units of h it is $\max(\min(|z|, |z + c / h|),\, g / 1000)$; infinite for a constant
        column, which is c. An error is accepted up to a tolerance times this magnitude.
        """
        zero, typical = -(self.centre / self.unit)[None, :], self.typical[None, :]
        error = jnp.maximum(jnp.minimum(jnp.abs(z), jnp.abs(z - zero)), 1e-3 * typical)
        return jnp.where(typical > 0, error, jnp.inf)


Queries = Float[Array, "queries dim"]
Keys = Float[Array, "keys dim"]
Values = Float[Array, "keys dim_v"]
Parts = tuple[Kernel, Prior | None, Rule]


class Task(NamedTuple):
    """A sum to evaluate: the kernel, prior and rule, and the sizes and dtype of the arrays.

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

    To add a method, write `softmax_state`, and `unsupported_reason` if it rejects some tasks. The
    rest has defaults.

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
        """An equivalent prior that holds results shared by the whole batch, computed once.

        Default: the prior itself.
        """
        return prior

    @property
    def has_moments(self) -> bool:
        """Whether it implements `moments`. If not, local polynomials attend to augmented values."""
        return type(self).moments is not Method.moments

    def moments(
        self, q: Queries, k: Keys, v: Values, parts: Parts, degree: int, scale: Float[Array, ""]
    ) -> WeightedPowerMeans:
        """Returns the moments about each query up to `degree`, with bounds on their errors.

        Optional: raises `NotImplementedError` by default.

        **Arguments:** `v`: of root mean square near 1, 0 for a key that the prior hides. `parts`:
        kernel, prior and rule. `scale`: s in `WeightedPowerMeans`, constant. Only for tasks of this
        `degree` that `unsupported_reason` does not refuse.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        """Returns the state of each query over all keys that the prior allows, the rule's sink
        included, in the dtype of the inputs.

        There is at least one query and one key.
        """


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
    """Returns why a method that supports only some masks rejects this prior, or None.

    `masks`: the masks that it takes, in words. `factors`: the factors of a `PairMask` that it
    supports besides `allowed`, such as "is_causal".
    """
    got = pair_mask_of(prior).reason_beyond(*factors)
    return None if got is None else f"it takes no prior, or masks such as {masks}; got {got}"


def apply_prior(
    scores: Float[Array, "queries keys"],
    prior: Prior | None,
    i: Int[Array, " queries"],
    j: Int[Array, " keys"],
) -> Float[Array, "queries keys"]:
    """Returns log K / τ + log π; -inf for a forbidden pair, even if its score is NaN.

    Callers materialise the result before they subtract a shift; a prior never gets a score of
    +inf.

    `scores`: log K / τ. `i`, `j`: the positions of the queries and of the keys.
    """
    if prior is None:
        return scores
    return prior.add_to_scores(materialise_before_shift(scores), i, j)
