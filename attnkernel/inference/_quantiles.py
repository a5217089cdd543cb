"""Quantiles of the labels at an input: a local constant fit is a distribution."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, is_concrete, require_finite
from ..attention import attention_weights
from ..attention._jit import jit_if_pure
from ..fitting._result import Fit
from ..kernels import Kernel
from ..models._regression import with_weights
from ..priors import Prior
from ..rules import Rule
from ._variance import of_regression

_PAIRS = 2**20  # at a time


def quantiles(
    fit: Fit, x_new: ArrayLike, levels: ArrayLike | Sequence[float]
) -> Float[Array, "m levels"]:
    r"""Conditional quantiles of labels, from the weights of a fit of order 0.

    $$ \hat q_p(x) = \inf \Big\{ y : \sum_{j : y_j \le y} w_j(x) \ge p \Big\}, \qquad
       \sum_j w_j(x) = 1 $$

    They are labels of the data, never cross, and do not know that weights were chosen for the mean:
    where the spread of labels changes sooner than their mean they are too smooth. About p of new
    labels at x are below, as far as labels around x are alike. Sums that are p to rounding count
    as p. Derivatives are 0.

    **Arguments:** `fit`: of a `KernelRegression` of order 0 and one pass, one label per row, with
    weights of rows or without; `x_new`: shape (m,) or (m, dim); `levels`: p, between 0 and 1, shape
    (levels,) or one number, which is one column.

    **Returns:** shape (m, levels), in the units of y; NaN where no label has weight, whatever
    `on_empty`. It takes O(m n) time, and memory for some 10⁶ weights.

    **Raises:** `ValueError` for another order or more passes, whose weights may be negative, or a
    level that is none.

    **Source:** Stone, *Consistent nonparametric regression* (1977); Yu and Jones, *Local linear
    quantile regression* (1998).
    """
    fit = of_regression(fit)
    model = fit.model
    if model.order:
        raise ValueError(
            f"Weights of a fit of order {model.order} may be negative, and their sums go up and "
            f"down: quantiles are of order 0."
        )
    if model.passes > 1:
        raise ValueError(
            f"Weights of a fit of {model.passes} passes may be negative, and their sums go up and "
            f"down: quantiles are of one pass."
        )
    if fit.y.ndim != 1:
        raise ValueError(f"Quantiles are of one label per row; y has shape {fit.y.shape}.")
    p = jnp.atleast_1d(as_real_array("levels", levels)).astype(fit.y.dtype)
    if p.ndim != 1 or (is_concrete(p) and not np.all((np.asarray(p) > 0) & (np.asarray(p) < 1))):
        raise ValueError(
            f"levels must be between 0 and 1, one or several, such as [0.1, 0.5, 0.9]; got "
            f"{levels!r}."
        )
    at = fit.inputs(x_new)
    require_finite("x_new", at)
    prior = with_weights(None, fit.objective.weight_kwargs().get("weights"), fit.x)
    return jit_if_pure(_quantiles, ((model.kernel, prior, model.rule),), at, fit.x, fit.y, p)


def _quantiles(
    parts: tuple[Kernel, Prior | None, Rule],
    q: Float[Array, "m dim"],
    x: Float[Array, "n dim"],
    y: Float[Array, " n"],
    p: Float[Array, " levels"],
) -> Float[Array, "m levels"]:
    kernel, prior, rule = parts
    order = jnp.argsort(y)
    labels = y[order]
    least = p * (1.0 - 16.0 * jnp.finfo(p.dtype).eps)

    def of_few(few: Float[Array, "few dim"]) -> Float[Array, "few levels"]:
        weights = attention_weights(few, x, kernel=kernel, prior=prior, rule=rule)[:, order]
        below = jnp.cumsum(weights, axis=1)
        total = below[:, -1:]

        def of_level(least: Float[Array, ""]) -> Float[Array, " few"]:
            # rounding may lift a sum beside a label without weight
            enough = (below >= least * total) & (weights > 0)
            return jnp.where(total[:, 0] > 0, labels[jnp.argmax(enough, axis=1)], jnp.nan)

        return jax.lax.map(of_level, least).T

    m, few = len(q), max(1, min(len(q), _PAIRS // len(x)))
    turns = jnp.pad(q, ((0, -m % few), (0, 0)), mode="edge").reshape(-1, few, q.shape[1])
    return jax.lax.map(of_few, turns).reshape(-1, len(p))[:m]
