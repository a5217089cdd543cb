r"""Degrees of freedom of a fit, and the effective number of labels in a prediction.

$$ \nu = \operatorname{tr} L, \qquad n_{\mathrm{eff}}(x) = \frac{1}{\sum_j L_j(x)^2} $$
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import Scalar, inverse_or_zero
from .._core.pandas_frames import as_pandas
from .._core.rows import NewInputs, Rows, cut_rows
from ..attention import jit_if_pure
from ..fitting import Fit
from ._variance import (
    ESTIMATORS,
    Estimator,
    RowDiagnostics,
    padded_rows,
    require_smoother_fit,
    row_diagnostics,
)


class DegreesOfFreedom(eqx.Module):
    r"""$\nu = \operatorname{tr} L$ and $\tilde\nu = \operatorname{tr} L^\top W L W^{-1}$.

    `trace` is ν, and `trace_of_squares` is $\tilde\nu$.

    W is the diagonal matrix of the weights w (1 without any). `residual` is $n - 2\nu + \tilde\nu$,
    the expectation of $\sum_i w_i r_i^2 / \sigma^2$ for residuals r, where the variance of $y_i$ is
    $\sigma^2 / w_i$ and the fit has no bias. n counts the rows with weight above 0.

    ```python
    data = ak.data.load("mcycle")
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y)
    freedom = ak.degrees_of_freedom(fit)
    assert freedom.residual < len(data.x) - freedom.trace
    ```
    """

    trace: Scalar
    trace_of_squares: Scalar
    residual: Scalar


def degrees_of_freedom(fit: Fit) -> DegreesOfFreedom:
    r"""The degrees of freedom of a fitted linear smoother, such as a `KernelRegression`.

    For a `LocalLikelihood` they are approximate: L is the derivative of the fitted means in the
    labels, computed with the expected information.

    **Arguments:** `fit`: one fit.

    **Raises:** `ValueError` for a fit of another model, a batch of fits, or a `LocalLikelihood`
    with several labels per row.

    **Source:** Loader, *Local regression and likelihood* (1999), section 2.3.2.

    ```python
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=ak.LeaveOneOut())
    print(ak.degrees_of_freedom(fit).trace)
    ```
    """
    fit = require_smoother_fit(fit, ESTIMATORS)
    return jit_if_pure(_count, (fit.model,), *padded_rows(fit))


def _count(model: Estimator, _: Array, rows: Rows) -> DegreesOfFreedom:
    """Returns the degrees of freedom of a fit of `model` to `rows`, from checked data."""
    return sum_degrees_of_freedom(row_diagnostics(model.estimate(None, rows)))


def sum_degrees_of_freedom(rows: RowDiagnostics) -> DegreesOfFreedom:
    """Returns the degrees of freedom of a fit from the diagnostics of its rows."""
    trace, of_squares = jnp.sum(rows.leverage), jnp.sum(rows.norms)
    n = jnp.sum(rows.weights > 0)
    return DegreesOfFreedom(trace, of_squares, n - 2.0 * trace + of_squares)


def effective_count(fit: Fit, x_new: ArrayLike | Any) -> Float[Array, " m"] | Any:
    r"""How many labels a prediction averages, $1 / \sum_j L_j(x)^2$; 0 where none has weight.

    It is the effective sample size of Kish: for labels of equal variance, the variance of a
    prediction is theirs over this count.

    **Arguments:** `fit`: of a linear smoother or a `LocalLikelihood`; `x_new`: shape (m,) or
    (m, dim), or a frame.

    **Returns:** shape (m,), without a unit; for a frame a `Series` with its index.

    **Raises:** `ValueError` as `degrees_of_freedom`.

    ```python
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=ak.LeaveOneOut())
    print(ak.inference.effective_count(fit, np.array([-1.0, 1.0])))
    ```
    """
    fit = require_smoother_fit(fit, ESTIMATORS)
    inputs = fit.inputs(x_new)
    count = jit_if_pure(_count_labels, (fit.model,), *padded_rows(fit, inputs))
    return as_pandas(cut_rows(count, len(inputs)), x_new, "effective_count")


def _count_labels(model: Estimator, at: NewInputs, rows: Rows) -> Float[Array, " m"]:
    """Returns the effective number of labels in the predictions at `at`, from checked data."""
    found = model.estimate(at, rows)
    return inverse_or_zero(found.variance_of(jnp.ones(len(rows.x), at.dtype)))
