"""Deterministic minimisation: BFGS from several starts inside a box, and the best end.

For one fit outside `jit`: starts are screened, begin on a sample if there are many rows, and
parameters without a slope are searched on grids. For several fits, or inside `jit`, all starts
take all steps; inside `jit` the result has the derivative of its minimum.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from ..objectives._rows import sorted_by_input
from ._bfgs import Bfgs
from ._chunks import History
from ._grid import search_grids
from ._implicit import implicit_minimiser, stop_gradient
from ._multistart import Searched, count_points, meet_on_sample, search_from_lowest
from ._options import Options
from ._outcome import Outcome, Result, collect
from ._problem import Data, Problem, is_on_host, take, vmap_over_fits
from ._search import advance_searches, begin_searches, run_searches

SAMPLE_TOLERANCE = 1e-5
SAMPLE_STEPS = 30  # at most; a search that still moves then is on a plateau


def minimise(model: Any, data: Data, options: Options, axes: Problem | None = None) -> Outcome:
    """Searches from every start, and returns the best end.

    `axes`: the batched axes of several fits; None: one fit.
    """
    on_host = is_on_host(model, data, options.key, options.bounds)
    if axes is None:
        data = Data(*sorted_by_input(*data))
    params = jax.tree.leaves(eqx.filter(model, options.trainable))
    tolerance = float(min(jnp.finfo(leaf.dtype).eps for leaf in params)) ** 0.6
    if on_host and axes is None:
        size = sum(leaf.size for leaf in params)
        return _minimise_screened(model, data, options, tolerance, size)
    fits = None if axes is None or options.key is None else len(options.key)
    state, frozen, box = begin_searches(model, data.x, options.space, axes, fits)
    problem, begin = Problem(frozen, *data, box), state.z
    if on_host:
        end, history = run_searches(state, problem, options, tolerance, axes=axes)
        history = jax.tree.map(jnp.asarray, history)
    else:
        fixed, constant = stop_gradient(state), stop_gradient(problem)
        end, history = advance_searches(
            fixed, constant, tolerance, options.record, options.steps, axes
        )
    return _finish(begin, end, history, problem, axes, not on_host, None)


def _minimise_screened(
    model: Any, data: Data, options: Options, tolerance: float, size: int
) -> Outcome:
    """One fit on the host, of a model with `size` parameters."""
    number = options.starts
    is_screened = number > 1 and size > 1
    space = options.space._replace(starts=count_points(number, size) if is_screened else number)
    state, frozen, box = begin_searches(model, data.x, space)
    problem = Problem(frozen, *data, box)
    if box is None or not box.binds():  # all starts are the same
        number, is_screened, state = 1, False, take(slice(1), state)

    def search(problem: Problem, options: Options, tolerance: float) -> Searched:
        if is_screened:
            return search_from_lowest(state, problem, options, tolerance, number)
        return Searched(state.z, *run_searches(state, problem, options, tolerance))

    sample = data.objective.subsample(problem.x, problem.y, number)
    if sample is None:
        begin, end, history = search(problem, options, tolerance)
    else:
        on_sample = problem._replace(**sample._asdict())
        steps = min(options.steps, SAMPLE_STEPS)
        silent = options._replace(steps=steps, chunk=steps, record=None, callback=None)
        begin, end, history = search(on_sample, silent, max(tolerance, SAMPLE_TOLERANCE))
        met, followed = meet_on_sample(end, history, problem, sample)
        end, history = run_searches(met, problem, options, tolerance, followed=followed)
        if np.any(end.diverged):  # the minima of the sample are outside the domain of all rows
            fresh = jax.vmap(Bfgs.start)(begin)
            end, history = run_searches(fresh, problem, options, tolerance)
    flat = None
    if box is not None:
        alone = lambda state: run_searches(state, problem, options, tolerance)[0]  # noqa: E731
        end, history, flat = search_grids(begin, end, history, problem, alone)
    history = jax.tree.map(jnp.asarray, history)
    return _finish(begin, end, history, problem, None, False, flat)


@eqx.filter_jit
def _finish(
    begin: PyTree,
    end: Bfgs,
    history: History,
    problem: Problem,
    axes: Problem | None,
    implicit: bool,
    flat: Array | np.ndarray | None,
) -> Outcome:
    """Returns the result of all starts and the best of them.

    `flat`: which parameters have no slope. None: those that no start has moved.
    """

    def finish(begin: PyTree, end: Bfgs, history: History, problem: Problem) -> Outcome:
        without, no_slope = None, False
        if (box := problem.box) is not None:
            none = _unmoved(begin, end, problem) if flat is None else flat
            without = jax.vmap(lambda _: _unravel_flags(box.lower, none))(end.loss)
            no_slope = jnp.any(none)
        result = jnp.where(end.converged, Result.CONVERGED, Result.MAX_STEPS)
        result = jnp.where(no_slope, Result.NO_SLOPE, result)
        result = jnp.where(end.diverged, Result.DIVERGED, result)
        loss = history["loss"][:, -1]
        out = collect(problem, begin, end.z, loss, end.steps, result, history, without)
        if not implicit:
            return out
        best = jnp.argmin(jnp.where(jnp.isfinite(loss), loss, jnp.inf))
        z = implicit_minimiser(take(best, end.z), problem)
        return out._replace(model=problem.model(z), loss=problem.loss(z))

    return vmap_over_fits(finish, axes, 3)(begin, end, history, problem)


def _unmoved(begin: PyTree, end: Bfgs, problem: Problem) -> Array:
    """Which bounded parameters no start has moved, with zero gradient at all ends."""
    assert problem.box is not None
    flatten = jax.vmap(lambda z: ravel_pytree(z)[0])
    unmoved = (end.gradient == 0) & (flatten(end.z) == flatten(begin))
    bounded = jnp.isfinite(ravel_pytree(problem.box.lower)[0])
    # a single start may have begun at the minimum itself
    return jnp.all(unmoved, axis=0) & bounded & (len(end.loss) > 1)


def _unravel_flags(like: Any, flat: ArrayLike) -> Any:
    """Returns a vector of Booleans as a tree with the shapes of another."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = jnp.split(jnp.asarray(flat), ends[:-1])
    shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)
