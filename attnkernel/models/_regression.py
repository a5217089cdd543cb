"""Local polynomial regression as an Equinox module: attention from new inputs to labelled ones."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, wider_dtype
from .._core.regression_data import as_weights
from ..attention import Auto, attention_weights
from ..attention._effective_kernel import apply_effective_kernel
from ..attention._local_fit import LocalFit, warn_of_extrapolation
from ..attention._local_polynomial import as_order, local_polynomial
from ..kernels import Kernel
from ..kernels._base import checked_log_pair
from ..methods import Blockwise, Dense, Method
from ..priors import Prior
from ..rules import Rule, Softmax
from ._data import read_data, require_parts, with_kernel_bounds, with_weights
from ._empty import OnEmpty, fill_empty, known_policy
from ._linear_smoother import DataSupport, LinearSmoother
from ._prediction import predict

MIN_LABELS_BY_WEIGHTS = 16  # labels of a row, from which a local polynomial sums them by weights


class KernelRegression(LinearSmoother):
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
        q, k, v = read_data(x_new, x, y, weights, self.kernel)
        weights = None if weights is None else as_weights(weights, k.shape[0])
        found = predict(self, q, k, v, prior, weights, has_one_label=np.ndim(y) == 1)
        out, deficient, extrapolates = found
        if self.order > 0:
            dtype = wider_dtype(q.dtype)
            warn_of_extrapolation(self.description, deficient, extrapolates, dtype)
        return out

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
        own = self._log_weight_of_self(k, prior)
        has_weight = own > -jnp.inf  # a row of weight 0 may have no neighbour either
        own, log_mass = (jnp.where(has_weight, log, 0.0) for log in (own, local.log_mass))
        leverage = jnp.where(has_weight, jnp.exp(own - log_mass) * local.influence[:, 0], 0.0)
        return (out[:, 0] if np.ndim(y) == 1 else out), leverage

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
        local = self.polynomials(q, k, v[:, :0], prior)
        out = apply_effective_kernel(q, k, v, local, power=2, **self._local_parts(k, prior))
        return out[:, 0] if np.ndim(variance) == 1 else out

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
        local = self.polynomials(q, k, v[:, :0], with_weights(prior, weights, k))
        return DataSupport(jnp.isneginf(local.log_mass), local.deficient, local.extrapolates)

    @property
    def description(self) -> str:
        """`local constant`, `local linear` or `local quadratic`."""
        return ("local constant", "local linear", "local quadratic")[self.order]

    @property
    def has_nonnegative_weights(self) -> bool:
        """Whether the order is 0."""
        return self.order == 0

    def bias_corrected(self, rows: ArrayLike, dim: int) -> "KernelRegression | None":
        r"""The local quadratic fit with $n^{1/(d + 4) - 1/(d + 3)}$ times the lengthscales.

        None for order 2, above which there is no higher one. See `ak.bands`.
        """
        if self.order == 2:
            return None
        n = jnp.asarray(rows, float)
        kernel = self.kernel.rescaled(n ** (1.0 / (dim + 4) - 1.0 / (dim + 3)))
        parts = {"rule": self.rule, "method": self.method, "on_empty": self.on_empty}
        return KernelRegression(kernel, order=2, **parts)

    def local_mean(self, factor: ArrayLike) -> "KernelRegression":
        """The regression of order 0 with `factor` times the lengthscale; nearest where empty."""
        return KernelRegression(self.kernel.rescaled(factor), rule=self.rule, on_empty="nearest")

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The columns of x that hold codes of categories, those of the kernel."""
        return self.kernel.category_counts(dim)

    @property
    def can_pad_rows(self) -> bool:
        """Whether the kernel is pairwise, and the method one that takes any mask."""
        return self.kernel.is_pairwise and isinstance(self.method, Auto | Dense | Blockwise)

    def search_box(
        self, x: Float[Array, "n dim"], weights: Array | None = None
    ) -> tuple["KernelRegression", "KernelRegression"]:
        """The box for a fit, as two models: the kernel's `search_box(x)`, all else free."""
        return with_kernel_bounds(self, self.kernel.search_box(x, weights))

    def fitted(
        self, q: Array, k: Array, v: Array, prior: Prior | None, wants_slopes: bool = False
    ) -> tuple[Float[Array, "m out"], LocalFit]:
        """Fits at queries, 0 where no label has weight, and their polynomials.

        The polynomials of many labels have no coefficients, unless `wants_slopes`.
        """
        if self.order == 0 or v.shape[1] < MIN_LABELS_BY_WEIGHTS or wants_slopes:
            local = self.polynomials(q, k, v, prior)
            return local.coefficients[:, 0], local
        local = self.polynomials(q, k, v[:, :0], prior)
        centre = jax.lax.stop_gradient(jnp.mean(v, axis=0, keepdims=True))
        out = centre + apply_effective_kernel(
            q, k, v - centre, local, power=1, **self._local_parts(k, prior)
        )
        return jnp.where(jnp.isneginf(local.log_mass)[:, None], 0.0, out), local

    def filled(
        self, out: Array, local: LocalFit, q: Array, k: Array, v: Array, prior: Prior | None
    ) -> Float[Array, "m out"]:
        """Fits with `on_empty` applied where no label has weight."""
        empty = jnp.isneginf(local.log_mass)
        return fill_empty(out, empty, q, k, v, prior, self.on_empty).astype(q.dtype)

    def polynomials(self, q: Array, k: Array, v: Array, prior: Prior | None) -> LocalFit:
        """The local polynomials at queries, of checked arrays."""
        return local_polynomial(q, k, v, **self._local_parts(k, prior))

    def require_softmax(self) -> None:
        """Raises `ValueError` unless weights are independent of each other up to their sum."""
        if not isinstance(self.rule, Softmax):
            raise ValueError(
                f"The hat matrix needs weights whose unnormalised values do not depend on each "
                f"other: rule=ak.Softmax(); got {self.rule!r}."
            )

    def _local_parts(self, k: Float[Array, "n dim"], prior: Prior | None) -> dict[str, Any]:
        """Returns the keyword arguments of `local_polynomial`; k: the labelled inputs."""
        parts = {"kernel": self.kernel, "prior": prior, "rule": self.rule, "method": self.method}
        return parts | {"order": self.order, "columns": self._columns_of_quantities(k)}

    def _columns_of_quantities(self, k: Float[Array, "n dim"]) -> tuple[int, ...]:
        """Returns the indices of the numeric columns, the variables of the local polynomial."""
        names = self.kernel.category_counts(k.shape[1])
        return tuple(column for column in range(k.shape[1]) if column not in names)

    def _log_weight_of_self(
        self, k: Float[Array, "n dim"], prior: Prior | None
    ) -> Float[Array, " n"]:
        """Returns $\\log w_{ii}$, the unnormalised log-weight of each row at its own input."""
        self.require_softmax()
        kernel, q, k = self.kernel.precomputed(k, k)
        own = self.rule.scaled_scores(jax.vmap(functools.partial(checked_log_pair, kernel))(q, k))
        rows = jnp.arange(own.shape[0])
        return own if prior is None else own + jax.vmap(prior.log_pair)(rows, rows)
