r"""Conformal prediction: intervals for a new label that hold whatever the noise is."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import as_points
from ..models import KernelRegression
from ..priors import LeaveOneOut as LeaveOneOutMask
from ._fit import fit as fit_model
from ._inference import Bands
from ._result import Fit


def conformal(
    fit: Fit,
    x_new: ArrayLike,
    *,
    level: float = 0.95,
    kind: str = "leave-one-out",
    local: bool = False,
    key: PRNGKeyArray | None = None,
) -> Bands:
    r"""An interval that holds a new label at each new input with the given probability.

    $$ \hat f(x) \pm q\, \hat s(x), \qquad q = \text{the } \lceil (1 + n)\, \mathrm{level} \rceil
       \text{-th smallest of } \frac{|y_i - \hat f_{-i}(x_i)|}{\hat s(x_i)} $$

    The coverage is over labels at inputs drawn as those of the fit were.

    **Arguments:**

    - `fit`: a fit; `x_new`: shape (m,) or (m, dim); `level`: between 0 and 1.
    - `kind`: `"leave-one-out"` (default): residuals are those of leave-one-out, at the lengthscale
      of the fit: coverage to 1/n and the stability of the fit. `"split"`: one half of the rows,
      drawn with `key`, is fitted anew, the other gives the residuals: coverage of at least the
      level, exactly, for any n.
    - `local`: whether the width follows the noise: ŝ² is the kernel regression of the squared
      residuals. Default: one width for all, ŝ = 1.

    **Returns:** `Bands`, with infinite ones where there are too few rows for the level; where no
    label has weight, NaN.

    **Source:** Lei, G'Sell, Rinaldo, Tibshirani and Wasserman, *Distribution-free predictive
    inference for regression* (2018); Barber, Candès, Ramdas and Tibshirani, *Predictive inference
    with the jackknife+* (2021).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95; got {level!r}.")
    if fit.loss.ndim or fit.y.ndim != 1:
        raise ValueError("Conformal intervals are of one fit, with one label per row.")
    at, given = as_points("x_new", x_new), fit.objective.given()
    if kind == "leave-one-out":
        centre = fit(at)
        x, y = fit.x, fit.y
        residuals = jnp.abs(y - fit.model(x, x, y, prior=LeaveOneOutMask(), **given))
        spread, spread_new = _spread(fit, x, residuals, at, local, leave_out=True)
    elif kind == "split":
        if key is None:
            raise ValueError("A split is drawn at random: pass key=jax.random.PRNGKey(0).")
        if given:
            raise ValueError("A split with weights is not exchangeable: use leave-one-out.")
        order = jax.random.permutation(key, len(fit.x))
        half = len(fit.x) // 2
        of_fit, held = order[:half], order[half:]
        first = fit_model(fit.model, fit.x[of_fit], fit.y[of_fit], objective=fit.objective)
        centre = first(at)
        residuals = jnp.abs(fit.y[held] - first(fit.x[held]))
        own = jnp.abs(first.y - first.model(first.x, first.x, first.y, prior=LeaveOneOutMask()))
        _, of_held = _spread(first, first.x, own, fit.x[held], local, leave_out=False)
        _, spread_new = _spread(first, first.x, own, at, local, leave_out=False)
        spread = of_held
    else:
        raise ValueError(f'kind must be "leave-one-out" or "split"; got {kind!r}.')
    scores = jnp.sort(residuals / spread)  # NaN, where no other label has weight, comes last
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    rank = math.ceil((1 + len(scores)) * level)
    q = scores[rank - 1] if rank <= len(scores) else jnp.inf
    width = q * spread_new
    return Bands(at, centre, spread_new, centre - width, centre + width, level, "conformal")


def _spread(
    fit: Fit,
    x: Float[Array, "n dim"],
    residuals: Float[Array, " n"],
    at: Float[Array, "m dim"],
    local: bool,
    leave_out: bool,
) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """ŝ at the rows, each left out of its own, and at new inputs."""
    if not local:
        return jnp.ones_like(residuals), jnp.ones_like(at[:, 0])
    if not hasattr(fit.model, "kernel"):
        raise ValueError("local=True takes the kernel of the model, and it has none.")
    # a variance varies more slowly than it can be measured: twice the lengthscale, order 0
    model = KernelRegression(fit.model.kernel.stretched(2.0), on_empty="nearest")
    squares = jnp.where(jnp.isnan(residuals), 0.0, residuals) ** 2
    floor = jnp.finfo(squares.dtype).eps * jnp.mean(squares)
    prior = LeaveOneOutMask() if leave_out else None
    rows = jnp.sqrt(jnp.maximum(model(x, x, squares, prior=prior), floor))
    return rows, jnp.sqrt(jnp.maximum(model(at, x, squares), floor))
