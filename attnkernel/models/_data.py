"""Arguments of all regressions: checks of parts; weights of rows in priors; bounds of parts."""

import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.rows import Rows
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


def with_weights(prior: Prior | None, rows: Rows) -> Prior | None:
    """Returns a prior and the weights of rows as one prior."""
    if prior is not None:
        require_prior("prior", prior)
    weights = rows.weights
    if weights is None:
        return prior
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
