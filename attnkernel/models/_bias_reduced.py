r"""Iterated bias reduction: residuals of a smoother are smoothed again and added.

$$ \hat y_k = \big( I - (I - L)^k \big)\, y $$
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul
from .._core.rows import NewInputs, Predictions, Rows
from .._core.tracing import is_at_most
from .._core.validation import as_integer, require_instance
from ..attention import jit_if_pure
from ..local import LocalFit, warn_of_extrapolation
from ..priors import KeyWeights, Prior, pair_mask_of
from ._linear_smoother import Estimate, LinearSmoother
from ._local_regression import support_of
from ._regression import KernelRegression
from ._smoother import SmootherWrapper, hide_rows, with_weights

MAX_STORED_WEIGHTS = 2**20  # entries of L that later iterations keep


class BiasReduced(SmootherWrapper, LinearSmoother):  # type: ignore[override]
    r"""Iterated bias reduction of a kernel regression with smoother matrix L.

    $$ \hat f_k(x) = \sum_j L_j(x)\, z_j, \qquad z = \sum_{i<k} (I - L)^i\, y, \qquad
       \hat y_k = \big( I - (I - L)^k \big)\, y $$

    The residuals $y - L y$ are smoothed and added, k − 1 times: k = 2 is the twicing of Tukey, and
    k gradient steps of L2 boosting. The bias is of a higher order, so that longer lengthscales are
    best. Weights $L_j$ may be negative. For order 0 and a positive definite kernel (`Gaussian`,
    `Laplace`, `Matern32`) the fit converges to the labels with k; for other kernels (`Boxcar`,
    `Epanechnikov`) many iterations diverge.

    `ak.AICc` and `ak.GCV` choose k well, in O(n³ log k) time and O(n²) memory. A prediction takes
    O(n²k) time before the last smooth. With a `prior` that hides different labels from different
    queries, as `ak.LeaveOneOut` does, each query iterates over the labels that it may see.

    **Arguments:**

    - `model`: a `KernelRegression`, whose order, rule, method and `on_empty` hold.
    - `iterations`: k, from 2; one iteration is the model itself.

    **Raises:** `ValueError` for another model, or fewer iterations.

    **Source:** Tukey, *Exploratory data analysis* (1977); Bühlmann and Yu, *Boosting with the L2
    loss* (2003); Cornillon, Hengartner, Jegou and Matzner-Løber, *Iterative bias reduction: a
    comparative study* (2013).

    ```python
    x = np.linspace(0.0, 1.0, 50)
    model = ak.models.BiasReduced(ak.KernelRegression(ak.Gaussian(0.2)), iterations=4)
    print(model(np.array([0.25, 0.5]), x, np.sin(6 * x)))
    ```
    """

    model: KernelRegression
    iterations: int = eqx.field(static=True)

    def __init__(self, model: KernelRegression, iterations: int):
        example = "ak.KernelRegression(ak.Gaussian(0.3))"
        require_instance("model", model, KernelRegression, example)
        hint = "One iteration is the model itself. To choose among several, see ak.choose."
        self.model = model
        self.iterations = as_integer("iterations", iterations, 2, hint)

    @property
    def description(self) -> str:
        """Such as `local constant, 4 iterations of bias reduction`."""
        return f"{self.model.description}, {self.iterations} iterations of bias reduction"

    def predict(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Predictions:
        """Predictions from checked data, with the warnings of the base class."""
        out, local = self._fitted(q, rows, prior, with_slopes=False)
        warn_of_extrapolation(self.description, local, local.log_mass.dtype)
        return rows.shaped(self.model.filled(out, local.empty, q, rows, with_weights(prior, rows)))

    def local_fit(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> LocalFit:
        """The local polynomials of the last smooth, to the labels z; arguments as for the call."""
        q, rows = self.read(x_new, x, y, weights)
        return self._fitted(q, rows, prior, with_slopes=True)[1]

    def estimate(
        self, x_new: ArrayLike | None, rows: Rows, *, prior: Prior | None = None
    ) -> "ReducedEstimate":
        """Predictions after all iterations, and their weights $L_j$ of the labels y.

        `on_empty` applies to new inputs alone. At the rows (`x_new=None`) the value is 0 where no
        label has weight.
        """
        q = self.queries_at(x_new, rows)
        out, local = self._fitted(q, rows, prior, with_slopes=False)
        if x_new is not None:  # a row with weight sees itself
            out = self.model.filled(out, local.empty, q, rows, with_weights(prior, rows))
        return ReducedEstimate(self, rows, rows.shaped(out), support_of(local), q, prior)

    def variance_smoothers(self, rows: Rows) -> list[KernelRegression]:
        """Returns the `variance_smoothers` of the inner model, without bias reduction."""
        return self.model.variance_smoothers(rows)

    def _fitted(
        self, q: NewInputs, rows: Rows, prior: Prior | None, with_slopes: bool
    ) -> tuple[Float[Array, "m out"], LocalFit]:
        """Returns predictions at queries q, 0 where no label has weight, and local polynomials.

        The polynomials are those of the last smooth. `with_slopes`: whether they have coefficients
        for any number of labels; else see `KernelRegression.fitted`.
        """
        k, whole = rows.x, with_weights(prior, rows)
        if prior is not None:
            prior.check(q.shape[0], k.shape[0])
        mask = pair_mask_of(prior)
        # whether all queries see the same labels
        is_shared = mask.reason_beyond() is None
        if is_shared:
            whole = with_weights(None, hide_rows(rows, mask))
        parts = (self, whole, (is_shared, with_slopes))
        return jit_if_pure(_fit_reduced, parts, q, k, rows.y)


class ReducedEstimate(Estimate):
    """The estimate of iterated bias reduction.

    `leverage` and `variance_of` raise `ValueError` unless the rule is `Softmax`.
    """

    q: NewInputs
    prior: Prior | None

    @property
    def weights(self) -> Float[Array, "m n"]:
        """$L_j(x)$ after all iterations; 0 where no label has weight."""
        eye = jnp.eye(len(self.rows.x), dtype=self.rows.x.dtype)
        return self.model._fitted(self.q, self.rows.with_labels(eye), self.prior, False)[0]

    @property
    def leverage(self) -> Float[Array, " n"]:
        """The diagonal of $I - (I - L)^k$, by powers of the matrix.

        With a prior it is the diagonal of `weights`.
        """
        self.model.model.require_softmax()
        if self.prior is not None:
            return super().leverage
        k, iterations = self.rows.x, self.model.iterations
        whole = with_weights(None, self.rows)
        left = jnp.eye(len(k), dtype=k.dtype) - _smoother_matrix(self.model.model, whole, k)
        with jax.default_matmul_precision("highest"):
            half = jnp.linalg.matrix_power(left, iterations // 2)
            rest = half @ left if iterations % 2 else half
        return 1.0 - jnp.sum(half * rest.T, axis=1)

    def sum_of_squares(self, variances: Float[Array, "n columns"]) -> Float[Array, "m columns"]:
        r"""$\sum_j L_j(x)^2 \sigma_j^2$, by the weights."""
        self.model.model.require_softmax()
        return super().sum_of_squares(variances)


def _fit_reduced(
    reduced: BiasReduced, prior: Any, flags: tuple[bool, bool], q: Array, k: Array, v: Array
) -> tuple[Float[Array, "m out"], LocalFit]:
    """Returns predictions and local polynomials; `flags`: whether all queries see the same labels,
    and `with_slopes` of `_fitted`. `prior`: with the weights of the rows."""
    model, (is_shared, with_slopes) = reduced.model, flags

    def fit(q: Array, k: Array, v: Array, prior: Prior | None) -> tuple[Array, LocalFit]:
        if not with_slopes:
            return model.fitted(q, k, v, prior)
        local = model.polynomials(q, k, v, prior)
        return local.coefficients[:, 0], local

    if is_shared:
        return fit(q, k, _add_residuals(reduced, prior, k, v), prior)
    assert prior is not None

    def fit_query(i: Array) -> tuple[Array, LocalFit]:
        seen = KeyWeights(prior.pairwise(i[None], jnp.arange(k.shape[0]))[0].astype(k.dtype))
        labels = _add_residuals(reduced, seen, k, v)
        fitted = fit(q[i][None], k, labels, seen)
        return jax.tree.map(lambda leaf: leaf[0], fitted)

    # a derivative stores only the index of each query
    return jax.lax.map(jax.checkpoint(fit_query, prevent_cse=False), jnp.arange(q.shape[0]))


def _add_residuals(
    reduced: BiasReduced, prior: Any, k: Float[Array, "n dim"], v: Float[Array, "n out"]
) -> Float[Array, "n out"]:
    """Returns z, the labels v plus the residuals of all iterations but the last; k: the inputs."""
    model, v = reduced.model, _zero_hidden(prior, v)
    smooth = lambda rest: model.fitted(k, k, rest, prior)[0].astype(v.dtype)  # noqa: E731
    rest = _zero_hidden(prior, v - smooth(v))  # labels far from 0 are smoothed centred, only here
    # 200 rows, 20 iterations: order 1 in 1.8 ms, without in 6.0; order 0 in 0.5 ms, without in 0.3
    if model.order and is_at_most(k.shape[0] ** 2, MAX_STORED_WEIGHTS) and reduced.iterations > 2:
        matrix = _smoother_matrix(model, prior, k).astype(v.dtype)
        smooth = functools.partial(precise_matmul, matrix)

    def iterate(carried: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        z, rest = carried
        rest = _zero_hidden(prior, rest - smooth(rest))
        return (z + rest, rest), None

    return jax.lax.scan(iterate, (v + rest, rest), None, length=reduced.iterations - 2)[0][0]


def _zero_hidden(prior: Any, v: Float[Array, "n out"]) -> Float[Array, "n out"]:
    """Returns the labels v with 0 in the rows whose weight in the prior is zero.

    The prior must hide the same rows from every query: only query 0 is read.
    """
    if prior is None:
        return v
    log_weights = prior.pairwise(jnp.zeros(1, int), jnp.arange(len(v)))[0]
    return jnp.where(jnp.isneginf(log_weights)[:, None], 0.0, v)


def _smoother_matrix(
    model: KernelRegression, prior: Prior | None, k: Float[Array, "n dim"]
) -> Float[Array, "n n"]:
    """Returns the hat matrix L of the model at the inputs k, without bias reduction."""
    return model.fitted(k, k, jnp.eye(k.shape[0], dtype=k.dtype), prior)[0]
