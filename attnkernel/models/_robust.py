r"""Robust regression as an Equinox module: a linear smoother that gives outliers less weight.

$$ \delta_j \leftarrow w\Big( \frac{r_j}{\hat\sigma} \Big), \qquad
   r_j = y_j - \hat f_\delta(x_j), \qquad \hat\sigma = \frac{\operatorname{med}_j |r_j|}{0.6745} $$
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import wider_dtype
from .._core.rows import Labels, NewInputs, Predictions, Rows, RowWeights, is_positive
from .._core.validation import as_integer, require_instance
from ..losses import MEDIAN_OF_ABSOLUTE_NORMAL, Bisquare, RobustLoss, absolute_error
from ..priors import Prior, pair_mask_of
from ._linear_smoother import DataSupport, LinearSmoother
from ._smoother import SmootherWrapper, hide_rows, on_padded_rows


def residual_scale(
    residuals: Float[Array, " n"], weights: RowWeights | None
) -> tuple[Float[Array, ""], Float[Array, " n"]]:
    r"""Returns the scale $\hat\sigma = \operatorname{med}_j |r_j| / 0.6745$, and the residuals.

    The scale is 0 where more than half of the residuals are 0 to rounding. Residuals are set to 0
    for rows with weight 0, and for rows without any label in reach (NaN).
    """
    is_known = ~jnp.isnan(residuals)
    if weights is not None:
        is_known = is_known & is_positive(weights)
    residuals = jnp.where(is_known, residuals, 0.0)
    counts = jnp.ones_like(residuals) if weights is None else weights.astype(residuals.dtype)
    sizes = jnp.abs(residuals)
    median = weighted_median(sizes, counts)
    mean = jnp.sum(counts * sizes) / jnp.sum(counts)
    # A median of |r| that is smaller than this share of their mean tells no scale: R's lowess stops
    # where six medians are below 1e-7 of the mean.
    min_median_share = 1e-7 / 6.0
    has_scale = median > min_median_share * mean
    return jnp.where(has_scale, median / MEDIAN_OF_ABSOLUTE_NORMAL, 0.0), residuals


def weighted_median(values: Float[Array, " n"], weights: Float[Array, " n"]) -> Float[Array, ""]:
    """Returns the median of values, in which one of weight k counts as k equal values.

    The median of an even number of values is the mean of the two in the middle. Values of weight 0
    do not count. Sums of weights that equal half of all to rounding count as half.
    """
    order = jnp.argsort(jax.lax.stop_gradient(values))
    counted = weights[order]
    below = jnp.cumsum(counted)
    half, slack = 0.5 * below[-1], 16.0 * jnp.finfo(values.dtype).eps * below[-1]
    lower = order[jnp.argmax((below >= half - slack) & (counted > 0))]
    upper = order[jnp.argmax((below > half + slack) & (counted > 0))]
    # sums, not gathers, whose derivative is a scatter: searches compile in 0.8 s less
    rows = jnp.arange(len(values))
    lower, upper = (jnp.sum(jnp.where(rows == row, values, 0.0)) for row in (lower, upper))
    return 0.5 * (lower + upper)


def multiply_weights(weights: RowWeights | None, delta: Float[Array, " n"]) -> Float[Array, " n"]:
    """Returns the product of the weights of rows and their robustness weights."""
    if weights is None:
        return delta
    return jnp.where(is_positive(weights), weights.astype(delta.dtype) * delta, 0.0)


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

    Called with `weights`, of each row, a weight of k is k equal rows, in fits and in medians.

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

    def evaluate(
        self, prior: Prior | None, q: NewInputs, rows: Rows
    ) -> tuple[Predictions, DataSupport]:
        """Predictions at queries, and their `DataSupport`.

        A flag is True if it is for any column of labels. Where no label has weight, the prediction
        is that of the inner model.
        """
        if prior is not None:
            prior.check(q.shape[0], rows.x.shape[0])
        delta = _robustness_weights(self, prior, q, dataclasses.replace(rows, has_one_label=False))

        def of_column(labels: Float[Array, " n"], delta: Float[Array, " n"]) -> tuple[Array, Any]:
            weighted = Rows(rows.x, labels[:, None]).with_weights(
                multiply_weights(rows.weights, delta)
            )
            found = self.model.estimate(q, weighted, prior=prior)
            return found.value, found.support

        out, support = _map_columns(of_column, rows.y, delta)
        return rows.shaped(out), jax.tree.map(lambda flags: jnp.any(flags, axis=1), support)

    def robustness_weights(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Labels:
        r"""$\delta_j$ of each label, from 0 to 1: near 0 for outliers.

        **Returns:** the shape of y. Rows of weight 0 have a δ that does not count.
        """
        q, rows = self.read(x, x, y, weights)
        return on_padded_rows(_robustness_weights, self, None, q, rows)

    def deviance(self, prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
        """The `ak.losses.absolute_error` of each row: what a fit averages."""
        return absolute_error(prediction, y)

    @property
    def description(self) -> str:
        """Such as `local linear, robust by Bisquare`."""
        return f"{self.model.description}, robust by {type(self.loss).__name__}"


def _robustness_weights(
    model: RobustRegression, prior: Prior | None, q: NewInputs, rows: Rows
) -> Labels:
    """Returns δ of each label, from checked data.

    They depend on the prior only by the rows that it hides from every query in q, as its
    `pair_mask_of` says. A prior that is no such mask has no effect.
    """
    mask = pair_mask_of(prior)
    weights = rows.weights if mask.unsupported_reason else hide_rows(rows, mask).weights
    v = rows.y.astype(wider_dtype(jnp.result_type(rows.x, rows.y)))

    def of_column(labels: Float[Array, " n"]) -> Float[Array, " n"]:
        def reweight(delta: Float[Array, " n"], _: None) -> tuple[Float[Array, " n"], None]:
            seen = multiply_weights(weights, delta)
            fitted = model.model(rows.x, rows.x, labels, weights=seen).astype(labels.dtype)
            scale, residuals = residual_scale(labels - fitted, weights)
            is_known = scale > 0
            found = model.loss.weight(residuals / jnp.where(is_known, scale, 1.0))
            return jnp.where(is_known, found, delta), None

        # one scan: the fit is compiled once
        return jax.lax.scan(reweight, jnp.ones_like(labels), length=model.iterations)[0]

    return rows.shaped(_map_columns(of_column, v))


def _map_columns(function: Callable[..., Any], *arrays: Float[Array, "n out"]) -> Any:
    """Applies the function to each column of the arrays, and stacks its results along axis 1."""
    if arrays[0].shape[1] == 1:
        return jax.tree.map(lambda part: part[:, None], function(*(part[:, 0] for part in arrays)))
    return jax.vmap(function, in_axes=1, out_axes=1)(*arrays)
