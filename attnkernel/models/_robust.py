"""Robust regression as an Equinox module: a linear smoother that gives outliers less weight."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import wider_dtype
from .._core.validation import as_integer, require_instance
from ..local import warn_of_extrapolation
from ..losses import Bisquare, RobustLoss, absolute_error
from ..priors import Prior, key_mask_of, require_prior
from ._data import read_data
from ._linear_smoother import LinearSmoother
from ._prediction import on_padded_rows
from ._robustness_weights import iterate_weights, multiply_weights
from ._smoother import DataSupport
from ._smoother_wrapper import SmootherWrapper


class RobustRegression(SmootherWrapper):
    r"""Robust smoothing by iterated reweighting, as in lowess and loess.

    $$ \hat f(x) = \text{the model's fit with weights } w_j \delta_j, \qquad
       \delta_j \leftarrow w\Big( \frac{r_j}{\hat\sigma} \Big), \qquad
       r_j = y_j - \hat f(x_j), \qquad \hat\sigma = \frac{\operatorname{med}_j |r_j|}{0.6745} $$

    The first fit has $\delta_j = 1$; w is the weight function of the loss. Each column of labels
    has δ of its own. `ak.KernelRegression(ak.NearestNeighbours(ak.kernels.Tricube(1.0),
    fraction=f), order=1)` as the model, with the defaults, is R's `lowess(f = f, iter = 3)`. A row
    with no other label in reach keeps its δ of 1. Where more than half of the residuals are 0 to
    rounding, there is no scale, and δ stay as they are. The iterations start at least squares:
    where far outliers on one side are more than one label in seven, the first fit is so near them
    that they keep some weight. The config `robust.yaml` measures the error by the share of
    outliers.

    *Rows left out.* $\delta_j$ come from fits to all rows that `prior` does not hide from every
    query. So held-out rows (`ak.HoldOut`) never enter δ. In `ak.LeaveOneOut` and `ak.KFold` each
    row is hidden from its own prediction, and does enter the δ of others: a prediction then takes
    as long as `iterations + 1` fits, in place of n (iterations + 1). `ak.fit` minimises the mean
    absolute error of these predictions, on which outliers have less influence than on squares.

    **Arguments:**

    - `model`: a `LinearSmoother`, such as a `KernelRegression` of any order.
    - `loss`: a `RobustLoss`. Default: `Bisquare()`. `Huber()` is convex, and less strict.
    - `iterations`: how often δ are computed, from 1. Default: 3. R's `loess` counts fits, which are
      one more.

    **Raises:** `ValueError` for another model or loss, or fewer iterations.

    **Source:** Cleveland, *Robust locally weighted regression and smoothing scatterplots* (1979).

    ```python
    x = np.linspace(0.0, 1.0, 50)
    y = np.sin(6 * x) + 3.0 * (np.arange(50) % 10 == 0)  # every tenth label is an outlier
    model = ak.RobustRegression(ak.KernelRegression(ak.Gaussian(0.1), order=1))
    print(model(np.array([0.25, 0.5]), x, y))
    ```
    """

    model: LinearSmoother
    loss: RobustLoss
    iterations: int = eqx.field(static=True)

    def __init__(
        self, model: LinearSmoother, *, loss: RobustLoss = Bisquare(), iterations: int = 3
    ):
        require_instance("model", model, LinearSmoother, "ak.KernelRegression(ak.Gaussian(0.3))")
        require_instance("loss", loss, RobustLoss, "ak.losses.Bisquare()")
        hint = "Without any it is the model itself."
        self.model, self.loss = model, loss
        self.iterations = as_integer("iterations", iterations, 1, hint)

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

        - `weights`: of each row, shape (n,), from 0. A weight of k is k equal rows, in fits and in
          medians. Rows with weight 0 are ignored. Default: 1.
        - The others as for `KernelRegression`.

        **Returns:** shape (m,) or (m, out), in the dtype of `x_new`; what the model gives where no
        label has weight.

        **Raises:** `ValueError` if shapes do not fit together, or a weight is negative.
        """
        data = read_data(x_new, x, y, weights, self.kernel)
        out, support = on_padded_rows(_predict, self, prior, weights, *data, np.ndim(y) == 1)
        flags = support.deficient, support.extrapolates
        warn_of_extrapolation(self.description, *flags, wider_dtype(out.dtype))
        return out

    def robustness_weights(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "n"] | Float[Array, "n out"]:
        r"""$\delta_j$ of each label, from 0 to 1: near 0 for outliers.

        **Returns:** the shape of y. Rows of weight 0 have a δ that does not count.
        """
        data = read_data(x, x, y, weights, self.kernel)
        has_one_label = np.ndim(y) == 1
        return on_padded_rows(_robustness_weights, self, None, weights, *data, has_one_label)

    def deviance(self, prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
        """The `ak.losses.absolute_error` of each row: what a fit averages."""
        return absolute_error(prediction, y)

    @property
    def description(self) -> str:
        """Such as `local linear, robust by Bisquare`."""
        return f"{self.model.description}, robust by {type(self.loss).__name__}"


def _robustness_weights(
    model: RobustRegression,
    prior: Prior | None,
    weights: Array | None,
    has_one_label: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> Float[Array, "n"] | Float[Array, "n out"]:
    """Returns δ of each label, from checked data; `weights`: of rows.

    They depend on the prior only by the rows that it hides from every query in q.
    """
    weights = _weights_seen(prior, weights)
    v = v.astype(wider_dtype(jnp.result_type(k, v)))

    def of_column(labels: Float[Array, " n"]) -> Float[Array, " n"]:
        return iterate_weights(model.model, model.loss, model.iterations, k, labels, weights)

    delta = _map_columns(of_column, v)
    return delta[:, 0] if has_one_label else delta


def _predict(
    model: RobustRegression,
    prior: Prior | None,
    weights: Array | None,
    has_one_label: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Float[Array, "m"] | Float[Array, "m out"], DataSupport]:
    """Returns predictions at queries, and how well the data determine them for all labels."""
    if prior is not None:
        require_prior("prior", prior)
        prior.check(q.shape[0], k.shape[0])
    delta = _robustness_weights(model, prior, weights, False, q, k, v)

    def of_column(labels: Float[Array, " n"], delta: Float[Array, " n"]) -> tuple[Array, Any]:
        of_rows = multiply_weights(weights, delta)
        return model.model.predict_with_support(q, k, labels, prior=prior, weights=of_rows)

    out, support = _map_columns(of_column, v, delta)
    out = out[:, 0] if has_one_label else out
    return out, jax.tree.map(lambda flags: jnp.any(flags, axis=1), support)


def _map_columns(function: Callable[..., Any], *arrays: Float[Array, "n out"]) -> Any:
    """Returns the function of each column, whose results are columns of arrays."""
    if arrays[0].shape[1] == 1:
        return jax.tree.map(lambda part: part[:, None], function(*(part[:, 0] for part in arrays)))
    return jax.vmap(function, in_axes=1, out_axes=1)(*arrays)


def _weights_seen(prior: Prior | None, weights: Array | None) -> Array | None:
    """Returns the weights of rows, 0 where the prior hides a row from every query."""
    mask = key_mask_of(prior)
    if mask.unsupported_reason or mask.allowed is None:
        return weights
    return mask.allowed if weights is None else jnp.where(mask.allowed, weights, 0)
