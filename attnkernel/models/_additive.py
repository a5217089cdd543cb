r"""Additive regression: a sum of kernel regressions, each of one column.

The equations of backfitting, solved by matrices of n × n numbers.

With r the residuals and $\tilde S_j$ the centred smoothers, $(I - \tilde S_j) m_j = \tilde S_j r$.
Order 1 reproduces a line $x_j$, so that the left side is singular: the projection $x_j p_j^\top$
on it is added, and $x_j b_j$ with the unknown $b_j = p_j^\top m_j$ to the right.

Inverses of matrices by Gauss–Jordan elimination of blocks, that is by matrix products.

A step with the pivot block $P = A_{kk}^{-1}$ replaces the rows k by $P A_{k\cdot}$, the columns k
by $-A_{\cdot k} P$ and the rest by $A - A_{\cdot k} P A_{k\cdot}$, in $2 n^3$ operations in all
(Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, 14.4). Rows are not exchanged,
which is stable where the symmetric part of A is positive, as that of $I - S$ is nearly for a
smoother S. Where the residual shows that the result is not accurate, LAPACK computes it.

LAPACK's own threads wait for each other: where other processes use the cores, two of them factorise
400 rows in 0.3 s, one alone in 1.5 ms. XLA's matrix products share its threads with all else: the
inverse takes 6 ms there.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .._core.arrays import AnyArray, is_concrete, precise_matmul as matmul
from .._core.rows import Inputs, NewInputs, Predictions, Rows
from .._core.validation import as_integer, require_instance
from ..attention import attention_weights, jit_if_pure
from ..kernels import Kernel, category_counts, periods, shortest_way
from ..priors import Prior
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
        """The product of all kernels, each on its own column. Reports print it."""
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

        Their sum plus the mean of the labels, weighted by `weights`, is the prediction.

        **Raises:** `ValueError` for labels of shape (n, out), and as a prediction.
        """
        q, rows = self.read(x_new, x, y, weights)
        if not rows.has_one_label:
            raise ValueError(f"Components are of one label per row; y has shape {np.shape(y)}.")
        self.check_inputs(q, rows.x)
        found = jit_if_pure(AdditiveRegression.component_weights, (self,), q, rows)
        return matmul(found, rows.labels - jnp.mean(rows.y)).T

    def hat_rows(self, q: NewInputs | None, rows: Rows) -> Float[Array, "m n"]:
        """$L_j(x)$ at queries q, from checked data; 0 where a column has no row in reach.

        At the rows (`q=None`) it is $I - R$, where R maps labels to residuals.
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
            fitted = matmul(curve, solved.residuals)
            partial = solved.residuals + fitted + line[:, None] * slope[None, :]
            at = weights_of_column(kernel, is_line, q, k, weights)
            return matmul(at - mean[None, :], partial)

        columns = q.T, k.T, solved.curves, solved.lines, solved.means, solved.slopes
        return over_columns(column, self.kernels, have_lines, *columns)

    def support_at(self, q: NewInputs, rows: Rows, prior: Prior | None = None) -> DataSupport:
        """Returns the `DataSupport` of predictions: `empty` where a column has no row in reach.

        `deficient` and `extrapolates` are False.
        """
        return jax.tree.map(lambda of: jnp.any(of, axis=0), self.column_support(q, rows, prior))

    def column_support(self, q: NewInputs, rows: Rows, prior: Prior | None = None) -> DataSupport:
        """Returns the `DataSupport` of each curve, of shape (dim, m): `empty` where no row is in
        reach of the query along that column.

        `deficient` and `extrapolates` are False, also where a line is reduced to a mean.
        """
        prior = with_weights(prior, rows)

        def column(kernel: Kernel, _: bool, q: Array, k: Array) -> DataSupport:
            mean, k = KernelRegression(kernel), k[:, None]
            return support_of(mean.polynomials(q[:, None], k, k[:, :0], prior))

        return over_columns(column, self.kernels, self._have_lines(), q.T, rows.x.T)

    def component(self, column: int | Int[Array, ""]) -> "AdditiveComponent":
        r"""The curve $\hat m_j$ of a column."""
        return AdditiveComponent(self, column)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """Returns {column: number of its categories} for the columns that hold codes.

        None: the number is not known. Raises `ValueError` unless there are `dim` kernels.
        """
        self._require_columns(dim)
        found = {j: category_counts(kernel, 1) for j, kernel in enumerate(self.kernels)}
        return {j: counts[0] for j, counts in found.items() if counts}

    @property
    def can_pad_rows(self) -> bool:  # type: ignore[override]
        """Whether rows with False in `weights` are ignored: where every kernel `is_pairwise`."""
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
        """Raises `ValueError` for more than 3000 rows, or unless each column has a kernel.

        Outside `jit` it also raises if columns of order 1, periodic ones aside, are linear
        combinations of each other.
        """
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
    column: int | Int[Array, ""]  # an array, so that one program serves all columns

    def __call__(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Predictions:
        """The curve at new inputs; arguments as for the model, but no prior."""
        return self.estimate(x_new, Rows.read(x, y, weights)).value

    def estimate(self, x_new: ArrayLike | None, rows: Rows) -> WeightsEstimate:
        """The curve, its variances and its support.

        `loo_residuals` and `loo_empty` of the result raise `TypeError`: a curve takes no prior.
        """
        q = self.model.queries_at(x_new, rows)
        self.model.check_inputs(q, rows.x)
        weights = self.model.component_weights(q, rows)[self.column]
        out = matmul(weights, rows.y - jnp.mean(rows.y, axis=0, keepdims=True))
        support = jax.tree.map(lambda of: of[self.column], self.model.column_support(q, rows))
        return WeightsEstimate(self, rows, rows.shaped(out), support, weights)


BLOCK_ROWS = 32


@jax.custom_jvp
def inverse(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    r"""Returns $A^{-1}$, with $\mathrm{d} A^{-1} = -A^{-1}\, \mathrm{d}A\, A^{-1}$."""
    n = len(matrix)
    more = -n % BLOCK_ROWS
    padded = jnp.pad(matrix, (0, more)) + jnp.diag(jnp.arange(n + more) >= n).astype(matrix.dtype)
    found = _eliminate(padded, BLOCK_ROWS)[:n, :n]
    # A X u = u for vectors u of random signs; both products round in proportion to |X u|
    probes = 4
    signs = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (n, probes)), matrix.dtype)
    solved = matmul(found, signs)
    error = jnp.max(jnp.abs(matmul(matrix, solved) - signs))
    rounding = n * jnp.finfo(matrix.dtype).eps * (1.0 + jnp.max(jnp.abs(solved)))
    is_accurate = error <= 10.0 * rounding
    return jax.lax.cond(is_accurate, lambda: found, lambda: jnp.linalg.inv(matrix))


@inverse.defjvp
def _inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    found = inverse(*primals)
    return found, -matmul(matmul(found, tangents[0]), found)


def _eliminate(matrix: Float[Array, "n n"], block: int) -> Float[Array, "n n"]:
    """Returns the inverse of a matrix by steps of `block` rows, which divide n."""

    def step(k: Int[Array, ""], a: Array) -> Array:
        at = k * block
        rows = jax.lax.dynamic_slice_in_dim(a, at, block, axis=0)
        columns = jax.lax.dynamic_slice_in_dim(a, at, block, axis=1)
        pivot = jax.lax.dynamic_slice_in_dim(rows, at, block, axis=1)
        pivot = 1.0 / pivot if block == 1 else _eliminate(pivot, 1)
        rows = jax.lax.dynamic_update_slice_in_dim(matmul(pivot, rows), pivot, at, axis=1)
        a = jax.lax.dynamic_update_slice_in_dim(a, jnp.zeros_like(columns), at, axis=1)
        a = a - matmul(columns, rows)
        return jax.lax.dynamic_update_slice_in_dim(a, rows, at, axis=0)

    return jax.lax.fori_loop(0, len(matrix) // block, step, matrix)


class Backfitting(NamedTuple):
    """The solution for any labels: curves $m_j = A_j r + g_j b_j$ at the rows.

    `residuals` and `slopes` are matrices: they map labels to the residuals r and to the slopes b.
    """

    curves: Float[Array, "dim n n"]  # A_j
    lines: Float[Array, "dim n"]  # g_j
    means: Float[Array, "dim n"]  # the mean of the rows of each S_j, weighted as the data
    residuals: Float[Array, "n n"]  # r = residuals @ y
    slopes: Float[Array, "dim n"]  # b = slopes @ y


def solve_backfitting(
    kernels: tuple[Kernel, ...],
    has_line: tuple[bool, ...],
    k: Float[Array, "n dim"],
    weights: Float[Array, " n"],
) -> Backfitting:
    """Returns the solution of the backfitting equations; `has_line`: which columns have order 1.

    `kernels`: one for each column of the inputs k; `weights`: those of the rows.
    """
    n, dtype = len(k), k.dtype
    share = weights / jnp.sum(weights)
    # rows that no kernel connects, as of categories with bandwidth 0, have the eigenvalue 1
    shrink = 1.0 - jnp.finfo(dtype).eps ** 0.7

    def column(kernel: Kernel, is_line: bool, x: Array) -> tuple[Array, ...]:
        plain = weights_of_column(kernel, is_line, x, x, weights)
        mean = matmul(share, plain)
        x = shortest_way(x - x[:1], periods(kernel, 1)[0])
        x = x - jnp.sum(share * x)
        # lines around a circle are reproduced where all rows lie on one half of it
        error = jnp.max(jnp.abs(matmul(plain, x) - x))
        is_reproduced = is_line & (error <= jnp.finfo(dtype).eps ** 0.5 * jnp.max(jnp.abs(x)))
        x = jnp.where(is_reproduced, x, 0.0)
        square = jnp.sum(share * x**2)
        line = share * x / jnp.where(square > 0, square, 1.0)
        eye, rank_one = jnp.eye(n, dtype=dtype), x[:, None] * line[None, :]
        found = inverse(eye - shrink * (plain - mean[None, :]) + rank_one)
        along = matmul(found, x)
        # (I - S + x p')⁻¹ S = (I - S + x p')⁻¹ (I + x p') - I
        return found + along[:, None] * line[None, :] - eye, along, mean, line

    curves, lines, means, projections = over_columns(column, kernels, has_line, k.T)
    residuals, slopes = _solve_for_residuals(curves, lines, projections, share)
    return Backfitting(curves, lines, means, residuals, slopes)


def over_columns(
    function: Callable[..., Any],
    kernels: tuple[Kernel, ...],
    has_line: tuple[bool, ...],
    *arrays: Float[Array, "dim ..."],
) -> Any:
    """Returns `function(kernel, is_line, *entries)` of all columns, stacked along axis 0.

    `entries`: the entry of each array for the column, along its first axis.
    Columns with kernels of one structure are a loop, whose body is compiled once.
    """
    alike: dict[Any, list[int]] = {}
    for j, (kernel, is_line) in enumerate(zip(kernels, has_line, strict=True)):
        leaves, structure = jax.tree.flatten(kernel)
        kinds = tuple(
            (leaf.shape, leaf.dtype) if isinstance(leaf, Array) else leaf for leaf in leaves
        )
        alike.setdefault((structure, kinds, is_line), []).append(j)
    found: list[Any] = [None] * len(kernels)
    for (_, _, is_line), columns in alike.items():
        if len(columns) == 1:
            (j,) = columns
            found[j] = function(kernels[j], is_line, *(array[j] for array in arrays))
            continue
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(kernels[j] for j in columns))
        parts = [array[jnp.asarray(columns)] for array in arrays]
        each = lambda of, is_line=is_line: function(of[0], is_line, *of[1:])  # noqa: E731
        all_of_them = jax.lax.map(each, (stacked, *parts))
        for place, j in enumerate(columns):
            found[j] = jax.tree.map(lambda leaf, place=place: leaf[place], all_of_them)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def weights_of_column(
    kernel: Kernel,
    is_line: bool,
    q: Float[Array, " m"],
    k: Float[Array, " n"],
    weights: Float[Array, " n"],
) -> Float[Array, "m n"]:
    """Returns the weights of labels in a local mean, or in a local line, of one column.

    A line is reduced to a mean where the inputs in reach are equal to rounding.
    """
    q, k = q[:, None], k[:, None]
    prior = with_weights(None, Rows(k, k, weights))
    share = attention_weights(q, k, kernel=kernel, prior=prior)
    if not is_line:
        return share
    away = shortest_way((k - k[:1]).T - (q - k[:1]), periods(kernel, 1)[0])  # (m, n)
    middle = jnp.sum(share * away, axis=1, keepdims=True)
    square = jnp.sum(share * (away - middle) ** 2, axis=1, keepdims=True)
    is_known = square > jnp.finfo(k.dtype).eps * (jnp.max(k) - jnp.min(k)) ** 2
    slope = jnp.where(is_known, -middle / jnp.where(is_known, square, 1.0), 0.0)
    return share * (1.0 + slope * (away - middle))


def _solve_for_residuals(
    curves: Float[Array, "dim n n"],
    lines: Float[Array, "dim n"],
    projections: Float[Array, "dim n"],
    share: Float[Array, " n"],
) -> tuple[Float[Array, "n n"], Float[Array, "dim n"]]:
    """Returns the matrices that map labels to residuals r and to coefficients b of lines.

    $r + \\sum_j m_j = y - \\bar y$ and $b_j = p_j^\\top m_j$, where $m_j = A_j r + g_j b_j$;
    `curves`: $A_j$; `lines`: $g_j$; `projections`: $p_j$; `share`: weights of rows, of sum 1.
    """
    n, dtype = len(share), share.dtype
    top = jnp.concatenate([jnp.eye(n, dtype=dtype) + jnp.sum(curves, axis=0), lines.T], axis=1)
    rows = jnp.squeeze(matmul(projections[:, None, :], curves), axis=1)
    own = jnp.diag(1.0 - jnp.sum(projections * lines, axis=1))
    found = inverse(jnp.concatenate([top, jnp.concatenate([-rows, own], axis=1)]))[:, :n]
    found = found - jnp.sum(found, axis=1, keepdims=True) * share[None, :]
    return found[:n], found[n:]
