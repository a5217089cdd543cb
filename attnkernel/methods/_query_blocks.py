"""`Dense` for one block of queries at a time, against all keys.

It skips no block and raises no shift: its program is half as large as that of blocks of keys.
"""

import jax
from jaxtyping import Array, Float

from .._core.recompute import recomputed
from .._core.symbolic_sizes import is_at_most
from .._core.tuning import MAX_DENSE_PAIRS, MAX_KEYS_OF_SINGLE_BLOCK
from ..kernels import Kernel
from ..rules import Rule
from ._base import Task
from ._blocks import even_block_size, pad_rows
from ._dense import Dense
from ._softmax_state import SoftmaxState


def takes_all_keys(task: Task) -> bool:
    """Whether a block of queries is best summed over all keys at once, instead of in blocks.

    True up to `MAX_KEYS_OF_SINGLE_BLOCK` keys, without a prior, which may exclude blocks. False
    for a cheap kernel, since the maximum of a block would take a large share of the time.
    """
    is_small = is_at_most(task.keys, MAX_KEYS_OF_SINGLE_BLOCK)
    return is_small and task.prior is None and not (task.kernel.is_cheap and task.dim <= 12)


def softmax_state(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim_k"],
    v: Float[Array, "keys dim_v"],
    kernel: Kernel,
    rule: Rule,
    block_q: int | None,
    precision: str | None,
) -> SoftmaxState:
    """Returns the state of all keys, for every query. Derivatives recompute the blocks.

    `block_q`: the number of queries of a block; None: as many as have at most `MAX_DENSE_PAIRS`
    pairs. `precision`: as of `Dense`.
    """
    queries, dim = q.shape
    size = block_q or even_block_size(queries, MAX_DENSE_PAIRS // k.shape[0])

    @recomputed
    def of_block(q: Float[Array, "size dim"]) -> SoftmaxState:
        # twice transposed, so that their cotangents are wide: XLA on CPU is slow with tall products
        wide_k, wide_v = jax.lax.optimization_barrier((k.T, v.T))
        dense = Dense(precision=precision)
        return dense.softmax_state(q, wide_k.T, wide_v.T, kernel, None, rule)

    state = jax.lax.map(of_block, pad_rows(q, size).reshape(-(-queries // size), size, dim))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:queries], state)
