r"""Rows with equal inputs merged into one: the mean of their labels, the sum of their weights.

$$ W_u = \sum_{i : x_i = x_u} w_i, \qquad \bar y_u = \frac1{W_u} \sum_{i : x_i = x_u} w_i\, y_i $$

A linear smoother of the merged rows equals that of the given rows. Leave-one-out then leaves out an
input with all its rows, so that a weight of 2 equals a row given twice. The work is done in NumPy,
as the number of rows depends on the data.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class DistinctRows(NamedTuple):
    """Distinct inputs, sorted, and for each given row with weight its input, share and label."""

    x: Float[np.ndarray, "n dim"]
    y: Float[np.ndarray, "n"] | Float[np.ndarray, "n out"]
    weights: Float[np.ndarray, " n"] | None  # None: all equal
    group: Int[np.ndarray, " given"]  # index of the distinct input of each given row
    share: Float[np.ndarray, " given"]  # of the weight of its input
    labels: Float[np.ndarray, "given"] | Float[np.ndarray, "given out"]

    def variance_of_means(
        self, variance: Float[np.ndarray, "given out"]
    ) -> Float[np.ndarray, "n out"]:
        r"""Returns $\sum_i (w_i / W_u)^2 \sigma_i^2$ of each $\bar y_u$, for independent labels."""
        return _group_sums(self.share[:, None] ** 2 * variance, self.group)


def merge_duplicates(
    x: Float[np.ndarray, "rows dim"],
    y: Float[np.ndarray, "rows"] | Float[np.ndarray, "rows out"],
    weights: Float[np.ndarray, " rows"] | None,
) -> DistinctRows:
    """Returns the rows with equal inputs merged; rows with zero weight are ignored.

    **Raises:** `ValueError` if a weight is negative or not finite, or all are 0.
    """
    if weights is None:
        weights = np.ones(len(x))
    if not np.all(np.isfinite(weights) & (weights >= 0)) or not np.any(weights):
        raise ValueError(
            f"sample_weight must be finite, none negative and not all 0; got {weights.min()} to "
            f"{weights.max()}."
        )
    order = np.lexsort(x.T[::-1])
    order = order[weights[order] > 0]
    x, y, weights = x[order], y[order], weights[order]
    is_new = np.append(True, np.any(x[1:] != x[:-1], axis=1))
    group = np.cumsum(is_new) - 1
    total = _group_sums(weights, group)
    share = weights / total[group]
    # relative to the first label of a group, so that the mean of equal labels is exact
    first = y[is_new]
    column = share if y.ndim == 1 else share[:, None]
    mean = first + _group_sums(column * (y - first[group]), group)
    is_equal = np.all(total == total[0])
    return DistinctRows(x[is_new], mean, None if is_equal else total, group, share, y)


def _group_sums(values: np.ndarray, group: Int[np.ndarray, " given"]) -> np.ndarray:
    """Returns the sums of the rows of `values` in each group; `group`: sorted index of each row."""
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    return np.add.reduceat(values, starts, axis=0)
