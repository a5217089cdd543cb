"""Cross-validation of dependent rows: folds of whole groups, and of consecutive times."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_numpy_or_none, as_real_array, is_concrete, require_finite, value_text
from .._core.pandas_frames import is_frame
from .._core.validation import as_integer, is_real_number
from ..priors import Mask
from ._validation import FoldValidation, OtherFolds


class GroupKFold(FoldValidation):
    r"""K-fold cross-validation in which the rows of one group are always in the same fold.

    $$ \mathrm{CV} = \frac1n \sum_{i=1}^{n} \big\| y_i - \hat f_{-F(g_i)}(x_i) \big\|^2 $$

    For rows whose errors are dependent within groups, such as repeated measurements of a person.
    Another row of the same group would tell about the error of a row that is left out, and the
    lengthscale would be too short. Groups are assigned as in scikit-learn's `GroupKFold`: the
    largest first, each to the fold that has the fewest rows. Rows of weight 0 are not counted.

    ```python
    data = ak.data.load("mcycle")
    milliseconds = np.round(data.x[:, 0])
    objective = ak.objectives.GroupKFold(milliseconds, folds=10)
    loss = objective(ak.KernelRegression(ak.Gaussian(3.0)), data.x, data.y)
    ```

    **Arguments:**

    - `groups`: the group of each row, shape (n,): numbers or words, in the order of the rows.
    - `folds`: k, from 2 to the number of groups; None: each group is a fold. Default 5.

    **Raises:** `ValueError` for a missing group, fewer groups than folds, or another number of
    rows.

    **Source:** Roberts et al., *Cross-validation strategies for data with temporal, spatial,
    hierarchical, or phylogenetic structure* (2017).
    """

    row_fields: ClassVar[tuple[str, ...]] = (*FoldValidation.row_fields, "groups")
    groups: Int[Array, " n"]
    count: int = eqx.field(static=True)
    folds: int | None = eqx.field(static=True)

    def __init__(self, groups: ArrayLike | Any, folds: int | None = 5, *, score: Any = None):
        codes, self.count = as_group_codes("groups", groups)
        self.weights, self.score, self.compared = None, score, None
        self.groups = jax.device_put(codes)
        self.folds = None if folds is None else as_integer("folds", folds, 2)
        least = 2 if self.folds is None else self.folds
        if self.count < least:
            raise ValueError(
                f"GroupKFold needs at least as many groups as folds, and 2; got {self.count} "
                f"groups and folds={folds}."
            )

    def mask(self, x: Float[Array, "n dim"]) -> Mask:
        if self.folds is None:
            return OtherFolds(self.groups)
        counted = self.masked_by_weight(jnp.ones(len(self.groups), x.dtype))
        sizes = jax.ops.segment_sum(counted, self.groups, self.count)
        # as scikit-learn does: of groups of one size the last comes first
        largest_first = jnp.argsort(sizes, stable=True)[::-1]

        def assign(rows: Float[Array, " folds"], group: Int[Array, ""]) -> tuple[Array, Array]:
            fold = jnp.argmin(rows)
            return rows.at[fold].add(sizes[group]), fold

        _, folds = jax.lax.scan(assign, jnp.zeros(self.folds, x.dtype), largest_first)
        fold_of_group = jnp.zeros(self.count, folds.dtype).at[largest_first].set(folds)
        return OtherFolds(fold_of_group[self.groups])


class BlockedKFold(FoldValidation):
    r"""Cross-validation by blocks of consecutive times, with rows left out on both sides of each.

    $$ \mathrm{CV} = \frac1n \sum_{i=1}^{n} \big\| y_i - \hat f_{-B(i)}(x_i) \big\|^2, \qquad
       B(i) = \{ j : t_j \in [\min_{F(i)} t - h,\ \max_{F(i)} t + h] \} $$

    For errors that are correlated over time. The rows are divided into k blocks F of consecutive
    times and nearly equal size; rows of equal times are in one block. A row is predicted from those
    further than h from its block. With `folds=None` each time is a block: for times 1, ..., n this
    is the leave-(2h+1)-out of Chu and Marron, and the h-block of Burman, Chow and Nolan. Racine's
    hv-block differs from k blocks in that its blocks overlap.

    ```python
    data = ak.data.load("mcycle")
    objective = ak.objectives.BlockedKFold(data.x[:, 0], folds=None, gap=1.0)  # 1 ms on each side
    loss = objective(ak.KernelRegression(ak.Gaussian(3.0)), data.x, data.y)
    ```

    **Arguments:**

    - `times`: of each row, shape (n,); `np.arange(n)` for rows in the order of time.
    - `folds`: k, from 2 to n, or None. Default 5.
    - `gap`: h, in the units of the times, from 0. Default 0.

    **Raises:** `ValueError` for times that are not finite, a gap that hides all rows from a block,
    more folds than rows, or another number of rows.

    **Source:** Chu and Marron, *Comparison of two bandwidth selectors with dependent errors*
    (1991); Burman, Chow and Nolan, *A cross-validatory method for dependent data* (1994); Racine,
    *Consistent cross-validatory model-selection for dependent data: hv-block cross-validation*
    (2000).
    """

    row_fields: ClassVar[tuple[str, ...]] = (*FoldValidation.row_fields, "times")
    times: Float[Array, " n"]
    folds: int | None = eqx.field(static=True)
    gap: float = eqx.field(static=True)

    def __init__(
        self, times: ArrayLike, folds: int | None = 5, gap: float | int = 0.0, *, score: Any = None
    ):
        if is_frame(times):
            raise ValueError("times must be an array in the order of the rows: times.to_numpy().")
        of_rows = as_real_array("times", times).astype(float)
        if of_rows.ndim != 1 or not len(of_rows):
            raise ValueError(f"times must have shape (n,); got {of_rows.shape}.")
        require_finite("times", of_rows[:, None])
        self.weights, self.score, self.compared = None, score, None
        self.times = of_rows
        self.folds = None if folds is None else as_integer("folds", folds, 2)
        if not is_real_number(gap) or gap < 0:
            raise ValueError(f"gap must be a number from 0, in the units of times; got {gap!r}.")
        self.gap = float(gap)
        if is_concrete(of_rows):
            ordered = np.sort(np.asarray(of_rows))
            low, high = ordered[0] + self.gap, ordered[-1] - self.gap
            blocks = np.array_split(ordered, self.folds or len(ordered))
            if any(len(block) and block[0] <= low and block[-1] >= high for block in blocks):
                raise ValueError(
                    f"gap={value_text(gap)} hides all rows from a block: the times span "
                    f"{ordered[-1] - ordered[0]:g}."
                )

    def check(self, n: int) -> None:
        super().check(n)
        if self.folds is not None and self.folds > n:
            raise ValueError(f"BlockedKFold(folds={self.folds}) needs as many rows; there are {n}.")

    def mask(self, x: Float[Array, "n dim"]) -> Mask:
        first = last = self.times
        if self.folds is not None:
            counted = self.masked_by_weight(jnp.ones(len(self.times))).astype(int)
            order = jnp.argsort(self.times)
            before = jnp.cumsum(counted[order]) - counted[order]
            rank = before[jnp.searchsorted(self.times[order], self.times)]
            size, more = jnp.divmod(jnp.sum(counted), self.folds)  # so many blocks have one more
            in_longer = rank // (size + 1)
            in_others = more + (rank - more * (size + 1)) // jnp.maximum(size, 1)
            block = jnp.where(rank < more * (size + 1), in_longer, in_others)
            low, high = (jnp.where(counted > 0, self.times, end) for end in (jnp.inf, -jnp.inf))
            first = jax.ops.segment_min(low, block, self.folds)[block]
            last = jax.ops.segment_max(high, block, self.folds)[block]
        # a row at the gap is hidden, whatever the rounding of its distance
        gap = self.gap + 4 * jnp.finfo(self.times.dtype).eps * jnp.max(jnp.abs(self.times))
        return _OutsideBlocks(self.times, first - gap, last + gap)


class _OutsideBlocks(Mask):
    """A query sees the rows whose time is before `first` or after `last`: the ends of its block,
    widened by the gap."""

    times: Float[Array, " n"]
    first: Float[Array, " n"]
    last: Float[Array, " n"]

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return (self.times[j] < self.first[i]) | (self.times[j] > self.last[i])


def as_group_codes(name: str, groups: Any) -> tuple[Int[np.ndarray, " n"], int]:
    """Returns the groups of rows as codes from 0, and the number of groups.

    `name`: the name of the argument in errors. **Raises:** `ValueError` for a frame of pandas,
    whose index cannot be matched with that of the data, for a traced array, for a missing group,
    and unless groups are one-dimensional, of numbers or words.
    """
    if is_frame(groups):
        raise ValueError(f"{name} must be an array in the order of the rows: {name}.to_numpy().")
    if isinstance(groups, jax.Array) and not is_concrete(groups):
        raise ValueError(f"{name} must be known outside jit, as their number is.")
    labels = as_numpy_or_none(groups)
    labels = np.empty((), object) if labels is None else labels
    if labels.dtype == object and labels.ndim and all(isinstance(of, str) for of in labels):
        labels = labels.astype(str)
    is_missing = np.ma.is_masked(groups) or (
        labels.dtype.kind == "f" and not np.all(np.isfinite(labels))
    )
    if labels.ndim != 1 or not len(labels) or labels.dtype.kind not in "biufUS" or is_missing:
        raise ValueError(
            f"{name} must be one number or word for each row, shape (n,), none missing; got "
            f"{value_text(groups)}."
        )
    found, codes = np.unique(labels, return_inverse=True)
    return codes.astype(np.int32), len(found)
