"""Deterministic minimisation: BFGS from several starts inside a box, and the best end.

For one fit outside `jit`: starts are screened, begin on a sample if there are many rows, and
parameters without a slope are searched on grids. For several fits, or inside `jit`, all starts
take all steps; inside `jit` the result has the derivative of its minimum.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .._core.arrays import as_numpy_if_concrete, is_on_host, namespace_of
from .._core.tracing import stop_gradients
from ..objectives import Sample
from ._bfgs import Bfgs
from ._chunks import History
from ._grid import find_unmoved, search_grids
from ._options import Options
from ._outcome import Outcome, Result, collect_outcome
from ._problem import Problem, build_problem, take, unravel_rows, vmap_over_fits
from ._search import Searches, count_points


def minimise(model: Any, data: Sample, options: Options, axes: Problem | None = None) -> Outcome:
    """Searches from every start, and returns the best end.

    `axes`: the batched axes of several fits; None: one fit.
    """
    searches = prepare_searches(model, data, options, axes)
    problem = searches.problem
    if not is_on_host(model, data, options.key, options.bounds):
        constant = searches._replace(problem=stop_gradients(problem))
        end, history = constant.advance(stop_gradients(searches.start()), options.steps)
        return _outcome_of_fits(searches.z, end, history, problem, axes, True)
    if axes is not None:
        begin, end, history = searches.run(searches.start())
        return _outcome_of_fits(begin, end, history, problem, axes, False)
    sample, without_slope = data.objective.subsample(data.x, data.y, searches.number), None
    found = searches.run_lowest() if sample is None else searches.run_from_sample(sample)
    if problem.box is not None:
        found, without_slope = search_grids(found, searches)
    begin, end, history = as_numpy_if_concrete(found)
    return _collect_searches(begin, end, history, problem, without_slope)


def prepare_searches(
    model: Any, data: Sample, options: Options, axes: Problem | None = None
) -> Searches:
    """Returns the searches of a fit: their problem, and the points from which they begin.

    Outside `jit`, a single fit of several parameters has more points than starts.
    """
    params = jax.tree.leaves(eqx.filter(model, options.trainable))
    tolerance = float(min(jnp.finfo(leaf.dtype).eps for leaf in params)) ** 0.6
    size, is_single = sum(leaf.size for leaf in params), axes is None
    is_single &= is_on_host(model, data, options.key, options.bounds)
    points = options.starts
    if is_single and points > 1 and size > 1:
        points = count_points(points, size)
    z, problem = build_problem(model, data, options._replace(starts=points), axes)
    if is_single and (problem.box is None or not problem.box.binds()):  # all starts are the same
        z = take(slice(1), z)
    return Searches(problem, options, tolerance, z, axes)


@eqx.filter_jit
def _outcome_of_fits(
    begin: PyTree,
    end: Bfgs,
    history: History,
    problem: Problem,
    axes: Problem | None,
    implicit: bool,
) -> Outcome:
    """Returns the `Outcome` of searches that all took all steps, of one fit or of several.

    `axes`: the batched axes of fits; `implicit`: whether the best model has the derivatives of a
    minimiser; other arguments as for `_collect_searches`.
    """

    def finish(begin: PyTree, end: Bfgs, history: History, problem: Problem) -> Outcome:
        without_slope = None
        if problem.box is not None:  # a single start may have begun at the minimum itself
            without_slope = find_unmoved(begin, end, problem.box, jnp) & (len(end.loss) > 1)
        out = _collect_searches(begin, end, history, problem, without_slope)
        if not implicit:
            return out
        best = jnp.argmin(jnp.where(jnp.isfinite(out.starts.loss), out.starts.loss, jnp.inf))
        z = _implicit_minimiser(take(best, end.z), problem)
        return out._replace(model=problem.model(z), loss=problem.loss(z))

    return vmap_over_fits(finish, axes, 3)(begin, end, history, problem)


def _collect_searches(
    begin: PyTree, end: Bfgs, history: History, problem: Problem, without_slope: Any
) -> Outcome:
    """Returns the `Outcome` of the searches of one fit; nothing is compiled if they are NumPy.

    `begin`: the initial free variables; `end`: the final states; `without_slope`: which parameters
    the objective has no slope in, None without bounds.
    """
    xp, tree = namespace_of(end.loss), None
    stopped = xp.where(end.steps >= end.max_steps, Result.PRUNED, Result.MAX_STEPS)
    result = xp.where(end.converged, Result.CONVERGED, stopped)
    if problem.box is not None:
        tree = unravel_rows(xp.stack([without_slope] * len(end.loss)), problem.box.lower, xp)
        result = xp.where(xp.any(without_slope), Result.NO_SLOPE, result)
    result = xp.where(end.diverged, Result.DIVERGED, result)
    loss = history["loss"][:, -1]
    return collect_outcome(problem, begin, end.z, loss, end.steps, result, history, tree)


def _implicit_minimiser(z: Any, problem: Problem) -> Any:
    r"""Returns z, a minimum of the loss L, with the derivative that a minimiser has.

    $$ \mathrm{d} z = -\big(\nabla^2_z L\big)^{+}\, \mathrm{d} \nabla_z L $$

    to first order, in forward and reverse mode.
    """
    z, fixed = stop_gradients((z, problem))
    flat, unravel = ravel_pytree(z)

    def slope(flat: Array, problem: Problem) -> Array:
        return jax.grad(lambda flat: problem.loss(unravel(flat)))(flat)

    hessian = jax.jacrev(slope)(flat, fixed)
    slope_here = slope(flat, problem)
    change = slope_here - jax.lax.stop_gradient(slope_here)  # 0, with the derivative of the slope
    return unravel(flat - jnp.linalg.pinv(hessian, hermitian=True) @ change)
