"""Rows of a data set: their order by input, and those with zero weight."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._core.host_arrays import index_on_host, is_concrete, is_on_one_device
from .._core.row_buckets import pad_rows
from ..models import Smoother
from ._objective import Objective


def input_order(x: Float[Array, "n dim"]) -> Int[Array, " n"]:
    """Returns the indices that sort the rows by their first input, ties by the next ones."""
    if is_concrete(x):  # NumPy sorts many times faster than XLA
        return jax.device_put(np.lexsort(np.asarray(x).T[::-1]))
    return jnp.lexsort(jax.lax.stop_gradient(x.T[::-1]))


def sorted_by_input(
    x: Float[Array, "n dim"], y: Array, objective: Objective
) -> tuple[Float[Array, "n dim"], Array, Objective]:
    """Sorts the rows, and their weights, by input, so that neighbours are adjacent.

    A deterministic objective keeps its value; streaming sums then skip blocks of distant pairs.
    """
    rows = input_order(x)
    return index_on_host(x, rows), index_on_host(y, rows), objective.with_rows(rows)


def pad_data(
    model: Any,
    x: Float[Array, "*batch n dim"],
    y: Float[Array, "*rows"],
    objective: Objective,
    objectives: int | None = None,
) -> tuple[Float[Array, "*batch rows dim"], Float[Array, "*padded"], Objective]:
    """Returns data with rows of weight 0 appended, up to a `bucket_size`.

    Unchanged where the model or the objective may read such rows, and inside `jit`. `objectives`:
    how many are stacked along the leading axis of the arrays of `objective`; None: it is one.
    """
    can_pad = isinstance(model, Smoother) and model.can_pad_rows and objective.can_pad_rows
    if not (can_pad and is_on_one_device(model, x, y, objective)):
        return x, y, objective
    axis, n = x.ndim - 2, x.shape[-2]
    x, y, weights = pad_rows(x, y, objective.weights, axis=axis)
    if weights is None:
        return x, y, objective
    if x.shape[-2] > n:
        objective = objective.with_rows(np.minimum(np.arange(x.shape[-2]), n - 1))
    if objectives is not None and objective.weights is None:
        weights = jax.device_put(np.tile(np.asarray(weights), (objectives, 1)))
    return x, y, objective.with_weights(weights)


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
    return index_on_host(x, rows), index_on_host(y, rows), objective.with_rows(rows)
