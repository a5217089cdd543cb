"""Row counts rounded up, so that data sets of similar size share one compiled program.

XLA compiles a program for each shape. Rows are therefore padded to the next size of a short list,
by copies of the last row that carry no weight.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from .host_arrays import is_concrete, put_like

MAX_PADDED_ROWS = 2**13  # above, a fit takes many times as long as its compilation


def bucket_size(rows: int) -> int:
    """Returns the least listed size that holds this many rows; `rows` itself above 8192.

    ```python
    >>> from attnkernel._core.row_buckets import bucket_size
    >>> [bucket_size(n) for n in (1, 16, 17, 205, 774, 9000)]
    [8, 16, 24, 208, 800, 9000]

    ```
    """
    if not 0 < rows <= MAX_PADDED_ROWS:
        return rows
    min_step = 8  # rows, between the sizes of up to 256 rows
    steps_per_octave = 16  # above: at most 1/16 more rows, 1/8 more pairs
    step = max(min_step, 2 ** (rows.bit_length() - 1) // steps_per_octave)
    return -(-rows // step) * step


def pad_rows(
    x: Array, y: Array, weights: Array | None, *others: Array, axis: int = 0
) -> tuple[Array, Array, Array | None, *tuple[Array, ...]]:
    """Returns inputs, labels and weights, padded by rows of weight 0, and other arrays, each with
    its last row repeated. For arrays of one device: on the host, which compiles nothing.

    Without weights, the given rows have the weight True and the others False. `axis`: that of the
    rows of all arrays but the weights, whose last axis it is.
    """
    n, padded_weights = x.shape[axis], weights
    if 0 < n <= MAX_PADDED_ROWS:
        given = np.ones(n, bool) if weights is None else np.asarray(weights)
        padded_weights = np.zeros((*given.shape[:-1], bucket_size(n)), given.dtype)
        padded_weights[..., :n] = given
    more_x, more_y, *more = [_repeat_last_row(array, axis) for array in (x, y, *others)]
    return put_like(x, (more_x, more_y, padded_weights, *more))  # each call takes 30 µs


def _repeat_last_row(array: Array, axis: int) -> Array | np.ndarray:
    """Returns the array with its last row along an axis repeated up to the `bucket_size`."""
    n = array.shape[axis]
    size = bucket_size(n)
    if size == n:
        return array
    return np.take(np.asarray(array), np.minimum(np.arange(size), n - 1), axis)


def cut_rows(tree: Any, rows: int) -> Any:
    """Returns the tree with the first `rows` rows of every array that has more, if they were
    padded; on the host, which compiles nothing."""
    if bucket_size(rows) == rows:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    is_padded = [leaf.ndim and len(leaf) > rows and is_concrete(leaf) for leaf in leaves]
    if any(is_padded):
        cut = [np.asarray(leaf)[:rows] for leaf, it in zip(leaves, is_padded, strict=True) if it]
        found = iter(put_like(leaves[0], cut))
        leaves = [next(found) if it else leaf for leaf, it in zip(leaves, is_padded, strict=True)]
    return jax.tree.unflatten(structure, leaves)
