r"""Iterated bias reduction: residuals of a smoother are smoothed again and added.

$$ \hat y_k = \big( I - (I - L)^k \big)\, y $$
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul
from .._core.symbolic_sizes import is_at_most
from .._core.validation import as_integer, require_instance
from ..attention import LocalFit
from ..attention._jit import jit_if_pure
from ..attention._local_fit import warn_of_extrapolation
from ..kernels import Kernel
from ..priors import HeldOut, KeyWeights, Prior
from ..priors._base import key_mask_of
from ._data import read_data, with_weights
from ._linear_smoother import DataSupport, LinearSmoother
from ._regression import KernelRegression

MAX_STORED_WEIGHTS = 2**20  # entries of L that later iterations keep


class BiasReduced(LinearSmoother):
    r"""Iterated bias reduction of a kernel regression with smoother matrix L.

    $$ \hat f_k(x) = \sum_j L_j(x)\, z_j, \qquad z = \sum_{i<k} (I - L)^i\, y, \qquad
       \hat y_k = \big( I - (I - L)^k \big)\, y $$

    The residuals $y - L y$ are smoothed and added, k − 1 times: k = 2 is the twicing of Tukey, and
    k gradient steps of L2 boosting. The bias is of a higher order, so that longer lengthscales are
    best. Weights $L_j$ may be negative. For order 0 and a positive definite kernel (`Gaussian`,
    `Laplace`, `Matern32`) the fit converges to the labels with k; for other kernels (`Boxcar`,
    `Epanechnikov`) many iterations diverge.

    `ak.AICc` and `ak.GCV` choose k well, in O(n³ log k) time and O(n²) memory. A prediction takes
    O(n²k) time before the last smooth. With a `prior` that hides other labels from each query, as
    `ak.LeaveOneOut` does, each query iterates over the labels that it may see.

    **Arguments:**

    - `model`: a `KernelRegression`, whose order, rule, method and `on_empty` hold.
    - `iterations`: k, from 2; one iteration is the model itself.

    **Raises:** `ValueError` for another model, or fewer iterations.

    **Source:** Tukey, *Exploratory data analysis* (1977); Bühlmann and Yu, *Boosting with the L2
    loss* (2003); Cornillon, Hengartner, Jegou and Matzner-Løber, *Iterative bias reduction: a
    comparative study* (2013).

    ```python
    x = np.linspace(0.0, 1.0, 50)
    model = ak.BiasReduced(ak.KernelRegression(ak.Gaussian(0.2)), iterations=4)
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
    def kernel(self) -> Kernel:
        """The kernel of the model."""
        return self.model.kernel

    @property
    def description(self) -> str:
        """Such as `local constant, 4 iterations of bias reduction`."""
        return f"{self.model.description}, {self.iterations} iterations of bias reduction"

    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        """Predictions at new inputs; arguments as for `KernelRegression`."""
        q, k, v = read_data(x_new, x, y, weights, self.kernel)
        out, local = self._fitted(q, k, v, prior, weights, wants_slopes=False)
        if self.model.order > 0:
            flags = local.deficient, local.extrapolates
            warn_of_extrapolation(self.description, *flags, local.log_mass.dtype)
        out = self.model.filled(out, local, q, k, v, with_weights(prior, weights, k))
        return out[:, 0] if np.ndim(y) == 1 else out

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
        q, k, v = read_data(x_new, x, y, weights, self.kernel)
        return self._fitted(q, k, v, prior, weights, wants_slopes=True)[1]

    def effective_weights(
        self, x_new: ArrayLike, x: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "m n"]:
        """$L_j(x)$ of all iterations; 0 where no label has weight."""
        q, k, _ = read_data(x_new, x, x, weights, self.kernel, "x")
        parts = (self.model, self.iterations, with_weights(None, weights, k))
        return jit_if_pure(_effective_weights, parts, q, k)

    def fitted_and_leverage(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> tuple[Float[Array, "n"] | Float[Array, "n out"], Float[Array, " n"]]:
        """Predictions at the labelled inputs, and the diagonal of $I - (I - L)^k$."""
        _, k, v = read_data(x, x, y, weights, self.kernel)
        self.model.require_softmax()
        parts = (self.model, self.iterations, with_weights(None, weights, k))
        out, leverage = jit_if_pure(_fitted_and_leverage, parts, k, v)
        return (out[:, 0] if np.ndim(y) == 1 else out), leverage

    def prediction_variance(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        variance: ArrayLike,
        *,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        r"""$\sum_j L_j(x)^2 \sigma_j^2$; arguments as for `KernelRegression`."""
        q, k, v = read_data(x_new, x, variance, weights, self.kernel, "variance")
        self.model.require_softmax()
        parts = (self.model, self.iterations, with_weights(None, weights, k))
        out = jit_if_pure(_prediction_variance, parts, q, k, v)
        return out[:, 0] if np.ndim(variance) == 1 else out

    def data_support(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> DataSupport:
        """That of the model: iterations do not change which labels have weight."""
        return self.model.data_support(x_new, x, prior=prior, weights=weights)

    def local_mean(self, factor: ArrayLike) -> KernelRegression:
        """The regression of order 0 with `factor` times the lengthscale of the model."""
        return self.model.local_mean(factor)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The columns of x that hold codes of categories, those of the kernel."""
        return self.model.category_counts(dim)

    def search_box(
        self, x: Float[Array, "n dim"], weights: Array | None = None
    ) -> tuple["BiasReduced", "BiasReduced"]:
        """The box for a fit, as two models: that of the model."""
        lower, upper = self.model.search_box(x, weights)
        return BiasReduced(lower, self.iterations), BiasReduced(upper, self.iterations)

    def _fitted(
        self,
        q: Float[Array, "m dim"],
        k: Float[Array, "n dim"],
        v: Float[Array, "n out"],
        prior: Prior | None,
        weights: ArrayLike | None,
        wants_slopes: bool,
    ) -> tuple[Float[Array, "m out"], LocalFit]:
        """Returns predictions at queries q, 0 where no label has weight, and local polynomials."""
        whole = with_weights(prior, weights, k)
        if prior is not None:
            prior.check(q.shape[0], k.shape[0])
        mask = key_mask_of(prior)
        # whether all queries see the same labels
        is_shared = not (mask.unsupported_reason or mask.excludes_self or mask.is_causal)
        if is_shared:
            whole = with_weights(None, weights, k)
            if mask.allowed is not None:
                held_out = HeldOut(~mask.allowed)
                whole = held_out if whole is None else held_out * whole
                log_weights = whole.pairwise(jnp.zeros(1, int), jnp.arange(len(k)))[0]
                whole = KeyWeights(log_weights.astype(k.dtype))
        parts = (self.model, self.iterations, whole, is_shared, wants_slopes)
        return jit_if_pure(_fit_reduced, parts, q, k, v)


def _fit_reduced(
    model: KernelRegression,
    iterations: int,
    prior: Prior | None,
    is_shared: bool,
    wants_slopes: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Float[Array, "m out"], LocalFit]:
    """Returns predictions and local polynomials; `is_shared`: all queries see the same labels."""
    if is_shared:
        return model.fitted(q, k, _sharpen(model, iterations, prior, k, v), prior, wants_slopes)
    assert prior is not None

    def fit_query(i: Array) -> tuple[Array, LocalFit]:
        seen = KeyWeights(prior.pairwise(i[None], jnp.arange(k.shape[0]))[0].astype(k.dtype))
        labels = _sharpen(model, iterations, seen, k, v)
        fitted = model.fitted(q[i][None], k, labels, seen, wants_slopes)
        return jax.tree.map(lambda leaf: leaf[0], fitted)

    # a derivative stores only the index of each query
    return jax.lax.map(jax.checkpoint(fit_query, prevent_cse=False), jnp.arange(q.shape[0]))


def _sharpen(
    model: KernelRegression,
    iterations: int,
    prior: Any,
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> Float[Array, "n out"]:
    """Returns z, the labels v plus the residuals of all iterations but the last; k: the inputs."""
    v = _zero_hidden(prior, v)
    smooth = lambda rest: model.fitted(k, k, rest, prior)[0].astype(v.dtype)  # noqa: E731
    rest = _zero_hidden(prior, v - smooth(v))  # labels far from 0 are smoothed centred, only here
    if is_at_most(k.shape[0] ** 2, MAX_STORED_WEIGHTS) and iterations > 2:
        matrix = _smoother_matrix(model, prior, k).astype(v.dtype)
        smooth = functools.partial(precise_matmul, matrix)

    def iterate(carried: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        z, rest = carried
        rest = _zero_hidden(prior, rest - smooth(rest))
        return (z + rest, rest), None

    return jax.lax.scan(iterate, (v + rest, rest), None, length=iterations - 2)[0][0]


def _zero_hidden(prior: Any, v: Float[Array, "n out"]) -> Float[Array, "n out"]:
    """Returns the labels v with 0 in the rows whose weight in the prior is zero."""
    if prior is None:
        return v
    log_weights = prior.pairwise(jnp.zeros(1, int), jnp.arange(len(v)))[0]
    return jnp.where(jnp.isneginf(log_weights)[:, None], 0.0, v)


def _smoother_matrix(
    model: KernelRegression, prior: Prior | None, k: Float[Array, "n dim"]
) -> Float[Array, "n n"]:
    """Returns the hat matrix L of the model at the inputs k, without bias reduction."""
    return model.fitted(k, k, jnp.eye(k.shape[0], dtype=k.dtype), prior)[0]


def _fitted_and_leverage(
    model: KernelRegression,
    iterations: int,
    prior: Prior | None,
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Float[Array, "n out"], Float[Array, " n"]]:
    r"""Returns $A v$ and the diagonal of $A = I - (I - L)^t$, for t iterations at the inputs k."""
    left = jnp.eye(k.shape[0], dtype=k.dtype) - _smoother_matrix(model, prior, k)
    with jax.default_matmul_precision("highest"):
        half = jnp.linalg.matrix_power(left, iterations // 2)
        rest = half @ left if iterations % 2 else half
    leverage = 1.0 - jnp.sum(half * rest.T, axis=1)
    return model.fitted(k, k, _sharpen(model, iterations, prior, k, v), prior)[0], leverage


def _effective_weights(
    model: KernelRegression,
    iterations: int,
    prior: Prior | None,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
) -> Float[Array, "m n"]:
    """Returns $L_j(q)$, the weights of the labels in predictions after all iterations."""
    eye = jnp.eye(k.shape[0], dtype=k.dtype)
    return model.fitted(q, k, _sharpen(model, iterations, prior, k, eye), prior)[0]


def _prediction_variance(
    model: KernelRegression,
    iterations: int,
    prior: Prior | None,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> Float[Array, "m out"]:
    r"""Returns $\sum_j L_j(q)^2 v_j$ at the queries; v: the variances of the labels."""
    return precise_matmul(_effective_weights(model, iterations, prior, q, k) ** 2, v)
