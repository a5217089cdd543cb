r"""Iterated bias reduction: residuals of a smoother are smoothed again and added.

$$ \hat y_k = \big( I - (I - L)^k \big)\, y $$
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.validation import as_integer, require_instance
from ..attention import jit_if_pure
from ..local import LocalFit, warn_of_extrapolation
from ..priors import HeldOut, KeyWeights, Prior, key_mask_of
from ._data import read_data, with_weights
from ._linear_smoother import LinearSmoother
from ._regression import KernelRegression
from ._smoothed_residuals import (
    fit_reduced,
    reduced_fitted_and_leverage,
    reduced_variance,
    reduced_weights,
)
from ._smoother import DataSupport
from ._smoother_wrapper import SmootherWrapper


class BiasReduced(SmootherWrapper, LinearSmoother):
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
        return jit_if_pure(reduced_weights, parts, q, k)

    def fitted_and_leverage(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> tuple[Float[Array, "n"] | Float[Array, "n out"], Float[Array, " n"]]:
        """Predictions at the labelled inputs, and the diagonal of $I - (I - L)^k$."""
        _, k, v = read_data(x, x, y, weights, self.kernel)
        self.model.require_softmax()
        parts = (self.model, self.iterations, with_weights(None, weights, k))
        out, leverage = jit_if_pure(reduced_fitted_and_leverage, parts, k, v)
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
        out = jit_if_pure(reduced_variance, parts, q, k, v)
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
        is_shared = mask.reason_beyond() is None
        if is_shared:
            whole = with_weights(None, weights, k)
            if mask.allowed is not None:
                held_out = HeldOut(~mask.allowed)
                whole = held_out if whole is None else held_out * whole
                log_weights = whole.pairwise(jnp.zeros(1, int), jnp.arange(len(k)))[0]
                whole = KeyWeights(log_weights.astype(k.dtype))
        parts = (self.model, self.iterations, whole, is_shared, wants_slopes)
        return jit_if_pure(fit_reduced, parts, q, k, v)
