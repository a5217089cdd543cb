"""Rows of a data set: their order by input, and those with zero weight."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._core.arrays import is_concrete
from ._objective import Objective


def input_order(x: Float[Array, "n dim"]) -> Int[Array, " n"]:
    """Returns the indices that sort the rows by their first input, ties by the next ones."""
    if is_concrete(x):  # NumPy sorts many times faster than XLA
        return jnp.asarray(np.lexsort(np.asarray(x).T[::-1]))
    return jnp.lexsort(jax.lax.stop_gradient(x.T[::-1]))


def sorted_by_input(
    x: Float[Array, "n dim"], y: Array, objective: Objective
) -> tuple[Float[Array, "n dim"], Array, Objective]:
    """Sorts the rows, and their weights, by input, so that neighbours are adjacent.

    A deterministic objective keeps its value; streaming sums then skip blocks of distant pairs.
    """
    order = input_order(x)
    if objective.weights is not None:
        objective = objective.with_weights(jnp.take(objective.weights, order))
    return jnp.take(x, order, axis=0), jnp.take(y, order, axis=0), objective


def drop_zero_weight_rows(
    x: Float[Array, "n dim"], y: Array, objective: Objective
) -> tuple[Float[Array, "rows dim"], Array, Objective]:
    """Keeps the rows with positive weight.

    Inside `jit` or `vmap`, where weights are traced, all rows stay.
    """
    weights = objective.weights
    if weights is None or not is_concrete(weights) or not len(weights) == len(x) == len(y):
        return x, y, objective
    rows = np.flatnonzero(np.asarray(weights) > 0)
    if len(rows) == len(x):
        return x, y, objective
    x, y, weights = (jnp.take(part, rows, axis=0) for part in (x, y, weights))
    return x, y, objective.with_weights(weights)
