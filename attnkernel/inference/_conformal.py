"""Conformal prediction: intervals for a new label, without a model of the noise."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._core.arrays import index_on_host, is_concrete
from .._core.rows import Rows, cut_rows
from .._core.validation import (
    require_bool,
    require_choice,
    require_instance,
    require_key,
    require_level,
)
from ..attention import jit_if_pure
from ..fitting import Fit, fit as fit_model
from ..models import LinearSmoother, MeanVarianceRegression
from ..objectives import permuted_rows
from ..priors import ExcludeSelf, Mask
from ._band_table import Bands
from ._variance import RowVariance, drop_weightless, padded_rows


def conformal(
    fit: Fit,
    x_new: ArrayLike | Any,
    *,
    level: float = 0.95,
    kind: str = "leave-one-out",
    local: bool = False,
    key: PRNGKeyArray | None = None,
) -> Bands:
    r"""An interval that contains a new label at each new input with the given probability.

    $$ \hat f(x) \pm q\, \hat s(x), \qquad q = \text{the } \lceil (1 + n)\, \mathrm{level} \rceil
       \text{-th smallest of } \frac{|y_i - \hat f_{-i}(x_i)|}{\hat s(x_i)} $$

    The coverage is marginal: the average over inputs that are drawn as those of the fit were, and
    not the coverage at each x.

    **Arguments:**

    - `fit`: a fit; `x_new`: shape (m,) or (m, dim), or a frame; `level`: between 0 and 1.
    - `kind`: `"leave-one-out"` (default), the jackknife: leave-one-out residuals at the lengthscale
      of the fit. The coverage tends to the level where leaving out a row changes the fit little; no
      bound holds for all distributions and n. `"split"`: one half of the rows, drawn with `key`, is
      fitted again, and the other half gives the residuals; the coverage is at least the level for
      any n.
    - `local`: whether the width follows the noise: ŝ² is `noise_variance`, for a row without its
      own residual. It needs a model with `variance_smoothers`, such as `KernelRegression`. With
      weights of rows, intervals are for a new label of weight 1. Default: one width, ŝ = 1.
    - `key`: a PRNG key, of the split.

    **Returns:** `Bands`, infinite where there are too few rows for the level, and NaN where no
    label has weight. Their `standard_error` is ŝ.

    **Raises:** `ValueError` for several labels per row, a batch of fits, a
    `MeanVarianceRegression`, or weights that are traced; for a split without a key, with weights,
    or of fewer than 6 rows; for `local` with another model than a linear
    smoother with `variance_smoothers`.

    **Source:** Lei, G'Sell, Rinaldo, Tibshirani and Wasserman, *Distribution-free predictive
    inference for regression* (2018); Barber, Candès, Ramdas and Tibshirani, *Predictive inference
    with the jackknife+* (2021).

    ```python
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=ak.LeaveOneOut())
    print(ak.conformal(fit, np.array([-1.0, 1.0]), level=0.9))
    ```
    """
    require_instance("fit", fit, Fit, "ak.fit(...)")
    require_level("level", level)
    require_bool("local", local)
    require_choice("kind", kind, ("leave-one-out", "split"))
    if key is not None:
        require_key("key", key)
    if fit.loss.ndim or fit.y.ndim != 1:
        raise ValueError("Conformal intervals are of one fit, with one label per row.")
    if fit.objective.weights is not None and not is_concrete(fit.objective.weights):
        raise ValueError(
            "Residuals are counted where the weight is above 0: ask for conformal intervals of a "
            "fit with weights outside jit, vmap and grad."
        )
    fit = drop_weightless(fit)
    at = fit.inputs(x_new)
    if isinstance(fit.model, MeanVarianceRegression):
        raise ValueError(
            "Conformal intervals are of models that predict one number, and MeanVarianceRegression "
            "predicts two: fit ak.KernelRegression, and pass local=True."
        )
    if local and not isinstance(fit.model, LinearSmoother):
        raise ValueError(f"Leave local out: a {type(fit.model).__name__} is no linear smoother.")
    if kind == "leave-one-out":
        model, held, prior, n = fit.model, None, ExcludeSelf(), len(fit.x)
        arrays = padded_rows(fit, at)
    else:
        if key is None:
            raise ValueError("A split is drawn at random: pass key=jax.random.PRNGKey(0).")
        if fit.rows.weights is not None:
            raise ValueError("A split with weights is not exchangeable: use leave-one-out.")
        if len(fit.x) < 6:
            least = "A split fits half of the rows, and needs at least 6"
            raise ValueError(f"{least}; got {len(fit.x)}. Try leave-one-out.")
        half, prior, n = len(fit.x) // 2, None, -(-len(fit.x) // 2)
        order = permuted_rows(key, len(fit.x))
        of_fit, others = (
            [index_on_host(part, chosen) for part in (fit.x, fit.y)]
            for chosen in (order[:half], order[half:])
        )
        first = fit_model(fit.model, *of_fit, objective=fit.objective)
        model, held = first.model, Rows.read(*others)
        arrays = padded_rows(first, at)
        if arrays[1].weights is not None:
            (held,) = held.padded()
    rank = jax.device_put(np.asarray(math.ceil((1 + n) * level - 1e-9)))  # 100 * 0.55 is above 55
    parts = (model, rank, local, prior, held)
    curves = cut_rows(jit_if_pure(_compute_intervals, parts, *arrays), len(at))
    return Bands.of_fit(fit, x_new, at, *curves, level, "conformal")


def _compute_intervals(
    model: Any,
    rank: Int[Array, ""],
    local: bool,
    prior: Mask | None,
    held: Rows | None,
    at: Float[Array, "m dim"],
    rows: Rows,
) -> tuple[Array, Array, Array, Array]:
    """Returns (centre, spread, lower, upper) at the new inputs `at`; spread is ŝ of `conformal`.

    `rank`: which of the sorted absolute residuals, over ŝ, gives the factor q, counted from 1. q is
    infinite if there are fewer residuals. `local`: whether ŝ is a local standard deviation; else 1.

    `rows`: those of the fit; `held`: the rows whose residuals are sorted, None for `rows`. `prior`:
    hides rows of the fit from the predictions at these rows.
    """
    own = rows if held is None else held
    of_fit = (rows.x, rows.labels)
    centre = model(at, *of_fit, **rows.kwargs)
    residuals = jnp.abs(own.labels - model(own.x, *of_fit, prior=prior, **rows.kwargs))
    spread, spread_new = jnp.ones_like(residuals), jnp.ones_like(centre)
    if local:
        rule, squares = RowVariance.of_fit(model, rows, "local")
        spread = rule.at(own.x, squares, prior)[:, 0]
        if held is None:
            spread = spread / rule.weights
        spread, spread_new = jnp.sqrt(spread), jnp.sqrt(rule.at(at, squares)[:, 0])
    scores = residuals / spread  # NaN where no other label has weight
    unknown = jnp.isnan(scores) | ~own.has_weight
    scores = jnp.sort(jnp.where(unknown, jnp.inf, scores))
    q = jnp.where(rank <= len(scores), scores[jnp.minimum(rank, len(scores)) - 1], jnp.inf)
    width = q * spread_new
    return centre, spread_new, centre - width, centre + width
