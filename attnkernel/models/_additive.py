"""Additive regression: a sum of kernel regressions, each of one column."""

import functools
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import AnyArray, is_concrete, precise_matmul
from .._core.rows import Inputs, NewInputs, Predictions, Rows
from .._core.validation import as_integer, require_instance
from ..attention import jit_if_pure
from ..kernels import Kernel, category_counts, periods
from ..priors import Prior
from ._backfitting import over_columns, solve_backfitting, weights_of_column
from ._linear_smoother import DataSupport, DenseSmoother, WeightsEstimate
from ._local_regression import support_of
from ._regression import KernelRegression
from ._smoother import with_bounds_of, with_weights


class AdditiveRegression(DenseSmoother):
    r"""A sum of curves, one for each column, in place of a surface in all columns at once.

    $$ \hat f(x) = \bar y + \sum_{j=1}^{d} \hat m_j(x_j), \qquad
       \hat m_j = (I - \tfrac1n 1 1^\top)\, S_j \Big( y - \bar y - \sum_{k \ne j} \hat m_k \Big) $$

    $S_j$ is the hat matrix of a `KernelRegression` of column j, of order 0 or 1. The equations are
    those of backfitting, the limit of its iterations; here they are solved directly, in O(d n³)
    time and O(d n²) memory, for up to 3000 rows. Each $\hat m_j$ has the mean 0 over the rows, so
    that the sum is identified. In two and more dimensions an additive fit has a smaller variance
    than a fit in all columns, and it cannot follow interactions.

    The fit is linear in the labels: `ak.AICc` (default) or `ak.GCV` chooses the lengthscales, and
    `ak.degrees_of_freedom`, `ak.summarise` and `ak.bands(fit, x_new, corrected=False,
    noise="constant")` work, the last with `component=j` for the curve of a column. Leave-one-out
    would need a fit for each row, and is refused.

    **Arguments:**

    - `kernels`: one for each column, of points of one dimension, such as
      `[ak.Gaussian(0.3), ak.kernels.LiRacine(0.1)]`.
    - `order`: of the local polynomials of quantities, 0 or 1 (default). That of categories is 0.

    **Raises:** `ValueError` for another order, no kernel, or columns that are linear combinations
    of each other, with order 1.

    **Source:** Buja, Hastie and Tibshirani, *Linear smoothers and additive models* (1989); Opsomer
    and Ruppert, *Fitting a bivariate additive model by local polynomial regression* (1997).

    ```python
    x = np.random.default_rng(0).uniform(size=(60, 2))
    y = np.sin(6 * x[:, 0]) + x[:, 1] ** 2
    model = ak.AdditiveRegression([ak.Gaussian(0.1), ak.Gaussian(0.2)])
    print(model.components(x[:3], x, y))
    ```
    """

    default_objective: ClassVar[str] = "aicc"
    kernels: tuple[Kernel, ...]
    order: int = eqx.field(static=True)

    def __init__(self, kernels: Sequence[Kernel], *, order: int = 1):
        if not isinstance(kernels, Sequence) or isinstance(kernels, str) or not kernels:
            raise ValueError(
                f"kernels must be a list with a kernel for each column, such as "
                f"[ak.Gaussian(0.3), ak.Gaussian(0.3)]; got {kernels!r}."
            )
        for kernel in kernels:
            require_instance("kernels", kernel, Kernel, "[ak.Gaussian(0.3), ak.Gaussian(0.3)]")
        self.kernels = tuple(kernels)
        self.order = as_integer("order", order, 0)
        if self.order > 1:
            raise ValueError(f"order must be 0 or 1 in an additive fit; got {order}.")

    @property
    def kernel(self) -> Kernel:
        """The product of all kernels, each of its column: of names for reports."""
        parts = [kernel.on(column) for column, kernel in enumerate(self.kernels)]
        return functools.reduce(operator.mul, parts)

    @property
    def description(self) -> str:
        """`additive, local constant` or `additive, local linear`."""
        return f"additive, {('local constant', 'local linear')[self.order]}"

    def components(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "m dim"]:
        r"""The curves $\hat m_j(x_j)$ at new inputs, for labels of shape (n,).

        Their sum and the mean of the labels are the prediction.
        """
        q, rows = self.read(x_new, x, y, weights)
        if not rows.has_one_label:
            raise ValueError(f"Components are of one label per row; y has shape {np.shape(y)}.")
        self.check_inputs(q, rows.x)
        found = jit_if_pure(AdditiveRegression.component_weights, (self,), q, rows)
        return precise_matmul(found, rows.labels - jnp.mean(rows.y)).T

    def hat_rows(self, q: NewInputs | None, rows: Rows) -> Float[Array, "m n"]:
        """$L_j(x)$ at queries q, from checked data; 0 where no label has weight.

        At the rows it is $I - R$, of the matrix R from labels to residuals.
        """
        k, weights = rows.x, rows.row_weights(rows.x.dtype)
        if q is None:
            residuals = solve_backfitting(self.kernels, self._have_lines(), k, weights).residuals
            return jnp.eye(len(k), dtype=k.dtype) - residuals
        found = jnp.sum(self.component_weights(q, rows), axis=0)
        empty = self.support_at(q, rows).empty
        return jnp.where(empty[:, None], 0.0, found + (weights / jnp.sum(weights))[None, :])

    def component_weights(self, q: NewInputs, rows: Rows) -> Float[Array, "dim m n"]:
        r"""$L_{ji}(x_j)$ of curves $\hat m_j(x_j) = \sum_i L_{ji}(x_j)\, y_i$; checked data."""
        have_lines, k, weights = self._have_lines(), rows.x, rows.row_weights(rows.x.dtype)
        solved = solve_backfitting(self.kernels, have_lines, k, weights)

        def column(kernel: Kernel, is_line: bool, *of_column: Array) -> Array:
            q, k, curve, line, mean, slope = of_column
            fitted = precise_matmul(curve, solved.residuals)
            partial = solved.residuals + fitted + line[:, None] * slope[None, :]
            at = weights_of_column(kernel, is_line, q, k, weights)
            return precise_matmul(at - mean[None, :], partial)

        columns = q.T, k.T, solved.curves, solved.lines, solved.means, solved.slopes
        return over_columns(column, self.kernels, have_lines, *columns)

    def support_at(self, q: NewInputs, rows: Rows, prior: Prior | None = None) -> DataSupport:
        """Whether a row is in reach along each column; as `column_support` of all curves."""
        found = [self.column_support(j, q, rows, prior) for j in range(len(self.kernels))]
        return DataSupport(*(functools.reduce(operator.or_, of) for of in zip(*found, strict=True)))

    def column_support(
        self, column: int, q: NewInputs, rows: Rows, prior: Prior | None = None
    ) -> DataSupport:
        """Whether a row is in reach of each query along a column: `empty` where none is.

        `deficient` and `extrapolates` are False, also where a line is reduced to a mean.
        """
        own, k = slice(column, column + 1), rows.x
        mean = KernelRegression(self.kernels[column])
        return support_of(
            mean.polynomials(q[:, own], k[:, own], k[:, :0], with_weights(prior, rows))
        )

    def component(self, column: int) -> "AdditiveComponent":
        r"""The curve $\hat m_j$ of a column."""
        return AdditiveComponent(self, column)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The number of categories of each column that holds their codes, None if not known.

        `ValueError` unless there is a kernel for each of `dim` columns.
        """
        self._require_columns(dim)
        found = {j: category_counts(kernel, 1) for j, kernel in enumerate(self.kernels)}
        return {j: counts[0] for j, counts in found.items() if counts}

    @property
    def can_pad_rows(self) -> bool:
        """Whether all kernels are pairwise."""
        return all(kernel.is_pairwise for kernel in self.kernels)

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """The box for a fit, as two models: that of each kernel for its column."""
        self._require_columns(x.shape[1])
        boxes = [
            kernel.search_box(x[:, j : j + 1], weights) for j, kernel in enumerate(self.kernels)
        ]
        lower, upper = zip(*boxes, strict=True)
        return with_bounds_of("kernels", self, (lower, upper))

    def _require_columns(self, dim: int) -> None:
        """Raises `ValueError` unless there are as many columns as kernels."""
        if dim != len(self.kernels):
            raise ValueError(
                f"This AdditiveRegression has {len(self.kernels)} kernels, one for each column; x "
                f"has {dim} columns."
            )

    def check_inputs(self, q: NewInputs, k: Float[Array, "n dim"]) -> None:
        self._require_columns(q.shape[1])
        super().check_inputs(q, k)
        pairs = enumerate(zip(self._have_lines(), self.kernels, strict=True))
        lines = [j for j, (is_line, of) in pairs if is_line and periods(of, 1)[0] is None]
        if len(lines) > 1 and is_concrete(k):
            columns = np.asarray(k, float)[:, lines]
            columns = columns - columns.mean(axis=0)
            size = np.max(np.abs(columns), axis=0)
            if np.linalg.matrix_rank(columns / np.where(size > 0, size, 1.0)) < np.sum(size > 0):
                raise ValueError(
                    "Columns of x are linear combinations of each other, so that the slopes of "
                    "their curves are not identified. Leave one of them out, or take order=0."
                )

    def _have_lines(self) -> tuple[bool, ...]:
        """Returns whether the fit of each column is of order 1."""
        return tuple(self.order == 1 and not category_counts(each, 1) for each in self.kernels)


class AdditiveComponent(eqx.Module):
    r"""The curve of one column, $\hat m_j(x_j) = \sum_i L_{ji}(x_j)\, y_i$, $\sum_i L_{ji} = 0$.

    **Arguments:** `model`: an `AdditiveRegression`. `column`: j. Inputs have all columns, of which
    the curve reads its own.
    """

    model: AdditiveRegression
    column: int = eqx.field(static=True)

    def __call__(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Predictions:
        """The curve at new inputs; arguments as for the model."""
        return self.estimate(x_new, Rows.read(x, y, weights)).value

    def estimate(self, x_new: ArrayLike | None, rows: Rows) -> WeightsEstimate:
        """The curve, its variances and its support."""
        q = self.model.queries_at(x_new, rows)
        self.model.check_inputs(q, rows.x)
        weights = self.model.component_weights(q, rows)[self.column]
        out = precise_matmul(weights, rows.y - jnp.mean(rows.y, axis=0, keepdims=True))
        support = self.model.column_support(self.column, q, rows)
        return WeightsEstimate(self, rows, rows.shaped(out), support, weights)
