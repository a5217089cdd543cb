r"""Rows of the same input as one row: the mean of their labels, with the sum of their weights.

$$ W_u = \sum_{i : x_i = x_u} w_i, \qquad \bar y_u = \frac1{W_u} \sum_{i : x_i = x_u} w_i\, y_i $$

A linear smoother of the few is that of the many. A row is then left out together with its copies,
so that a weight of 2 is the same as a row given twice. No JAX here: the number of rows changes.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Rows(NamedTuple):
    """Distinct inputs, sorted, and what each given row with weight has of its own."""

    x: Float[np.ndarray, "n dim"]
    y: Float[np.ndarray, "n"] | Float[np.ndarray, "n out"]
    weights: Float[np.ndarray, " n"] | None  # None: all the same
    of: Int[np.ndarray, " given"]  # the distinct input of each given row
    share: Float[np.ndarray, " given"]  # of its weight in that of its input
    labels: Float[np.ndarray, "given"] | Float[np.ndarray, "given out"]

    def variance_of_means(
        self, variance: Float[np.ndarray, "given out"]
    ) -> Float[np.ndarray, "n out"]:
        r"""Of each $\bar y_u$: $\sum_i (w_i / W_u)^2 \sigma_i^2$, of independent labels."""
        return _sums(self.share[:, None] ** 2 * variance, self.of)


def distinct(
    x: Float[np.ndarray, "rows dim"],
    y: Float[np.ndarray, "rows"] | Float[np.ndarray, "rows out"],
    weights: Float[np.ndarray, " rows"] | None,
) -> Rows:
    """The distinct inputs of rows; those of weight 0 are no rows.

    **Raises:** `ValueError` if a weight is negative or not finite, or all are 0.
    """
    if weights is None:
        weights = np.ones(len(x))
    if not np.all(np.isfinite(weights) & (weights >= 0)) or not np.any(weights):
        raise ValueError(
            f"sample_weight must be finite, none below 0 and not all 0; it goes from "
            f"{weights.min()} to {weights.max()}."
        )
    order = np.lexsort(x.T[::-1])
    order = order[weights[order] > 0]
    x, y, weights = x[order], y[order], weights[order]
    is_new = np.append(True, np.any(x[1:] != x[:-1], axis=1))
    of = np.cumsum(is_new) - 1
    total = _sums(weights, of)
    share = weights / total[of]
    # the first label and what the others add to it: the mean of equal labels is that label
    first = y[is_new]
    each = share if y.ndim == 1 else share[:, None]
    mean = first + _sums(each * (y - first[of]), of)
    equal = np.all(total == total[0])
    return Rows(x[is_new], mean, None if equal else total, of, share, y)


def _sums(values: np.ndarray, of: Int[np.ndarray, " given"]) -> np.ndarray:
    """The sum of the values of each group; groups are side by side."""
    starts = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
    return np.add.reduceat(values, starts, axis=0)
