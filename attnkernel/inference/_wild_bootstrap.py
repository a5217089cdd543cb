"""The wild bootstrap of a fitted curve: labels whose residuals have random signs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.host_arrays import is_on_one_device, put_like
from .._core.row_buckets import cut_rows
from .._core.validation import as_integer, require_bool, require_key
from ..attention._jit import jit_if_pure
from ..fitting._result import Fit
from ..models import LinearSmoother
from ._band_width import bias_corrected
from ._variance import padded_rows, require_smoother_fit


def wild_bootstrap(
    fit: Fit,
    x_new: ArrayLike | Any,
    *,
    corrected: bool = True,
    draws: int = 1000,
    key: PRNGKeyArray,
) -> Float[Array, "draws m"]:
    r"""Draws of the fit at new inputs, from labels whose residuals have random signs.

    $$ f^*(x) = \hat f(x) + \sum_j L_j(x)\, \hat\sigma_j\, \epsilon_j, \qquad \epsilon_j = \pm 1 $$

    **Percentile intervals of these draws undercover; for a band of the mean use `bands`.** Over
    200 data sets of 200 to 300 rows, nominal 95 % intervals covered .92 for uniform inputs, .89
    for Beta(1, 3) inputs and .91 for two columns, where `bands` covered .945, .942 and .953.

    $\hat\sigma_j$ are leave-one-out residuals at the lengthscale of the fit. Refitting to labels
    drawn about $\hat f$ would smooth $\hat f$ a second time and about double its bias; these draws
    are centred at $\hat f$ itself. All draws are evaluated as labels of one sum.

    **Arguments:**

    - `fit`: of a linear smoother, with one label per row; `x_new`: as for `bands`.
    - `corrected`: whether $\hat f$ and L are those of the robust bias correction of `bands`
      (default), or those of the fit, whose intervals covered .89, .82 and .84 on the data above.
    - `draws`: the number of draws; `key`: a PRNG key, of the signs.

    **Returns:** shape (draws, m), in the units of y.

    **Raises:** `ValueError` for several labels per row, or where there is no bias correction.

    **Source:** Wu, *Jackknife, bootstrap and other resampling methods in regression analysis*
    (1986).

    ```python
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=ak.LeaveOneOut())
    draws = ak.wild_bootstrap(fit, np.array([-1.0, 1.0]), draws=100, key=jax.random.PRNGKey(1))
    ```
    """
    fit = require_smoother_fit(fit)
    require_bool("corrected", corrected)
    draws = as_integer("draws", draws, 1)
    require_key("key", key)
    if fit.y.ndim != 1:
        raise ValueError(f"The bootstrap is of one label per row; y has shape {fit.y.shape}.")
    at = fit.inputs(x_new)
    weight_kwargs, *arrays = padded_rows(fit, at)
    parts = (fit.model, weight_kwargs, corrected, draws, key)
    curves = cut_rows(jit_if_pure(_draw_curves, parts, *arrays, is_forward=True), len(at))
    return put_like(curves, np.asarray(curves).T) if is_on_one_device(curves) else curves.T


def _draw_curves(
    model: LinearSmoother,
    weight_kwargs: dict[str, Any],
    corrected: bool,
    draws: int,
    key: PRNGKeyArray,
    at: Float[Array, "m dim"],
    x: Float[Array, "n dim"],
    y: Float[Array, " n"],
) -> Float[Array, "m draws"]:
    """Returns bootstrap curves at the new inputs `at`, one per column, from checked data.

    `weight_kwargs`: `{"weights": w}` or `{}`; `corrected`: as for `wild_bootstrap`.
    """
    residuals = model.left_out_residuals(x, y, **weight_kwargs)
    if corrected:
        model = bias_corrected(model, x, weight_kwargs)
    signs = jax.random.rademacher(key, (len(x), draws), y.dtype)
    labels = jnp.concatenate([y[:, None], residuals[:, None] * signs], axis=1)
    found = model(at, x, labels, **weight_kwargs)
    return found[:, :1] + found[:, 1:]
