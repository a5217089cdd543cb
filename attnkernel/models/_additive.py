"""Additive regression: a sum of kernel regressions, each of one column."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_points
from .._core.host_arrays import AnyArray, is_concrete
from .._core.regression_data import as_weights
from .._core.validation import as_integer, require_instance
from ..attention import jit_if_pure
from ..kernels import Kernel
from ..priors import Prior
from ._additive_component import AdditiveComponent
from ._backfitting import over_columns, solve_backfitting, weights_of_column
from ._data import read_data, with_bounds_of
from ._dense_smoother import DenseSmoother
from ._regression import KernelRegression
from ._smoother import DataSupport


class AdditiveRegression(DenseSmoother):
    r"""A sum of curves, one for each column, in place of a surface in all columns at once.

    $$ \hat f(x) = \bar y + \sum_{j=1}^{d} \hat m_j(x_j), \qquad
       \hat m_j = (I - \tfrac1n 1 1^\top)\, S_j \Big( y - \bar y - \sum_{k \ne j} \hat m_k \Big) $$

    $S_j$ is the hat matrix of a `KernelRegression` of column j, of order 0 or 1. The equations are
    those of backfitting, the limit of its iterations; here they are solved directly, in O(d n³)
    time and O(d n²) memory, for up to 3000 rows. Each $\hat m_j$ has the mean 0 over the rows, so
    that the sum is identified. In two and more dimensions an additive fit has a smaller variance
    than a fit in all columns, and it cannot follow interactions.

    The fit is linear in the labels: `ak.AICc` and `ak.GCV` choose the lengthscales, and
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
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "m dim"]:
        r"""The curves $\hat m_j(x_j)$ at new inputs, for labels of shape (n,).

        Their sum and the mean of the labels are the prediction.
        """
        _, _, v = read_data(x_new, x, y, weights)
        if np.ndim(y) != 1:
            raise ValueError(f"Components are of one label per row; y has shape {np.shape(y)}.")
        rows = self.component_weights(x_new, x, weights=weights)
        return jnp.matmul(rows, v[:, 0] - jnp.mean(v), precision="highest").T

    def component_weights(
        self, x_new: ArrayLike, x: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "dim m n"]:
        r"""The weight of each label in each curve: $\hat m_j(x_j) = \sum_i L_{ji}(x_j)\, y_i$.

        With the variance σ² of labels, that of a curve is $\sigma^2 \sum_i L_{ji}(x_j)^2$.
        """
        q, k = as_points("x_new", x_new), as_points("x", x)
        self._check_inputs(q, k)
        of_rows = None if weights is None else as_weights(weights, len(k))
        return jit_if_pure(_component_rows, (self, of_rows), q, k)

    def hat_rows(
        self, q: Float[Array, "m dim"], k: Float[Array, "n dim"], weights: Float[Array, " n"]
    ) -> Float[Array, "m n"]:
        """$L_j(x)$ at queries q, from checked data; 0 where no label has weight."""
        rows = jnp.sum(self._components(q, k, weights), axis=0)
        empty = self.data_support(q, k, weights=weights).empty
        return jnp.where(empty[:, None], 0.0, rows + (weights / jnp.sum(weights))[None, :])

    def fitted_and_leverage(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> tuple[Float[Array, "n"] | Float[Array, "n out"], Float[Array, " n"]]:
        """Predictions at the labelled inputs, and the diagonal of L, from the residuals alone."""
        _, k, v = read_data(x, x, y, weights)
        self._check_inputs(k, k)
        of_rows = None if weights is None else as_weights(weights, len(k))
        out, leverage = jit_if_pure(_fit_rows, (self, of_rows), k, v)
        return (out[:, 0] if np.ndim(y) == 1 else out), leverage

    def data_support(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> DataSupport:
        """How well the data determine all curves at each new input."""
        found = [
            self.column_support(j, x_new, x, prior=prior, weights=weights)
            for j in range(len(self.kernels))
        ]
        return DataSupport(*(functools.reduce(operator.or_, of) for of in zip(*found, strict=True)))

    def column_support(
        self,
        column: int,
        x_new: ArrayLike,
        x: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> DataSupport:
        """How well the data determine the curve of a column at each new input."""
        own = slice(column, column + 1)
        q, k = as_points("x_new", x_new)[:, own], as_points("x", x)[:, own]
        mean = KernelRegression(self.kernels[column])
        return mean.data_support(q, k, prior=prior, weights=weights)

    def component(self, column: int) -> Any:
        r"""The curve $\hat m_j$ of a column."""
        return AdditiveComponent(self, column)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The columns of x that hold codes of categories."""
        found = {j: kernel.category_counts(1) for j, kernel in enumerate(self.kernels)}
        return {j: counts[0] for j, counts in found.items() if counts}

    @property
    def can_pad_rows(self) -> bool:
        """Whether all kernels are pairwise."""
        return all(kernel.is_pairwise for kernel in self.kernels)

    def search_box(
        self, x: Float[AnyArray, "n dim"], weights: AnyArray | None = None
    ) -> tuple[Any, Any]:
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

    def _check_inputs(self, q: Float[Array, "m dim"], k: Float[Array, "n dim"]) -> None:
        self._require_columns(k.shape[1])
        self._require_columns(q.shape[1])
        super()._check_inputs(q, k)
        lines = list(set(range(k.shape[1])) - set(self.category_counts(k.shape[1])))
        if self.order == 1 and len(lines) > 1 and is_concrete(k):
            columns = np.asarray(k, float)[:, lines]
            columns = columns - columns.mean(axis=0)
            size = np.max(np.abs(columns), axis=0)
            if np.linalg.matrix_rank(columns / np.where(size > 0, size, 1.0)) < np.sum(size > 0):
                raise ValueError(
                    "Columns of x are linear combinations of each other, so that the slopes of "
                    "their curves are not identified. Leave one of them out, or take order=0."
                )

    def _components(
        self, q: Float[Array, "m dim"], k: Float[Array, "n dim"], weights: Float[Array, " n"]
    ) -> Float[Array, "dim m n"]:
        """Returns the weights of labels in each curve at queries, from checked data."""
        have_lines = self._have_lines()
        solved = solve_backfitting(self.kernels, have_lines, k, weights)

        def column(
            kernel: Kernel,
            is_line: bool,
            q: Array,
            k: Array,
            curve: Array,
            line: Array,
            mean: Array,
            slope: Array,
        ) -> Array:
            fitted = jnp.matmul(curve, solved.residuals, precision="highest")
            partial = solved.residuals + fitted + line[:, None] * slope[None, :]
            at = weights_of_column(kernel, is_line, q, k, weights)
            return jnp.matmul(at - mean[None, :], partial, precision="highest")

        columns = q.T, k.T, solved.curves, solved.lines, solved.means, solved.slopes
        return over_columns(column, self.kernels, have_lines, *columns)

    def _have_lines(self) -> tuple[bool, ...]:
        """Returns whether the fit of each column is of order 1."""
        return tuple(self.order == 1 and not each.category_counts(1) for each in self.kernels)


def _component_rows(
    model: AdditiveRegression,
    weights: Array | None,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
) -> Float[Array, "dim m n"]:
    """Returns the weights of labels in each curve; `weights`: of rows, None: 1."""
    ones = jnp.ones(len(k), k.dtype)
    return model._components(q, k, ones if weights is None else jnp.asarray(weights, k.dtype))


def _fit_rows(
    model: AdditiveRegression,
    weights: Array | None,
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Float[Array, "n out"], Float[Array, " n"]]:
    """Returns predictions and leverages at the rows, from $L = I - R$."""
    ones = jnp.ones(len(k), k.dtype)
    of_rows = ones if weights is None else jnp.asarray(weights, k.dtype)
    residual = solve_backfitting(model.kernels, model._have_lines(), k, of_rows).residuals
    centred = v - jnp.mean(v, axis=0, keepdims=True)
    return v - jnp.matmul(residual, centred, precision="highest"), 1.0 - jnp.diag(residual)
