"""Quantiles of the labels at an input: of the weights of order 0, or by local polynomials."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, is_concrete, require_finite
from .._core.rows import Rows, cut_rows
from ..attention import jit_if_pure
from ..fitting import Fit
from ..models import KernelRegression, LinearSmoother, LocalQuantile, with_weights
from ._variance import padded_rows, require_smoother_fit

CHUNK_WEIGHTS = 2**20  # of queries and labels, at a time


def quantiles(
    fit: Fit, x_new: ArrayLike, levels: ArrayLike | Sequence[float]
) -> Float[Array, "m levels"]:
    r"""Conditional quantiles of labels, with the kernel and the order of a fit.

    A smoother whose weights are not negative, such as a `KernelRegression` of order 0, has

    $$ \hat q_p(x) = \inf \Big\{ y : \sum_{j : y_j \le y} w_j(x) \ge p \Big\}, \qquad
       \sum_j w_j(x) = 1 $$

    These are labels of the data and never cross. Sums that equal p to rounding count as p. They are
    piecewise constant in x, with derivatives 0. A `KernelRegression` of order 1 or 2 and a
    `LocalQuantile` have the local polynomials with the least check loss, as `LocalQuantile` has
    them for one level: without bias of first order at boundaries, but they may cross, mostly where
    labels are few.

    About p of new labels at x are below, as far as labels around x have the same distribution. A
    lengthscale chosen for the mean is too short for outer levels: see `LocalQuantile`. Quantiles
    are too smooth where the spread of labels changes faster than their mean.

    **Arguments:** `fit`: of a `KernelRegression`, a `LocalQuantile`, or another smoother whose
    weights are not negative, with one label per row; `x_new`: shape (m,) or (m, dim); `levels`: p,
    between 0 and 1, shape (levels,), or one number for one column.

    **Returns:** shape (m, levels), in the units of y; NaN where no label has weight, whatever
    `on_empty`. It takes O(m n) time, and memory for about 10⁶ weights.

    **Raises:** `ValueError` for another smoother, several labels per row, a batch of fits, or a
    level outside (0, 1).

    **Source:** Stone, *Consistent nonparametric regression* (1977); Yu and Jones, *Local linear
    quantile regression* (1998).

    ```python
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=ak.LeaveOneOut())
    print(ak.quantiles(fit, np.array([0.0]), np.array([0.1, 0.5, 0.9])))
    ```
    """
    fit = require_smoother_fit(fit, (LinearSmoother, LocalQuantile), one_label="Quantiles are")
    model = fit.model
    if isinstance(model, KernelRegression) and model.order > 0:
        model = LocalQuantile(model.kernel, order=model.order, rule=model.rule)
    is_polynomial = isinstance(model, LocalQuantile)
    if not is_polynomial and not model.has_nonnegative_weights:
        raise ValueError(
            f"Quantiles are of a KernelRegression, a LocalQuantile, or a smoother whose weights "
            f"are not negative; those of this fit ({model.description}) may be."
        )
    p = as_real_array("levels", levels).astype(fit.y.dtype)
    p = p if p.ndim else p[None]
    if p.ndim != 1 or (is_concrete(p) and not np.all((np.asarray(p) > 0) & (np.asarray(p) < 1))):
        raise ValueError(
            f"levels must be between 0 and 1, one or several, such as [0.1, 0.5, 0.9]; got "
            f"{levels!r}."
        )
    at = fit.inputs(x_new)
    require_finite("x_new", at)
    compute = _polynomial_quantiles if is_polynomial else _weighted_quantiles
    found = jit_if_pure(compute, (model,), *padded_rows(fit, at), p)
    return cut_rows(found, len(at))


def _polynomial_quantiles(
    model: LocalQuantile, q: Float[Array, "m dim"], rows: Rows, p: Float[Array, " levels"]
) -> Float[Array, "m levels"]:
    """Returns quantiles of the label at each query by local polynomials, as `LocalQuantile`.

    `q`: the queries; `p`: the levels, between 0 and 1. NaN where no label has weight.
    """
    prior = with_weights(None, rows)

    def of_level(level: Float[Array, ""]) -> Float[Array, " m"]:
        found, local = model.fitted(q, rows.x, rows.y, prior, level)
        return jnp.where(local.empty, jnp.nan, found[:, 0])

    return jax.lax.map(of_level, p).T


def _weighted_quantiles(
    model: LinearSmoother, q: Float[Array, "m dim"], rows: Rows, p: Float[Array, " levels"]
) -> Float[Array, "m levels"]:
    """Returns quantiles of the label at each query by the weights of the model.

    `q`: the queries; `p`: the levels, between 0 and 1. NaN where no label has weight.
    """
    order = jnp.argsort(rows.labels)
    labels = rows.labels[order]
    least = p * (1.0 - 16.0 * jnp.finfo(p.dtype).eps)

    def quantiles_of_chunk(chunk: Float[Array, "chunk dim"]) -> Float[Array, "chunk levels"]:
        weights = model.estimate(chunk, rows).weights[:, order]
        below = jnp.cumsum(weights, axis=1)
        total = below[:, -1:]

        def quantile(least: Float[Array, ""]) -> Float[Array, " chunk"]:
            # rounding may lift a sum beside a label without weight
            enough = (below >= least * total) & (weights > 0)
            return jnp.where(total[:, 0] > 0, labels[jnp.argmax(enough, axis=1)], jnp.nan)

        return jax.lax.map(quantile, least).T

    m, size = len(q), max(1, min(len(q), CHUNK_WEIGHTS // len(rows.x)))
    chunks = jnp.pad(q, ((0, -m % size), (0, 0)), mode="edge").reshape(-1, size, q.shape[1])
    return jax.lax.map(quantiles_of_chunk, chunks).reshape(-1, len(p))[:m]
