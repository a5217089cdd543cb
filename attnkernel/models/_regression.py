r"""Local polynomial regression as an Equinox module: attention from new inputs to labelled ones.

Its derivatives are linear in the labels too, $\widehat{\partial^a f}(x) = \sum_j D_j(x)\, y_j$ with
$\sum_j D_j(x) = 0$.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .._core.arrays import AnyArray
from .._core.hints import explained
from .._core.rows import NewInputs, Predictions, Rows
from .._core.validation import as_integer_tuple, require_instance
from ..attention import Auto, attention_weights, votes
from ..kernels import checked_log_pair, rescaled
from ..local import (
    LocalFit,
    Polynomial,
    apply_effective_kernel,
    exponents,
    factorial,
    local_polynomial,
)
from ..methods import Blockwise, Dense, Method, Votes
from ..priors import ExcludeSelf, Prior
from ..rules import Softmax
from ._linear_smoother import DataSupport, LinearSmoother
from ._local_regression import LocalEstimate, LocalRegression, support_of
from ._smoother import SmootherWrapper, between_bounds, with_weights

MIN_LABELS_BY_WEIGHTS = 16  # columns of labels; from here on fits of order 1 and 2 sum by weights


@explained
class KernelRegression(LocalRegression, LinearSmoother):
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
      where. The polynomial uses the columns that are quantities, not `ak.kernels.category_counts`.
    - `rule`: scores to weights. Default: softmax, exactly normalised.
    - `method`: how sums are evaluated. Default: `Auto()`.
    - `on_empty`: the prediction at a query to which no label has weight: `"nan"` (default),
      `"nearest"` (the mean label at the nearest input that the query may see), `"mean"` (the mean
      of the labels that it may see, by their weights and biases) or `"raise"` (an error, inside
      `jit` too). Where it may see no label at all, `"nearest"` and `"mean"` are NaN. Never a
      silent 0.

    Called with `weights`, of each row, they are in proportion to the inverse variance of its label,
    $1/\sigma_i^2$.

    **Raises:** `ValueError` for another order or an unknown policy.

    **Source:** Nadaraya, *On estimating regression* (1964); Watson, *Smooth regression analysis*
    (1964); Fan and Gijbels, *Local polynomial modelling and its applications* (1996).

    ```python
    x = np.linspace(0.0, 1.0, 50)
    model = ak.KernelRegression(ak.Gaussian(0.1), order=1)
    print(model(np.array([0.25, 0.5]), x, np.sin(6 * x)))
    ```
    """

    method: Method = eqx.field(default=Auto(), kw_only=True)

    def __check_init__(self):
        require_instance("method", self.method, Method, "ak.attention.Auto()")

    def estimate(
        self, x_new: ArrayLike | None, rows: Rows, *, prior: Prior | None = None
    ) -> "PolynomialEstimate":
        """Predictions with their variances and support, from the same polynomials.

        `on_empty` applies to new inputs alone. At the rows (`x_new=None`) the value is 0 where no
        label has weight.
        """
        q, prior = self.queries_at(x_new, rows), with_weights(prior, rows)
        out, local = self.fitted(q, rows.x, rows.y, prior)
        if x_new is not None:  # a row with weight sees itself
            out = self.filled(out, local.empty, q, rows, prior)
        return PolynomialEstimate(self, rows, rows.shaped(out), support_of(local), q, prior, local)

    def fitted(
        self, q: Array, k: Array, v: Array, prior: Prior | None
    ) -> tuple[Float[Array, "m out"], LocalFit]:
        """Returns predictions at queries, 0 where no label has weight, and the local polynomials.

        With order 1 or 2 and at least `MIN_LABELS_BY_WEIGHTS` columns of labels, predictions are
        sums by weights, and the polynomials have no coefficients.
        """
        if self.order == 0 or v.shape[1] < MIN_LABELS_BY_WEIGHTS:
            local = self.polynomials(q, k, v, prior)
            return local.coefficients[:, 0], local
        local = self.polynomials(q, k, v[:, :0], prior)
        centre = jax.lax.stop_gradient(jnp.mean(v, axis=0, keepdims=True))
        out = centre + self.sum_by_weights(q, k, v - centre, local, prior)
        return jnp.where(local.empty[:, None], 0.0, out), local

    def polynomials(
        self, q: Array, k: Array, v: Array, prior: Prior | None, term: int = 0
    ) -> LocalFit:
        """Returns the local polynomials at queries, from checked arrays.

        `term`: the index of the coefficient whose `influence` they hold. Default: 0, the value.
        """
        return local_polynomial(q, k, v, self.polynomial(k, prior), term=term)

    def polynomial(self, k: Float[AnyArray, "n dim"], prior: Prior | None) -> Polynomial:
        """Returns the `Polynomial` of the base class, with the method of this model."""
        return super().polynomial(k, prior)._replace(method=self.method)

    def sum_by_weights(
        self, q: Array, k: Array, v: Array, local: LocalFit, prior: Prior | None, **which: Any
    ) -> Float[Array, "m out"]:
        r"""Returns $\sum_j L_j(x)^p\, v_j$ at queries, from their local polynomials.

        `which`: `power`, p, and `derivative`, as in `apply_effective_kernel`.
        """
        return apply_effective_kernel(q, k, v, local, self.polynomial(k, prior), **which)

    def require_softmax(self) -> None:
        """Raises `ValueError` unless the rule is `Softmax`, of which the hat matrix is known."""
        if not isinstance(self.rule, Softmax):
            raise ValueError(
                f"The hat matrix needs weights whose unnormalised values do not depend on each "
                f"other: rule=ak.Softmax(); got {self.rule!r}."
            )

    @property
    def has_nonnegative_weights(self) -> bool:
        """Whether the order is 0."""
        return self.order == 0

    def derivative(self, derivative: int | Sequence[int]) -> "Derivative":
        """Returns the `Derivative` of this model, of the given order along each column of x."""
        return Derivative(self, derivative)

    def variance_smoothers(self, rows: Rows) -> "list[KernelRegression]":
        """Returns 14 regressions of order 0, which differ in their lengthscales.

        Six have 2, 4, ..., 64 times the lengthscale of this model. Eight lie between the ends of
        the search box: they do not depend on that lengthscale, which may be much longer.
        """
        lower, upper = self.kernel.search_box(rows.x, rows.weights)
        factors = jnp.asarray([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 1.0], rows.x.dtype)
        found = [rescaled(self.kernel, factor) for factor in factors[:-1]]
        for share in np.linspace(0.2, 0.8, 8).tolist():
            between = between_bounds(share, self.kernel, lower, upper)
            found.append(rescaled(between, factors[-1]))
        return [KernelRegression(kernel, rule=self.rule) for kernel in found]

    @property
    def can_pad_rows(self) -> bool:  # type: ignore[override]
        """Whether rows with False in `weights` are ignored, so that they may pad the data.

        The kernel must be `is_pairwise`, and the method `Auto`, `Dense` or `Blockwise`.
        """
        return super().can_pad_rows and isinstance(self.method, Auto | Dense | Blockwise)


class PolynomialEstimate(LocalEstimate):
    """The estimate of a `KernelRegression`.

    `leverage`, `variance_of` and `loo_residuals` raise `ValueError` unless the rule is `Softmax`.
    """

    @property
    def weights(self) -> Float[Array, "m n"]:
        """$L_j(x)$; 0 where no label has weight."""
        if self.model.order:
            return super().weights
        parts = {"kernel": self.model.kernel, "prior": self.prior, "rule": self.model.rule}
        return attention_weights(self.q, self.rows.x, **parts)

    def votes(self, count: int) -> Votes:
        """The `count` largest weights of each input, with their rows.

        Order 0 needs no matrix of weights.
        """
        if self.model.order:
            return super().votes(count)
        parts = {"kernel": self.model.kernel, "prior": self.prior, "rule": self.model.rule}
        return votes(self.q, self.rows.x, **parts, k_largest=count)

    @property
    def leverage(self) -> Float[Array, " n"]:
        r"""$L_{ii} = w_{ii} (S_i^{-1})_{11} / \sum_j w_{ij}$; 0 for a row of weight 0."""
        self.model.require_softmax()
        own = self._log_weight_of_self()
        has_weight = own > -jnp.inf  # a row of weight 0 may have no neighbour either
        own, log_mass = (jnp.where(has_weight, log, 0.0) for log in (own, self.local.log_mass))
        return jnp.where(has_weight, jnp.exp(own - log_mass) * self.local.influence[:, 0], 0.0)

    def sum_of_squares(self, variances: Float[Array, "n columns"]) -> Float[Array, "m columns"]:
        r"""$\sum_j L_j(x)^2 \sigma_j^2$, without the weights themselves."""
        self.model.require_softmax()
        arrays = self.q, self.rows.x, variances, self.local, self.prior
        return self.model.sum_by_weights(*arrays, power=2)

    @property
    def loo_residuals(self) -> Float[Array, "n"] | Float[Array, "n out"]:
        r"""$(y_i - \hat f(x_i)) / (1 - L_{ii})$, each label less its prediction from all others."""
        leverage = self.leverage
        left = jnp.maximum(1.0 - leverage, jnp.finfo(leverage.dtype).eps ** 0.5)
        residuals = self.rows.labels - self.value
        return residuals / (left if residuals.ndim == 1 else left[:, None])

    @property
    def loo_empty(self) -> Bool[Array, " n"]:
        """Whether no other row has weight in the prediction of a row: the same for all orders."""
        mean = dataclasses.replace(self.model, order=0)
        return mean.estimate(self.rows.x, self.rows, prior=ExcludeSelf()).support.empty

    def _log_weight_of_self(self) -> Float[Array, " n"]:
        """Returns $\\log w_{ii}$, the unnormalised log-weight of each row at its own input."""
        model, k = self.model, self.rows.x
        kernel, q, k = model.kernel.precomputed(k, k)
        own = model.rule.scaled_scores(jax.vmap(functools.partial(checked_log_pair, kernel))(q, k))
        rows = jnp.arange(len(own))
        return own if self.prior is None else own + jax.vmap(self.prior.log_pair)(rows, rows)


class Derivative(SmootherWrapper):
    r"""A partial derivative of a local polynomial regression.

    $$ \widehat{\partial^a f}(x) = a!\, \hat\beta_a \ \ (p \ge 1), \qquad
       \widehat{\partial^a f}(x) = \partial^a \sum_j L_j(x)\, y_j \ \ (p = 0), \qquad
       a! = \textstyle\prod_c a_c! $$

    $\hat\beta_a$ is the coefficient of $(x_j - x)^a$ in the local polynomial at x, and not the
    derivative of the curve $\hat f$; it is the estimate of locfit, of nprobust, and of np with
    `regtype = "ll"`. For p = 0 there is no such coefficient, and the curve of Nadaraya and Watson
    itself is differentiated, as np does.

    **Arguments:**

    - `model`: a `KernelRegression` of order p.
    - `derivative`: a, the order of the derivative along each column of x; an integer for one
      column. Its sum is 1 or 2, and at most p where p ≥ 1.

    Called as the model. Predictions are in units of y over $x^{|a|}$. They are NaN where no label
    has weight, and where the local design is rank-deficient, so that the data do not determine a
    derivative. `on_empty` of the model does not apply.

    **Raises:** `ValueError` for another model, another number of columns, an order above p, and a
    column that holds categories.

    **Source:** Fan and Gijbels, *Local polynomial modelling and its applications* (1996), 3.1;
    Hayfield and Racine, *Nonparametric econometrics: the np package* (2008).

    ```python
    x = jnp.linspace(0.0, 1.0, 50)
    model = ak.KernelRegression(ak.Gaussian(0.1), order=2)
    slope = ak.models.Derivative(model, 1)(jnp.array([0.5]), x, jnp.sin(6 * x))  # near 6 cos 3
    ```
    """

    model: KernelRegression
    derivative: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, model: KernelRegression, derivative: int | Sequence[int]):
        require_instance("model", model, KernelRegression, "ak.KernelRegression(ak.Gaussian(0.3))")
        self.model = model
        self.derivative = as_integer_tuple("derivative", derivative, 0)
        total, order = sum(self.derivative), model.order
        if not 1 <= total <= 2:
            raise ValueError(
                f"The orders of a derivative must add up to 1 or {2}; got "
                f"derivative={self.derivative}."
            )
        if 0 < order < total:
            raise ValueError(
                f"A local polynomial of order {order} has no derivative of order {total}; got "
                f"derivative={self.derivative}. Take a model of order {total}."
            )

    def evaluate(
        self, prior: Prior | None, q: NewInputs, rows: Rows
    ) -> tuple[Predictions, DataSupport]:
        """Derivatives from checked data, and their `DataSupport`."""
        found = self.estimate(q, rows, prior=prior)
        return found.value, found.support

    @property
    def description(self) -> str:
        """Such as `derivative (1, 0) of local linear`."""
        return f"derivative {self.derivative} of {self.model.description}"

    def estimate(
        self, x_new: ArrayLike | None, rows: Rows, *, prior: Prior | None = None
    ) -> "DerivativeEstimate":
        r"""Derivatives, their variances $\sum_j D_j(x)^2 \sigma_j^2$, and their support."""
        q, prior = self.queries_at(x_new, rows), with_weights(prior, rows)
        out, local = self.fitted(q, rows.x, rows.y, prior)
        return DerivativeEstimate(self, rows, rows.shaped(out), support_of(local), q, prior, local)

    def fitted(
        self, q: Array, k: Array, v: Array, prior: Prior | None
    ) -> tuple[Float[Array, "m out"], LocalFit]:
        """Returns derivatives at queries, in units of y over $x^{|a|}$, and the local polynomials.

        Derivatives are NaN where the data do not determine them.
        """
        self.check_columns(k.shape[1])
        model, used = self.model, self.model.columns_of_quantities(k.shape[1])
        exponent = tuple(self.derivative[column] for column in used)
        term = exponents(len(used), model.order).index(exponent) if model.order else 0
        by_weights = model.order == 0 or v.shape[1] >= MIN_LABELS_BY_WEIGHTS
        local = model.polynomials(q, k, v[:, :0] if by_weights else v, prior, term)
        if by_weights:
            centred = v - jax.lax.stop_gradient(jnp.mean(v, axis=0, keepdims=True))
            out = model.sum_by_weights(q, k, centred, local, prior, derivative=self.derivative)
        else:
            out = factorial(self.derivative) * local.coefficients[:, term]
        is_known = ~(local.empty | local.deficient)
        return jnp.where(is_known[:, None], out, jnp.nan).astype(q.dtype), local

    def check_columns(self, dim: int) -> None:
        """Raises `ValueError` unless there is one order per column, 0 for those of categories."""
        if len(self.derivative) != dim:
            example = (1,) + (0,) * (dim - 1)
            raise ValueError(
                f"derivative must have one order for each of {dim} columns, such as {example}; got "
                f"{self.derivative}."
            )
        for column in self.category_counts(dim):
            if self.derivative[column]:
                raise ValueError(
                    f"Column {column} holds categories, along which there is no derivative; got "
                    f"derivative={self.derivative}. Compare predictions of two categories."
                )


class DerivativeEstimate(LocalEstimate):
    """The estimate of a derivative. Its weights $D_j(x)$ are NaN where the data determine none.

    `variance_of` raises `ValueError` unless the rule is `Softmax`. `leverage` and `loo_residuals`
    have no meaning: a derivative does not predict the labels.
    """

    def sum_of_squares(self, variances: Float[Array, "n columns"]) -> Float[Array, "m columns"]:
        r"""$\sum_j D_j(x)^2 \sigma_j^2$, without the weights themselves."""
        self.model.model.require_softmax()
        arrays = self.q, self.rows.x, variances, self.local, self.prior
        own = self.model.derivative
        return self.model.model.sum_by_weights(*arrays, power=2, derivative=own)
