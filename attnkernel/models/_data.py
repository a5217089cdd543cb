"""Arguments of all regressions: checks of parts, data and weights; bounds of their parts."""

import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .._core.arrays import as_points, require_finite
from .._core.pandas_frames import require_same_index
from .._core.regression_data import as_weights, is_positive, require_category_codes
from .._core.validation import require_instance
from ..kernels import Kernel, unbounded
from ..methods import Method
from ..priors import HeldOut, KeyWeights, Mask, Prior, require_prior
from ..rules import Rule


def require_parts(kernel: Any, rule: Any, method: Any) -> None:
    """Raises `ValueError` unless they are a kernel, a rule and a method."""
    require_instance("kernel", kernel, Kernel, "ak.Gaussian(0.3)")
    require_instance("rule", rule, Rule, "ak.Softmax()")
    require_instance("method", method, Method, "ak.attention.Auto()")


def read_data(
    x_new: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    weights: ArrayLike | None,
    kernel: Kernel | None = None,
    name: str = "y",
) -> tuple[Float[Array, "m dim"], Float[Array, "n dim"], Float[Array, "n out"]]:
    """Returns queries, keys and values as matrices.

    The label of a row with weight 0 is replaced by that of a row with weight, so that it cannot
    enter a mean about which sums are centred.

    **Raises:** `ValueError` unless the data are finite, one label a row, with the same index where
    they are of pandas, and valid codes in the columns of `kernel.categories`.
    """
    require_same_index(name, y, x)
    require_same_index("weights", weights, x)
    k, q, v = as_points("x", x), as_points("x_new", x_new), as_points(name, y)
    if k.shape[0] != v.shape[0]:
        raise ValueError(
            f"x and {name} must have the same number of rows; got {k.shape[0]} inputs and "
            f"{v.shape[0]} labels."
        )
    for each, rows in (("x", k), ("x_new", q), (name, v)):
        require_finite(each, rows)
    if kernel is not None and q.shape[1] == k.shape[1]:
        for each, rows in (("x", k), ("x_new", q)):
            require_category_codes(each, rows, kernel.category_counts(k.shape[1]))
    if weights is not None:
        v = _with_label_of_weighted_row(v, as_weights(weights, k.shape[0]))
    return q, k, v


@jax.jit
def _with_label_of_weighted_row(
    v: Float[Array, "n out"], weights: Float[Array, " n"] | Bool[Array, " n"]
) -> Float[Array, "n out"]:
    """Returns labels, those of rows without weight replaced by that of a row with weight."""
    has_weight = is_positive(weights)
    return jnp.where(has_weight[:, None], v, v[jnp.argmax(has_weight)][None])


def with_weights(
    prior: Prior | None, weights: ArrayLike | None, k: Float[Array, "n dim"]
) -> Prior | None:
    """Returns a prior and the weights of rows as one prior."""
    if prior is not None:
        require_prior("prior", prior)
    if weights is None:
        return prior
    weights = as_weights(weights, k.shape[0])
    if weights.dtype == bool:
        held_out = HeldOut(~weights)
        if prior is None:
            return held_out
        return prior & held_out if isinstance(prior, Mask) else prior * held_out
    row_prior = KeyWeights(_log_of_weights(weights))
    return row_prior if prior is None else prior * row_prior


@jax.jit
def _log_of_weights(weights: Float[Array, " n"]) -> Float[Array, " n"]:
    """Returns log w, -inf where w = 0, and NaN for w < 0, which only `jit` lets pass."""
    zero = weights == 0
    return jnp.where(zero, -jnp.inf, jnp.log(jnp.where(zero, 1, weights)))


def with_bounds_of(field: str, model: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
    """Returns a model at its lower and upper bounds: `bounds` of a field, all other leaves free."""
    lower, upper = unbounded(model)
    where = operator.attrgetter(field)
    return eqx.tree_at(where, lower, bounds[0]), eqx.tree_at(where, upper, bounds[1])
