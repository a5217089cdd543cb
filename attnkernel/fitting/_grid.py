r"""Grid search along parameters in which a criterion has no slope.

The weights of a `Boxcar` are 0 or 1: a criterion is piecewise constant in its lengthscale, and
jumps where a distance between two points is passed. A descent does not leave its start.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from .._core.arrays import as_numpy_if_concrete
from ._bfgs import Bfgs
from ._bounds import Box
from ._problem import flat_rows, take, unravel_rows
from ._search import Searches, SearchResult


def search_grids(
    searched: SearchResult, searches: Searches
) -> tuple[SearchResult, Bool[np.ndarray, " params"]]:
    """Moves the best end along parameters without a slope; returns which parameters these are.

    With several parameters, grids along those and a search along the others alternate until
    nothing is gained.
    """
    (begin, end, history), box = as_numpy_if_concrete(searched), searches.problem.box
    assert box is not None
    without_slope = find_unmoved(begin, end, box)
    if not np.any(without_slope):
        return searched, without_slope
    loss = np.where(np.isfinite(end.loss), end.loss, np.inf)
    best = int(np.argmin(loss))
    state, loss = take(best, end), loss[best]
    max_rounds = 4  # of a grid along some parameters and a search along the others
    for _ in range(max_rounds):
        z, least, without_slope = _grid_minimum(state.z, without_slope, searches)
        if not least < loss:
            break
        state, loss = state._replace(z=z, loss=np.asarray(least)), least
        if len(without_slope) == 1:
            break
        # one search; the others are stopped, so that the compiled program is the same
        number = searches.number
        several = Bfgs.start(take(np.zeros(number, int), unravel_rows(flat_rows(z, 0)[None], z)))
        several = several._replace(converged=np.arange(number) > 0)
        found = take(0, searches.run(several).end)
        if found.loss < loss:
            state, loss = found, found.loss
    end = jax.tree.map(lambda leaf, one: _with_entry(leaf, best, one), end, state)
    losses = np.array(history["loss"])
    losses[best, -1] = state.loss
    return SearchResult(begin, end, history | {"loss": losses}), without_slope


def find_unmoved(begin: Any, end: Bfgs, box: Box, xp: Any = np) -> Any:
    """Returns which bounded parameters no start has moved, with zero gradient at all ends.

    `xp` is `jax.numpy` for traced arrays.
    """
    is_still = flat_rows(begin, 1, xp) == flat_rows(end.z, 1, xp)
    unmoved = xp.all(is_still & (xp.asarray(end.gradient) == 0), axis=0)
    low, high = (flat_rows(side, 0, xp) for side in (box.lower, box.upper))
    return unmoved & xp.isfinite(low) & (low < high)


def _grid_minimum(
    z: Any, which: Bool[np.ndarray, " params"], searches: Searches
) -> tuple[Any, float, Bool[np.ndarray, " params"]]:
    """Minimises the loss over a grid along each flagged parameter, one after the other.

    `z`: free variables (see `Box`); `which`: the flags, one per parameter.

    **Returns:** free variables; the loss there; which parameters have a loss that varies over
    their grid with zero slope at all of its points.
    """
    point, without = flat_rows(z, 0).copy(), np.zeros(len(which), bool)
    least = np.inf
    grid_levels = 256  # over the whole box, evenly in the parameter (a lengthscale: its logarithm)
    levels = np.linspace(-1.0, 1.0, grid_levels)
    refined_levels = 8  # the best levels, around which the grid is refined
    refinement = 16  # finer levels on each side
    for j in map(int, np.flatnonzero(which)):
        values, slopes = _loss_along_parameter(point, j, levels, searches)
        without[j] = np.all(slopes == 0) and len(np.unique(values[np.isfinite(values)])) > 1
        if not without[j]:
            continue
        best = np.argsort(values)[:refined_levels]
        step = levels[1] - levels[0]
        finer = levels[best][:, None] + step * np.linspace(-1.0, 1.0, 2 * refinement + 1)
        finer = np.clip(np.unique(finer), -1.0, 1.0)
        found, _ = _loss_along_parameter(point, j, finer, searches)
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
    return take(0, unravel_rows(point[None], z)), least, without


def _loss_along_parameter(
    point: np.ndarray, j: int, levels: np.ndarray, searches: Searches
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the losses and the derivatives by parameter j along a line, each of shape (levels,).

    `point`: free variables, shape (params,), of which the j-th is replaced; `levels`: its places
    between the bounds, −1 the lower and 1 the upper.
    """
    points = np.broadcast_to(point, (len(levels), len(point))).copy()
    points[:, j] = np.arcsin(levels)
    values, slopes = searches.losses_and_gradients(points)
    return values, slopes[:, j]


def _with_entry(array: Any, i: int, entry: Any) -> np.ndarray:
    """Returns a copy of the array with another entry i."""
    copy = np.array(array)
    copy[i] = entry
    return copy
