r"""Criteria of rows whose inputs repeat, from sums over the distinct inputs; exact.

With k labels of mean $\bar y_g$ at an input $x_g$, a weighted regression of the means gives the
same fit $\hat f$, and each label the leverage $L_{gg} / k$. Without one of the labels the weight of
the others at its input is k − 1. With the fit $\hat f_g$ of such weights to the means, and b the
leverage of their mean in it,

$$ \sum_{i \in g} (y_i - \hat f_{-i}(x_i))^2 = k\, (\bar y_g - \hat f_g)^2
   + \Big( 1 + \frac{b}{k - 1} \Big)^2 \sum_{i \in g} (y_i - \bar y_g)^2 $$
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import Scalar, is_on_one_device, put_like
from .._core.rows import Inputs, Labels, Rows
from ..losses import squared_error
from ..models import KernelRegression
from ..priors import Prior
from ..rules import Softmax
from ._criteria import Penalised
from ._objective import Objective, Sample
from ._validation import LeaveOneOut


class _WithoutOneLabel(Prior):
    """Query i sees its own input without one of its labels."""

    counts: Float[Array, " inputs"]

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        others = self.counts[i] - 1.0
        log = jnp.log(jnp.where(others > 0, others, 1.0) / self.counts[i])
        return jnp.where(i == j, jnp.where(others > 0, log, -jnp.inf), 0.0)


class OfDistinctInputs(Objective):
    """A criterion of rows with repeated inputs, called with the distinct inputs and the means of
    their labels."""

    of: Objective  # `LeaveOneOut` or a `Penalised`; the weights are those of this object
    counts: Float[Array, " inputs"]
    squares: Float[Array, " inputs"]  # of the labels about their mean, summed
    compared: Bool[Array, " inputs"] | None = None  # as of a `FoldValidation`
    row_fields: ClassVar[tuple[str, ...]] = ("weights", "counts", "squares", "compared")

    @property
    def can_pad_rows(self) -> bool:
        """Yes: sums are those of the rows with weight."""
        return True

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        weights = self.masked_by_weight(self.counts)
        if self.weights is not None:
            weights = weights * self.weights.astype(weights.dtype)
        rows = Rows.read(x, y, weights)
        scored = weights if self.compared is None else jnp.where(self.compared, weights, 0.0)
        share = scored / jnp.where(weights > 0, self.counts, 1.0) / jnp.sum(scored)
        if isinstance(self.of, Penalised):
            found = model.estimate(None, rows)
            sums = self.counts * squared_error(found.value, rows.labels) + self.squares
            trace, n = jnp.sum(found.leverage), jnp.sum(self.masked_by_weight(self.counts))
            return self.of.penalty(jnp.sum(share * sums), trace, n)
        found = model.estimate(x, rows, prior=_WithoutOneLabel(self.counts))
        of_one = found.leverage / jnp.maximum(self.counts - 1.0, 1.0)  # b / (k − 1)
        within = jnp.where(self.squares > 0, (1.0 + of_one) ** 2 * self.squares, 0.0)
        sums = self.counts * squared_error(found.value, rows.labels) + within
        return jnp.sum(jnp.where(share > 0, share * sums, 0.0))


def merge_equal_rows(
    keys: np.ndarray, labels: Float[np.ndarray, "n out"], weights: Float[np.ndarray, " n"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the index of the first of each set of equal rows of `keys`, in their order, and that
    of the set of each row; and of each set the total weight and the weighted mean of labels."""
    _, first, of_row = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    of_row = of_row.reshape(-1)  # of two axes in NumPy 2.0
    total, sums = np.bincount(of_row, weights), np.zeros((len(first), labels.shape[1]))
    # relative to the first label of a set, so that the mean of equal labels is exact
    np.add.at(sums, of_row, weights[:, None] * (labels - labels[first][of_row]))
    return first, of_row, total, labels[first] + sums / total[:, None]


def at_distinct_inputs(model: Any, data: Sample) -> Sample:
    """Returns the rows with repeated inputs merged, where the criterion has a formula of them and
    at most half as many inputs, and 4096, are distinct; others unchanged. Rows of different
    weights are not merged."""
    x, y, objective = data
    has_formula = isinstance(objective, Penalised) or (
        type(objective) is LeaveOneOut and objective.score in (None, squared_error)
    )
    is_smoother = type(model) is KernelRegression and isinstance(model.rule, Softmax)
    can_merge = has_formula and is_smoother and model.can_pad_rows
    if not (can_merge and is_on_one_device(model, x, y, objective.weights)):
        return data
    keys, weights = np.asarray(x), objective.weights
    if weights is not None:
        keys = np.column_stack([keys, np.asarray(weights)])
    labels = np.asarray(y, np.float64).reshape(len(keys), -1)  # many labels of a large mean
    first, of_row, counts, means = merge_equal_rows(keys, labels, np.ones(len(keys)))
    most = min(len(keys) // 2, 4096)  # beyond, a search begins on a sample of all rows
    if not 3 <= len(first) <= most:
        return data
    squares = np.bincount(of_row, np.sum((labels - means[of_row]) ** 2, axis=1))
    sums = [part.astype(y.dtype) for part in (means.reshape(-1, *y.shape[1:]), counts, squares)]
    at, means, counts, squares = put_like(x, (np.asarray(x)[first], *sums))
    weights = weights if weights is None else put_like(x, np.asarray(weights)[first])
    compared = getattr(objective, "compared", None)
    compared = compared if compared is None else put_like(x, np.asarray(compared)[first])
    merged = OfDistinctInputs(objective, counts, squares, compared, weights=weights)
    return Sample(at, means, merged)
