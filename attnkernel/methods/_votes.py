"""The largest weights of each query and how many keys share its weight, without the matrix."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._core.arrays import AnyArray
from ..kernels import Kernel
from ..priors import Prior, pair_mask_of
from ..rules import Rule, Softmax
from ._base import Keys, Method, Queries, Task
from ._dense import log_weights_of_block
from ._key_ranges import STEP_PAIRS, Loop, loops_over_blocks, map_loops
from ._softmax_state import finite_shift, materialise_before_shift
from ._sorted_sums import bisect_first_false


class Votes(eqx.Module):
    r"""The largest weights of each query, and how many keys share its weight.

    **Arguments:**

    - `indices`: rows of the keys with the largest weights, the largest first, shape
      (*batch, queries, k). Among equal weights the earlier keys come first; any of them if the
      sums are by `Sorted` or `Fourier`.
    - `weights`: their weights $a_j$, of the same shape; 0 where a query sees fewer keys.
    - `effective_number`: $1 / \sum_j b_j^2$ over all keys, $b_j = a_j / \sum_l a_l$, shape
      (*batch, queries): n for n equal weights; 0 where a query sees no key.
    - `entropy`: $-\sum_j b_j \log b_j$ over all keys, in nats: log n for n equal weights.

    `ak.votes` returns them.

    ```python
    >>> found = ak.methods.Votes.from_weights(jnp.array([[0.1, 0.6, 0.3]]), 2)
    >>> found.indices.tolist(), found.share.round(2)
    ([[1, 2]], Array([0.9], dtype=float32))

    ```
    """

    indices: Int[AnyArray, "*batch queries k"]
    weights: Float[AnyArray, "*batch queries k"]
    effective_number: Float[AnyArray, "*batch queries"]
    entropy: Float[AnyArray, "*batch queries"]

    @property
    def share(self) -> Float[Array, "*batch queries"]:
        """The sum of the largest weights: the part of a prediction that comes from these keys."""
        return jnp.sum(self.weights, axis=-1)

    @classmethod
    def from_log_weights(
        cls,
        log_weights: Float[Array, "queries keys"],
        count: int,
        log_sink: Float[Array, ""] | None = None,
    ) -> "Votes":
        """Returns the votes of log-weights before normalisation.

        `count`: the number of keys to name. `log_sink`: the log-mass of a sink, which lowers
        `weights` alone.
        """
        log_weights = materialise_before_shift(log_weights)
        indices = largest(jax.lax.stop_gradient(log_weights), count)
        shift = finite_shift(jnp.max(log_weights, axis=1))[:, None]
        seen = ~jnp.isneginf(log_weights)
        gaps = jnp.where(seen, log_weights, shift) - shift
        sizes = jnp.where(seen, jnp.exp(gaps), 0.0)
        mass, squares, total_gap = (
            jnp.sum(each, axis=1) for each in (sizes, sizes**2, sizes * gaps)
        )
        is_empty = mass == 0
        mass, squares = (jnp.where(is_empty, 1.0, each) for each in (mass, squares))
        log_mass = shift + jnp.log(mass)[:, None]
        if log_sink is not None:
            log_mass = jnp.logaddexp(log_mass, log_sink.astype(log_mass.dtype))
        kept = jnp.take_along_axis(log_weights, indices, axis=1)
        has_weight = ~jnp.isneginf(kept)
        kept = jnp.where(has_weight, jnp.exp(jnp.where(has_weight, kept, log_mass) - log_mass), 0.0)
        number = jnp.where(is_empty, 0.0, mass**2 / squares)
        return cls(indices, kept, number, jnp.log(mass) - total_gap / mass)

    @classmethod
    def from_weights(cls, weights: Float[Array, "queries keys"], count: int) -> "Votes":
        """Returns the votes of weights that sum to 1, or to 0 for a query without keys.

        `count`: the number of keys to name. Weights of a local linear fit may be negative. The
        largest are then those farthest from 0, and the entropy is that of
        $|a_j| / \\sum_l |a_l|$.
        """
        size = jnp.abs(weights)
        indices = largest(jax.lax.stop_gradient(size), count)
        kept = jnp.take_along_axis(weights, indices, axis=1)
        total, squares = jnp.sum(size, axis=1), jnp.sum(weights**2, axis=1)
        is_empty = total == 0
        total, squares = (jnp.where(is_empty, 1.0, each) for each in (total, squares))
        safe = jnp.where(size > 0, size, 1.0)
        entropy = jnp.log(total) - jnp.sum(size * jnp.log(safe), axis=1) / total
        return cls(indices, kept, jnp.where(is_empty, 0.0, 1.0 / squares), entropy)


def votes_of_member(
    q: Queries, k: Keys, kernel: Kernel, prior: Prior | None, rule: Rule, count: int
) -> Votes:
    """Returns the votes of one batch element over all keys, by blocks of queries.

    `count`: the number of keys to name, at most that of all keys.
    """
    if not len(k):
        return Votes.from_weights(jnp.zeros((len(q), 0), q.dtype), 0)
    task = Task(kernel, prior, rule, len(q), len(k), q.shape[1], 0, q.dtype)
    size = max(8, STEP_PAIRS // len(k))
    loops = loops_over_blocks(task, size, len(k))
    # without a prior all keys are seen
    loops = loops or loops_over_blocks(task._replace(prior=None), size, len(k))
    assert loops is not None

    def at_least(loop: Loop) -> Loop:
        width = max(loop.width, count)
        starts = tuple(min(start, len(k) - width) for start in loop.starts)
        return loop._replace(starts=starts, width=width)

    def of_block(q: Queries, columns: list[Keys], i: Array, j: Array) -> Votes:
        log_weights, _ = log_weights_of_block(q, columns[0], kernel, prior, rule, i, j)
        found = Votes.from_log_weights(log_weights, count, rule.log_sink())
        return Votes(found.indices + j[0], found.weights, found.effective_number, found.entropy)

    return map_loops(of_block, q, [k], list(map(at_least, loops)))


def votes_on_a_line(
    q: Queries,
    k: Keys,
    kernel: Kernel,
    prior: Prior | None,
    rule: Rule,
    count: int,
    method: Method,
) -> Votes:
    r"""Returns the votes for points in one dimension, from log-masses that `method` sums.

    With $F(t) = \log \sum_j w_j^t$ the effective number is $n = e^{2 F(1) - F(2)}$, and the entropy
    $H = F(1) - F'(1)$. The weights must fall with the distance: the largest are those of the
    `count` nearest keys. 10⁵ queries and keys take 0.1 s, by all pairs 33 s.
    """
    assert isinstance(rule, Softmax)
    mask, values = pair_mask_of(prior), jnp.zeros((len(k), 1), k.dtype)

    def log_sum(power: Array) -> Float[Array, " queries"]:
        tempered = Softmax(rule.temperature / power)
        return method.softmax_state(q, k, values, kernel, prior, tempered).log_mass

    one = jnp.ones((), q.dtype)
    log_mass, mean_score = jax.jvp(log_sum, (one,), (one,))
    is_empty = jnp.isneginf(log_mass)
    total, squares, mean_score = (
        jnp.where(is_empty, 0.0, each) for each in (log_mass, log_sum(2 * one), mean_score)
    )

    shown = jnp.ones(len(k), bool) if mask.allowed is None else mask.allowed
    points = jnp.where(shown, jax.lax.stop_gradient(k[:, 0]), jnp.inf)
    order = jnp.argsort(points)  # hidden keys last
    ascending, at = points[order], jax.lax.stop_gradient(q[:, 0])
    width = min(len(k), count + mask.excludes_self)

    def is_farther(j: Array) -> Array:  # than the key after the nearest ones that begin here
        return at - ascending[j] > ascending[j + width] - at

    first = bisect_first_false(is_farther, ascending[: len(k) - width], at)

    def take_farther_end(ends: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        low, high = ends
        is_low = at - ascending[low] > ascending[high] - at
        return (low + is_low, high - ~is_low), jnp.where(is_low, low, high)

    # 10 of 10 keys by `jax.lax.top_k`: 64 ms for 10⁵ queries, so 5
    farthest_first = jax.lax.scan(take_farther_end, (first, first + width - 1), length=width)[1]
    indices, i = order[farthest_first[::-1].T], jnp.arange(len(q))
    if mask.excludes_self:
        own, places = indices == i[:, None], jnp.arange(min(count, width))[None, :]
        after_own = jnp.any(own, axis=1)[:, None] & (jnp.argmax(own, axis=1)[:, None] <= places)
        places = places + after_own
        others = jnp.take_along_axis(indices, jnp.minimum(places, width - 1), axis=1)
        indices = jnp.where(places < width, others, i[:, None])  # the own key last, of weight 0

    def of_query(q: Array, i: Array, j: Array) -> Array:
        return log_weights_of_block(q[None], k[j], kernel, prior, rule, i[None], j)[0][0]

    log_weights = materialise_before_shift(jax.vmap(of_query)(q, i, indices))
    if (sink := rule.log_sink()) is not None:
        log_mass = jnp.logaddexp(log_mass, sink.astype(log_mass.dtype))
    log_mass = jnp.where(jnp.isneginf(log_mass), 0.0, log_mass)  # of no key and no sink
    kept = jnp.exp(log_weights - log_mass[:, None])
    number = jnp.where(is_empty, 0.0, jnp.exp(2 * total - squares))
    return Votes(indices, kept, number, total - mean_score)


def largest(numbers: Float[Array, "rows columns"], count: int) -> Int[Array, "rows count"]:
    """Returns the columns of the `count` largest numbers of each row, the largest first.

    They lie in the `count` groups of columns with the largest maxima, so only those groups are
    compared in full. 32 rows of 16384 numbers take 0.2 ms, `jax.lax.top_k` of all 1.0 ms.
    """
    size = 32
    groups = -(-numbers.shape[1] // size)
    if groups <= count:
        return jax.lax.top_k(numbers, count)[1]
    padding = (0, groups * size - numbers.shape[1])
    padded = jnp.pad(numbers, ((0, 0), padding), constant_values=-jnp.inf)
    grouped = padded.reshape(-1, groups, size)
    # in ascending order, so that of equal numbers the earlier come first, as in `top_k`
    chosen = jnp.sort(jax.lax.top_k(jnp.max(grouped, axis=2), count)[1], axis=1)
    kept = jnp.take_along_axis(grouped, chosen[:, :, None], axis=1)
    place = jax.lax.top_k(kept.reshape(len(kept), -1), count)[1]
    return jnp.take_along_axis(chosen, place // size, axis=1) * size + place % size
