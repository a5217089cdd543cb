r"""Linear smoothers: regressions whose predictions are linear in the labels, $\hat y = L y$.

$$ \hat f(x) = \sum_{j=1}^{n} L_j(x)\, y_j, \qquad L_{ij} = L_j(x_i), \qquad
   \operatorname{var} \hat f(x) = \sum_j L_j(x)^2\, \sigma_j^2 $$

`Estimate` holds their results at m inputs. `DenseSmoother` computes the hat matrix, for up to 3000
rows.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_points, as_real_array, precise_matmul
from .._core.rows import Labels, NewInputs, Predictions, Rows
from ..methods import Votes
from ..priors import ExcludeSelf, Prior, pair_mask_of
from ._smoother import Smoother, hide_rows, on_padded_rows


class DataSupport(NamedTuple):
    """How well the data determine predictions at m inputs: three Booleans of each.

    - `empty`: no label has weight.
    - `deficient`: the local design is rank-deficient, so that the fit is of lower order.
    - `extrapolates`: the prediction extrapolates outside the data; see `LocalFit`.

    ```python
    >>> x = np.linspace(0.0, 1.0, 5)
    >>> model, rows = ak.KernelRegression(ak.kernels.Boxcar(0.3)), ak.models.Rows.read(x, x)
    >>> model.estimate(np.array([0.5, 9.0]), rows).support.empty
    Array([False,  True], dtype=bool)

    ```
    """

    empty: Bool[Array, " m"]
    deficient: Bool[Array, " m"]
    extrapolates: Bool[Array, " m"]


class Estimate(eqx.Module):
    r"""The result of `LinearSmoother.estimate`, for m inputs and n labelled rows.

    - `value`: $\hat f(x)$, in the shape of the labels: (m,) or (m, out).
    - `support`: a `DataSupport`.
    - `weights`: $L_j(x)$, shape (m, n); 0 where no label has weight, NaN there in a derivative.
    - `votes(count)`: the largest weights and their rows, as `ak.votes`.
    - `variance_of(variance)`: $\sum_j L_j(x)^2 \sigma_j^2$ of independent labels.
    - `leverage`: $L_{ii}$, shape (n,), and `loo_residuals`: $y_i - \hat f_{-i}(x_i)$, in the shape
      of the labels. `loo_empty`: whether no other row has weight in the prediction of a row. These
      three need an estimate at the rows themselves (`x_new=None`).

    All but the first two are computed when they are asked for.

    ```python
    >>> x = np.linspace(0.0, 1.0, 5)
    >>> found = ak.KernelRegression(ak.Gaussian(0.1)).estimate(None, ak.models.Rows.read(x, x**2))
    >>> found.value.shape, found.variance_of(np.ones(5)).shape, found.leverage.shape
    ((5,), (5,), (5,))

    ```
    """

    model: Any  # a `LinearSmoother`
    rows: Rows
    value: Predictions
    support: DataSupport

    @property
    @abc.abstractmethod
    def weights(self) -> Float[Array, "m n"]:
        """$L_j(x)$; 0 where no label has weight."""

    def votes(self, count: int) -> Votes:
        """Returns the `Votes` of each input: the `count` weights farthest from 0, and their rows.

        If there are fewer rows than `count`, all are named.
        """
        return Votes.from_weights(self.weights, min(count, len(self.rows.x)))

    @property
    def leverage(self) -> Float[Array, " n"]:
        """$L_{ii}$ of each row, for an estimate at the rows; it has no unit."""
        return jnp.diagonal(self.weights)

    def variance_of(self, variance: ArrayLike) -> Predictions:
        r"""$\sum_j L_j(x)^2 \sigma_j^2$, in squared units of the labels.

        **Arguments:** `variance`: $\sigma_j^2$ of each label, shape (n,) or (n, columns). Ones
        give the squared norm of the weights.

        **Returns:** shape (m,) or (m, columns).
        """
        array = as_real_array("variance", variance)
        if array.ndim == 1:
            return self.sum_of_squares(array[:, None])[:, 0]
        return self.sum_of_squares(array)

    def sum_of_squares(self, variances: Float[Array, "n columns"]) -> Float[Array, "m columns"]:
        r"""Returns $\sum_j L_j(x)^2 \sigma_j^2$ for each column of variances.

        Override it where there is a formula without the weights.
        """
        return precise_matmul(self.weights**2, variances)

    @property
    def loo_residuals(self) -> Labels:
        """Each label less its prediction from all others; the prior of the estimate is not used."""
        x, y = self.rows.x, self.rows.labels
        return y - self.model(x, x, y, prior=ExcludeSelf(), **self.rows.kwargs)

    @property
    def loo_empty(self) -> Bool[Array, " n"]:
        """Whether no other row has weight in the prediction of a row.

        The prior of the estimate is not used.
        """
        return self.model.estimate(self.rows.x, self.rows, prior=ExcludeSelf()).support.empty


class WeightsEstimate(Estimate):
    """An estimate whose weights are stored."""

    matrix: Float[Array, "m n"]

    @property
    def weights(self) -> Float[Array, "m n"]:
        """The matrix that is stored."""
        return self.matrix


class LinearSmoother(Smoother):
    r"""A regression whose predictions are linear in the labels. To add one, write `__call__`.

    $$ \hat f(x) = \sum_{j=1}^{n} L_j(x)\, y_j, \qquad \hat y = L y $$

    L depends on inputs, parameters and weights of rows, and not on the labels. Criteria (`ak.GCV`,
    `ak.AICc`), `ak.bands`, `ak.conformal`, `ak.summarise` and the other functions of inference ask
    a model for the methods below. Each has a default, which predicts the
    columns of the identity in O(n²) memory; override those for which there is a formula. Those of
    `ak.models.Smoother` are inherited.

    Predictions are NaN where no label has weight, and rows of weight 0 are ignored.

    **Source:** Buja, Hastie and Tibshirani, *Linear smoothers and additive models* (1989).

    ```python
    class RidgeLine(ak.LinearSmoother):
        log_penalty: jax.Array

        def __call__(self, x_new, x, y, *, prior=None, weights=None):
            design = lambda x: jnp.stack([jnp.ones_like(x), x], axis=1)
            a = design(x[:, 0])
            gram = a.T @ a + jnp.exp(self.log_penalty) * jnp.eye(2)
            return design(x_new[:, 0]) @ jnp.linalg.solve(gram, a.T @ y)

    x = jnp.linspace(0.0, 1.0, 11)[:, None]
    print(ak.AICc()(RidgeLine(jnp.array(-3.0)), x, jnp.sin(x[:, 0])))
    ```
    """

    @property
    def has_nonnegative_weights(self) -> bool:
        """Whether no $L_j(x)$ is negative, so that a fit is a weighted mean of the labels.

        Default: False.
        """
        return False

    def estimate(
        self, x_new: ArrayLike | None, rows: Rows, *, prior: Prior | None = None
    ) -> Estimate:
        """Predictions with their weights, variances and support, from the same rows.

        Default: two calls, one of them for the columns of the identity; the flags `deficient` and
        `extrapolates` are then False. Override it if one pass over the data gives all.

        **Arguments:** `x_new`: shape (m, dim) or (m,); None: the inputs of the rows, where there
        are leverages too. `rows`: `Rows.read(x, y, weights)`. `prior`: as for the call.
        """
        at = rows.x if x_new is None else as_points("x_new", x_new)
        value = self(at, rows.x, rows.labels, prior=prior, **rows.kwargs)
        eye = jnp.eye(len(rows.x), dtype=rows.x.dtype)
        found = self(at, rows.x, eye, prior=prior, **rows.kwargs)
        empty = jnp.any(jnp.isnan(found), axis=1)
        weights = jnp.where(empty[:, None], 0.0, found)
        return WeightsEstimate(
            self,
            rows,
            value,
            DataSupport(empty, jnp.zeros_like(empty), jnp.zeros_like(empty)),
            weights,
        )

    def derivative(self, derivative: int | Sequence[int]) -> Any:
        """Returns a model of the derivative, as `Derivative` is for a `KernelRegression`.

        It has the methods `estimate` and `check_columns` of `Derivative`. None, the default: the
        model has no derivative, and `ak.bands` refuses `derivative=`.

        **Arguments:** `derivative`: its order along each column of x.
        """
        return None

    def component(self, column: int | Int[Array, ""]) -> Any:
        """Returns a model of the curve of one column, if the regression is a sum of such curves.

        It has the method `estimate`. None, the default: the model is no such sum, and `ak.bands`
        refuses `component=`.

        **Arguments:** `column`: its number, from 0 to the number of columns less one.
        """
        return None

    def variance_smoothers(self, rows: Rows) -> "Sequence[LinearSmoother]":
        """Returns local means, one of which `ak.noise_variance` chooses for squared residuals.

        They have the same pytree structure, and differ in their arrays. Their weights are
        non-negative and sum to 1; predictions are NaN where no label has weight. Default: an empty
        tuple, with which `ak.bands` refuses `noise="local"`.
        """
        return ()


class DenseEstimate(WeightsEstimate):
    """The estimate of a `DenseSmoother`.

    `loo_residuals` raises `ValueError`: the model cannot leave out each row by itself.
    """

    @property
    def loo_empty(self) -> Bool[Array, " n"]:
        """Whether no other row has weight in the prediction of a row."""
        return self.model.support_at(self.rows.x, self.rows, ExcludeSelf()).empty


MAX_DENSE_ROWS = 3000  # 72 MB for each matrix of n × n numbers


class DenseSmoother(LinearSmoother):
    """A linear smoother whose weights $L_j(x)$ come from matrices of n × n numbers."""

    @abc.abstractmethod
    def hat_rows(self, q: NewInputs | None, rows: Rows) -> Float[Array, "m n"]:
        """$L_j(x)$ at queries q, from checked data; 0 where no label has weight.

        `q=None`: at the inputs of the rows, where it is the hat matrix.
        """

    @abc.abstractmethod
    def support_at(self, q: NewInputs, rows: Rows, prior: Prior | None = None) -> DataSupport:
        """How well the data determine predictions at queries, from checked data."""

    def predict(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Predictions:
        """Predictions from checked data.

        **Raises:** `ValueError` for more than 3000 rows, and for a prior that does not hide the
        same rows from every query, such as that of `ak.LeaveOneOut`.
        """
        return on_padded_rows(_predict, self, None, q, self._rows_seen(q, rows, prior))

    def estimate(
        self, x_new: ArrayLike | None, rows: Rows, *, prior: Prior | None = None
    ) -> DenseEstimate:
        """Predictions with their weights, variances and support, from the same hat matrix.

        **Raises:** `ValueError` as `predict`.
        """
        q = self.queries_at(x_new, rows)
        rows = self._rows_seen(q, rows, prior)
        weights = self.hat_rows(None if x_new is None else q, rows)
        return DenseEstimate(self, rows, _apply(weights, rows), self.support_at(q, rows), weights)

    def check_inputs(self, q: NewInputs, k: Float[Array, "n dim"]) -> None:
        """Raises `ValueError` for more than 3000 rows k."""
        if len(k) > MAX_DENSE_ROWS:
            raise ValueError(
                f"{type(self).__name__} solves for matrices of n × n numbers, and takes up to "
                f"{MAX_DENSE_ROWS} rows; got {len(k)}. Fit it to a random part of the rows."
            )

    def _rows_seen(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Rows:
        """Returns the rows, with weight 0 where the prior hides them from every query.

        Raises `ValueError` for invalid inputs, and for a prior that does not hide the same
        rows from every query.
        """
        self.check_inputs(q, rows.x)
        if prior is None:
            return rows
        prior.check(len(q), len(rows.x))
        mask = pair_mask_of(prior)
        if mask.reason_beyond() is not None:
            raise ValueError(
                f"{type(self).__name__} takes a prior only if it hides the same rows from every "
                f"query, as that of ak.HoldOut; got {prior!r}. Leave-one-out needs a fit for each "
                f"row: choose lengthscales by objective=ak.AICc() or ak.GCV()."
            )
        return hide_rows(rows, mask)


def _predict(model: DenseSmoother, prior: None, q: NewInputs, rows: Rows) -> Predictions:
    """Returns predictions from checked data."""
    return _apply(model.hat_rows(q, rows), rows)


def _apply(weights: Float[Array, "m n"], rows: Rows) -> Predictions:
    r"""Returns predictions $\bar y + L (y - \bar y)$; NaN where no label has weight."""
    centre = jnp.mean(rows.y, axis=0, keepdims=True)
    out = centre + precise_matmul(weights, rows.y - centre)
    return rows.shaped(jnp.where(jnp.any(weights != 0, axis=1, keepdims=True), out, jnp.nan))


@eqx.filter_jit
def votes_of_predictions(model: LinearSmoother, at: Array, rows: Rows, count: int) -> Votes:
    """Returns the `count` largest weights of each prediction, and their rows, as one program."""
    return model.estimate(at, rows).votes(count)
