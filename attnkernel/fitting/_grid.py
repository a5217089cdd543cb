r"""Grid search along parameters in which a criterion has no slope.

The weights of a `Boxcar` are 0 or 1: a criterion is piecewise constant in its lengthscale, and
jumps where a distance between two points is passed. A descent does not leave its start.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from ._bfgs import Bfgs
from ._bounds import Box
from ._problem import Problem, flat_rows, take
from ._search import Searched, Searches

GRID_LEVELS = 256  # over the whole box, evenly in the parameter (a lengthscale: its logarithm)
REFINED_LEVELS = 8  # the best levels, around which the grid is refined
REFINEMENT = 16  # finer levels on each side
MAX_ROUNDS = 4  # of a grid along some parameters and a search along the others


def search_grids(
    searched: Searched, searches: Searches
) -> tuple[Searched, Bool[np.ndarray, " params"]]:
    """Moves the best end along parameters without a slope; returns which parameters these are.

    With several parameters, grids along those and a search along the others alternate until
    nothing is gained.
    """
    (begin, end, history), problem = searched, searches.problem
    assert problem.box is not None
    without_slope = find_unmoved(begin, end, problem.box)
    if not np.any(without_slope):
        return searched, without_slope
    loss = np.where(np.isfinite(end.loss), end.loss, np.inf)
    best = int(np.argmin(loss))
    state, loss = take(best, end), loss[best]
    for _ in range(MAX_ROUNDS):
        z, least, without_slope = _grid_minimum(state.z, without_slope, problem)
        if not least < loss:
            break
        state, loss = state._replace(z=z, loss=jnp.asarray(least)), least
        if len(without_slope) == 1:
            break
        # one search; the others are stopped, so that the compiled program is the same
        several = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(end.steps)), Bfgs.start(z))
        several = several._replace(converged=jnp.arange(len(end.steps)) > 0)
        found = take(0, searches.run(several).end)
        if found.loss < loss:
            state, loss = found, found.loss
    end = jax.tree.map(lambda leaf, one: jnp.asarray(leaf).at[best].set(one), end, state)
    losses = np.array(history["loss"])
    losses[best, -1] = state.loss
    return Searched(begin, end, history | {"loss": losses}), without_slope


def find_unmoved(begin: Any, end: Bfgs, box: Box, xp: Any = np) -> Any:
    """Returns which bounded parameters no start has moved, with zero gradient at all ends.

    `xp` is `jax.numpy` for traced arrays.
    """
    is_still = flat_rows(begin, 1, xp) == flat_rows(end.z, 1, xp)
    unmoved = xp.all(is_still & (xp.asarray(end.gradient) == 0), axis=0)
    low, high = (flat_rows(side, 0, xp) for side in (box.lower, box.upper))
    return unmoved & xp.isfinite(low) & (low < high)


def _grid_minimum(
    z: Any, which: Bool[np.ndarray, " params"], problem: Problem
) -> tuple[Any, float, Bool[np.ndarray, " params"]]:
    """Minimises the loss over a grid along each flagged parameter, one after the other.

    `z`: free variables (see `Box`); `which`: the flags, one per parameter.

    **Returns:** free variables; the loss there; which parameters have a loss that varies over
    their grid with zero slope at all of its points.
    """
    flat, unravel = ravel_pytree(z)
    point, without = np.array(flat), np.zeros(len(which), bool)
    least = np.inf
    levels = np.linspace(-1.0, 1.0, GRID_LEVELS)
    for j in map(int, np.flatnonzero(which)):
        values, slopes = _loss_along_parameter(point, j, levels, unravel, problem)
        without[j] = np.all(slopes == 0) and len(np.unique(values[np.isfinite(values)])) > 1
        if not without[j]:
            continue
        best = np.argsort(values)[:REFINED_LEVELS]
        step = levels[1] - levels[0]
        finer = levels[best][:, None] + step * np.linspace(-1.0, 1.0, 2 * REFINEMENT + 1)
        finer = np.clip(np.unique(finer), -1.0, 1.0)
        padding = REFINED_LEVELS * (2 * REFINEMENT + 1) - len(finer)  # one shape, one program
        finer = np.append(finer, np.full(padding, 1.0))
        found, _ = _loss_along_parameter(point, j, finer, unravel, problem)
        values, places = np.append(values, found), np.append(levels, finer)
        order = np.argsort(places)
        values, places = values[order], places[order]
        # the middle of the widest interval on which the loss is least
        is_least = values == np.min(values)
        edges = np.flatnonzero(np.diff(np.r_[False, is_least, False]))
        first, last = edges[::2], edges[1::2] - 1
        run = np.argmax(places[last] - places[first])
        point[j] = np.arcsin(0.5 * (places[first[run]] + places[last[run]]))
        least = float(np.min(values))
    return unravel(jnp.asarray(point)), least, without


def _loss_along_parameter(
    point: np.ndarray, j: int, levels: np.ndarray, unravel: Any, problem: Problem
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the losses and the derivatives by parameter j along a line, each of shape (levels,).

    `point`: free variables, shape (params,), of which the j-th is replaced; `levels`: its places
    between the bounds, −1 the lower and 1 the upper; `unravel`: from a vector to the tree.
    """
    points = np.broadcast_to(point, (len(levels), len(point))).copy()
    points[:, j] = np.arcsin(levels)
    values, slopes = jax.device_get(_losses_and_gradients(jnp.asarray(points), unravel, problem))
    return np.where(np.isfinite(values), values, np.inf), slopes[:, j]


@eqx.filter_jit
def _losses_and_gradients(
    points: Float[Array, "points params"], unravel: Any, problem: Problem
) -> tuple[Float[Array, " points"], Float[Array, "points params"]]:
    """Returns the loss and its gradient at each row of `points`, vectors of free variables.

    `unravel`: from a vector to the tree of free variables.
    """
    return jax.lax.map(jax.value_and_grad(lambda flat: problem.loss(unravel(flat))), points)
