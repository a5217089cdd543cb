"""Local polynomial regression as an Equinox module: attention from new inputs to labelled ones."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array
from ..attention import Auto, as_order, attention_weights
from ..kernels import Kernel
from ..local import LocalFit
from ..methods import Blockwise, Dense, Method
from ..priors import Prior
from ..rules import Rule, Softmax
from ._data import read_data, require_parts, with_weights
from ._derivative import Derivative
from ._empty import OnEmpty, fill_empty, known_policy
from ._local_regression import support_of
from ._local_smoother import LocalSmoother, sum_weights
from ._prediction import predict
from ._smoother import DataSupport


class KernelRegression(LocalSmoother):
    r"""Local polynomial regression; order 0 is the mean of labels, weighted by a kernel.

    $$ \hat f(x) = \hat\beta_0, \qquad \hat\beta = \arg\min_\beta \sum_j
       K(x, x_j)\, \pi(i, j)\, \Big( y_j - \sum_{|a| \le p} \beta_a (x_j - x)^a \Big)^2 $$

    Order p = 0 is the estimator of Nadaraya and Watson: attention with queries x, keys x_j and
    values y_j. Order 1, local linear, has no first-order bias at boundaries and in uneven designs.
    The data are arguments of the call, not part of the module: a fit changes the kernel.

    **Arguments:**

    - `kernel`: log K, for example `Gaussian(0.3)`. `fit` fits its lengthscale.
    - `order`: p, 0 (default), 1 or 2. Directions that the labels with weight do not determine are
      dropped (rank-deficient design), as where there are fewer rows than terms; `local_fit` tells
      where. The polynomial uses the columns that are quantities, not `Kernel.category_counts`.
    - `rule`: scores to weights. Default: softmax, exactly normalised.
    - `method`: how sums are evaluated. Default: `Auto()`.
    - `on_empty`: the prediction at a query to which no label has weight: `"nan"` (default),
      `"nearest"` (the label of the nearest input that the query may see), `"mean"` (the mean of
      the labels that it may see, by their weights and biases) or `"raise"` (an error, inside `jit`
      too). Where it may see no label at all, `"nearest"` and `"mean"` are NaN. Never a silent 0.

    **Raises:** `ValueError` for another order or an unknown policy.

    **Source:** Nadaraya, *On estimating regression* (1964); Watson, *Smooth regression analysis*
    (1964); Fan and Gijbels, *Local polynomial modelling and its applications* (1996).

    ```python
    x = np.linspace(0.0, 1.0, 50)
    model = ak.KernelRegression(ak.Gaussian(0.1), order=1)
    print(model(np.array([0.25, 0.5]), x, np.sin(6 * x)))
    ```
    """

    kernel: Kernel
    rule: Rule
    method: Method
    order: int = eqx.field(static=True)
    on_empty: OnEmpty = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        *,
        order: int = 0,
        rule: Rule = Softmax(),
        method: Method = Auto(),
        on_empty: OnEmpty = "nan",
    ):
        require_parts(kernel, rule, method)
        self.kernel = kernel
        self.order = as_order(order)
        self.rule = rule
        self.method = method
        self.on_empty = known_policy(on_empty)

    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        """Predictions at new inputs from labelled ones.

        **Arguments:**

        - `x_new`: shape (m, dim) or (m,); `x`: shape (n, dim) or (n,).
        - `y`: labels, shape (n,) or (n, out).
        - `prior`: which labels each prediction may see, for example `ak.priors.ExcludeSelf()` for
          predictions at x itself. Default: all.
        - `weights`: of each row, shape (n,), from 0, in proportion to the inverse variance of its
          label, $1/\\sigma_i^2$. Rows with weight 0 are ignored. Default: 1.

        **Returns:** shape (m,) or (m, out), in the dtype of `x_new`.

        **Raises:** `ValueError` if shapes do not fit together, or a weight is negative.
        """
        return predict(self, x_new, x, y, prior, weights)

    def local_fit(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> LocalFit:
        """The local polynomials at new inputs: coefficients, slopes included, and their condition.

        Arguments as for the call. Where no label has weight, coefficients are 0.
        """
        q, k, v = read_data(x_new, x, y, weights, self.kernel)
        return self.polynomials(q, k, v, with_weights(prior, weights, k))

    def effective_weights(
        self, x_new: ArrayLike, x: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "m n"]:
        """$L_j(x)$ at new inputs; 0 where no label has weight."""
        q, k, _ = read_data(x_new, x, x, weights, self.kernel, "x")
        prior = with_weights(None, weights, k)
        if self.order == 0:
            return attention_weights(q, k, kernel=self.kernel, prior=prior, rule=self.rule)
        return self.fitted(q, k, jnp.eye(k.shape[0], dtype=k.dtype), prior)[0]

    def fitted_and_leverage(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> tuple[Float[Array, "n"] | Float[Array, "n out"], Float[Array, " n"]]:
        r"""Predictions at the labelled inputs, and the diagonal of the hat matrix.

        $$ \hat y = L y, \qquad L_{ii} = \frac{w_{ii}}{\sum_j w_{ij}}\, \big(S_i^{-1}\big)_{11} $$
        """
        _, k, v = read_data(x, x, y, weights, self.kernel)
        prior = with_weights(None, weights, k)
        out, local = self.fitted(k, k, v, prior)
        return (out[:, 0] if np.ndim(y) == 1 else out), self.leverage(k, local, prior)

    def prediction_variance(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        variance: ArrayLike,
        *,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        r"""The variance of predictions, $\sum_j L_j(x)^2 \sigma_j^2$, of independent labels.

        **Arguments:** `variance`: $\sigma_j^2$ of each label, shape (n,) or (n, out), in squared
        units of y; the rest as for the call. With `variance` 1, the squared norm of the weights.
        """
        q, k, v = read_data(x_new, x, variance, weights, self.kernel, "variance")
        prior = with_weights(None, weights, k)
        self.require_softmax()
        out = self.sum_of_squares(q, k, v, self.polynomials(q, k, v[:, :0], prior), prior)
        return out[:, 0] if np.ndim(variance) == 1 else out

    def predict_with_variance(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        variance: ArrayLike,
        *,
        weights: ArrayLike | None = None,
    ) -> tuple[Array, Array, DataSupport]:
        """Predictions, `prediction_variance` and `data_support`, from the same polynomials."""
        q, k, v = read_data(x_new, x, y, weights, self.kernel)
        _, _, variances = read_data(x_new, x, variance, weights, self.kernel, "variance")
        prior = with_weights(None, weights, k)
        self.require_softmax()
        if (rows := self.dense_weights(q, k, v, prior)) is not None:
            out, squares, support = sum_weights(rows, v, variances)
        else:
            out, local = self.fitted(q, k, v, prior)
            squares = self.sum_of_squares(q, k, variances, local, prior)
            support = support_of(local)
        out = fill_empty(out, support.empty, q, k, v, prior, self.on_empty).astype(q.dtype)
        squares = squares[:, 0] if np.ndim(variance) == 1 else squares
        return (out[:, 0] if np.ndim(y) == 1 else out), squares, support

    def fitted_with_variance(
        self, x: ArrayLike, y: ArrayLike, variance: ArrayLike, *, weights: ArrayLike | None = None
    ) -> tuple[Array, Float[Array, " n"], Array, DataSupport]:
        """`fitted_and_leverage`, `prediction_variance` and `data_support` at x, from the same
        polynomials."""
        _, k, v = read_data(x, x, y, weights, self.kernel)
        _, _, variances = read_data(x, x, variance, weights, self.kernel, "variance")
        prior = with_weights(None, weights, k)
        self.require_softmax()
        if (rows := self.dense_weights(k, k, v, prior)) is not None:
            out, squares, support = sum_weights(rows, v, variances)
            leverage = jnp.diagonal(rows)
        else:
            out, local = self.fitted(k, k, v, prior)
            squares = self.sum_of_squares(k, k, variances, local, prior)
            leverage, support = self.leverage(k, local, prior), support_of(local)
        squares = squares[:, 0] if np.ndim(variance) == 1 else squares
        return (out[:, 0] if np.ndim(y) == 1 else out), leverage, squares, support

    def predict_with_support(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> tuple[Array, DataSupport]:
        """Predictions and `data_support`, from the same polynomials."""
        q, k, v = read_data(x_new, x, y, weights, self.kernel)
        prior = with_weights(prior, weights, k)
        out, local = self.fitted(q, k, v, prior)
        out = self.filled(out, local, q, k, v, prior)
        return (out[:, 0] if np.ndim(y) == 1 else out), support_of(local)

    def left_out_residuals(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "n"] | Float[Array, "n out"]:
        r"""$(y_i - \hat f(x_i)) / (1 - L_{ii})$, each label less its prediction from all others."""
        fitted, leverage = self.fitted_and_leverage(x, y, weights=weights)
        left = jnp.maximum(1.0 - leverage, jnp.finfo(leverage.dtype).eps ** 0.5)
        return (as_real_array("y", y) - fitted) / (left if fitted.ndim == 1 else left[:, None])

    def data_support(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> DataSupport:
        """How well the data determine the local polynomial at each new input."""
        q, k, v = read_data(x_new, x, x, weights, self.kernel, "x")
        return support_of(self.polynomials(q, k, v[:, :0], with_weights(prior, weights, k)))

    @property
    def has_nonnegative_weights(self) -> bool:
        """Whether the order is 0."""
        return self.order == 0

    def derivative(self, derivative: int | Sequence[int]) -> Derivative:
        """The derivative of this order along each column of x."""
        return Derivative(self, derivative)

    def local_mean(self, factor: ArrayLike) -> "KernelRegression":
        """The regression of order 0 with `factor` times the lengthscale."""
        return KernelRegression(self.kernel.rescaled(factor), rule=self.rule)

    @property
    def can_pad_rows(self) -> bool:
        """Whether the kernel is pairwise, and the method one that takes any mask."""
        return super().can_pad_rows and isinstance(self.method, Auto | Dense | Blockwise)
