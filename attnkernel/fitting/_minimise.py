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
from jaxtyping import Array, PRNGKeyArray, PyTree

from .._core.arrays import is_on_host
from ._bfgs import Bfgs
from ._chunks import History
from ._grid import find_unmoved, search_grids
from ._options import Options
from ._outcome import Outcome, Result, collect_outcome
from ._problem import Data, Problem, build_problem, take, vmap_over_fits
from ._search import Searched, Searches, count_points


def minimise(model: Any, data: Data, options: Options, axes: Problem | None = None) -> Outcome:
    """Searches from every start, and returns the best end.

    `axes`: the batched axes of several fits; None: one fit.
    """
    on_host = is_on_host(model, data, options.key, options.bounds)
    params = jax.tree.leaves(eqx.filter(model, options.trainable))
    tolerance = float(min(jnp.finfo(leaf.dtype).eps for leaf in params)) ** 0.6
    number, size = options.starts, sum(leaf.size for leaf in params)
    is_screened = on_host and axes is None and number > 1 and size > 1
    points = count_points(number, size) if is_screened else number
    state, problem = build_problem(
        model, data, options._replace(starts=points), _start_search, axes
    )
    searches, without_slope = Searches(problem, options, tolerance, axes), None
    if not on_host:
        constant = searches._replace(problem=_stop_gradients(problem))
        end, history = constant.advance(_stop_gradients(state), options.steps)
        searched = Searched(state.z, end, history)
    elif axes is not None:
        searched = searches.run(state)
    else:
        searched, without_slope = _search_one_fit(searches, state, number, data)
    begin, end, history = searched
    history = jax.tree.map(jnp.asarray, history)
    return _outcome_of_searches(begin, end, history, problem, axes, not on_host, without_slope)


def _start_search(z: PyTree, key: PRNGKeyArray | None) -> Bfgs:
    """Returns the initial state of a search; the random key is not used."""
    return Bfgs.start(z)


def _search_one_fit(
    searches: Searches, state: Bfgs, number: int, data: Data
) -> tuple[Searched, np.ndarray | None]:
    """Runs the searches of a single fit; returns them and which parameters have zero slope.

    `state`: the initial states of all points; `number`: how many of them are searched from;
    `data`: the rows that were given, without padding.
    """
    problem = searches.problem
    if problem.box is None or not problem.box.binds():  # all starts are the same
        number, state = 1, take(slice(1), state)
    sample = data.objective.subsample(data.x, data.y, number)
    if sample is None:
        searched = searches.run_lowest(state, number)
    else:
        searched = searches.run_from_sample(state, number, sample)
    return (searched, None) if problem.box is None else search_grids(searched, searches)


@eqx.filter_jit
def _outcome_of_searches(
    begin: PyTree,
    end: Bfgs,
    history: History,
    problem: Problem,
    axes: Problem | None,
    implicit: bool,
    without_slope: Array | np.ndarray | None,
) -> Outcome:
    """Returns the `Outcome` of the searches: the results of all starts, and the best of them.

    `begin`: the initial free variables; `end`: the final states; `axes`: the batched axes of fits;
    `implicit`: whether the best model has the derivatives of a minimiser.
    `without_slope`: which parameters the objective has no slope in. None: those that no
    start has moved.
    """

    def finish(begin: PyTree, end: Bfgs, history: History, problem: Problem) -> Outcome:
        tree, no_slope = None, False
        if (box := problem.box) is not None:
            flags = without_slope
            if flags is None:  # a single start may have begun at the minimum itself
                flags = find_unmoved(begin, end, box, jnp) & (len(end.loss) > 1)
            tree = jax.vmap(lambda _: _unravel_flags(box.lower, flags))(end.loss)
            no_slope = jnp.any(flags)
        stopped = jnp.where(end.steps >= end.max_steps, Result.DROPPED, Result.MAX_STEPS)
        result = jnp.where(end.converged, Result.CONVERGED, stopped)
        result = jnp.where(no_slope, Result.NO_SLOPE, result)
        result = jnp.where(end.diverged, Result.DIVERGED, result)
        loss = history["loss"][:, -1]
        out = collect_outcome(problem, begin, end.z, loss, end.steps, result, history, tree)
        if not implicit:
            return out
        best = jnp.argmin(jnp.where(jnp.isfinite(loss), loss, jnp.inf))
        z = _implicit_minimiser(take(best, end.z), problem)
        return out._replace(model=problem.model(z), loss=problem.loss(z))

    return vmap_over_fits(finish, axes, 3)(begin, end, history, problem)


def _unravel_flags(like: Any, flat: ArrayLike) -> Any:
    """Returns the Booleans `flat`, one per entry of `like`, as a tree of the same structure."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = jnp.split(jnp.asarray(flat), ends[:-1])
    shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def _implicit_minimiser(z: Any, problem: Problem) -> Any:
    r"""Returns z, a minimum of the loss L, with the derivative that a minimiser has.

    $$ \mathrm{d} z = -\big(\nabla^2_z L\big)^{+}\, \mathrm{d} \nabla_z L $$

    to first order, in forward and reverse mode.
    """
    z, fixed = _stop_gradients((z, problem))
    flat, unravel = ravel_pytree(z)

    def slope(flat: Array, problem: Problem) -> Array:
        return jax.grad(lambda flat: problem.loss(unravel(flat)))(flat)

    hessian = jax.jacrev(slope)(flat, fixed)
    slope_here = slope(flat, problem)
    change = slope_here - jax.lax.stop_gradient(slope_here)  # 0, with the derivative of the slope
    return unravel(flat - jnp.linalg.pinv(hessian, hermitian=True) @ change)


def _stop_gradients(tree: Any) -> Any:
    """Returns the tree with `jax.lax.stop_gradient` applied to its arrays."""
    return jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, tree
    )
