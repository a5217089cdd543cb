"""Deterministic minimisation: BFGS from several starts inside a box, and the best end.

For one fit outside `jit`: starts are screened, begin on a sample if there are many rows, and
parameters without a slope are searched on grids. For several fits, or inside `jit`, no
start is dropped; inside `jit` the result has the derivative of its minimum.

The grids are for criteria such as those of a `Boxcar`, whose weights are 0 or 1: they are piecewise
constant in the lengthscale, and jump where a distance between two points is passed. A descent does
not leave its start.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from .._core.arrays import AnyArray, as_numpy_if_concrete, is_outside_jit, namespace_of, to_jax
from .._core.tracing import stop_gradients
from ..attention import Auto, Selection, select_method
from ..methods import Blockwise, Dense
from ..models import KernelRegression
from ..objectives import LeaveOneOut, Penalised, Sample, name_compared_rows
from ..priors import ExcludeSelf, KeyWeights
from ._bfgs import Bfgs
from ._bounds import Box
from ._options import Options
from ._outcome import Outcome, Result, collect_outcome
from ._problem import History, Problem, build_problem, flat_rows, take, unravel_rows, vmap_over_fits
from ._search import Searches, SearchResult


class SearchedSample(NamedTuple):
    """The searches on a sample of the rows of one fit, and their result, `found`."""

    found: SearchResult
    searches: Searches

    @property
    def model(self) -> Any:
        """The model where the search with the lowest finite loss ended."""
        end = as_numpy_if_concrete(self.found.end)
        best = np.argmin(np.where(np.isfinite(end.loss), end.loss, np.inf))
        return to_jax(take(best, self.searches.problem.models(end.z)))


def search_sample(model: Any, data: Sample, options: Options) -> SearchedSample | None:
    """Runs the searches of one fit on a sample of its rows, and returns them with their result.

    None inside `jit`, and if the objective has no sample (`Objective.subsample`), as for few rows.
    """
    if not is_outside_jit(model, data, options.key, options.bounds):
        return None
    searches = prepare_searches(model, data, options)
    sample = data.objective.subsample(data.x, data.y, searches.num_searches)
    if sample is None:
        return None
    searches = searches.of_sample(sample)
    return SearchedSample(searches.run_lowest(), searches)


def minimise(
    model: Any,
    data: Sample,
    options: Options,
    axes: Problem | None = None,
    sampled: SearchedSample | None = None,
) -> Outcome:
    """Searches from several starts, and returns their `Outcome`, whose model is the best end.

    `axes`: the batched axes of several fits; None: one fit. `sampled`: the result of
    `search_sample`, from whose minima the searches of one fit begin.
    """
    searches = prepare_searches(model, data, options, axes)
    problem = searches.problem
    if not is_outside_jit(model, data, options.key, options.bounds):
        constant = searches._replace(problem=stop_gradients(problem))
        end, history = constant.advance(stop_gradients(searches.start()), options.steps)
        return _outcome_of_fits(searches.z, end, history, problem, axes, True)
    if axes is not None:
        begin, end, history = searches.run(searches.start())
        return _outcome_of_fits(begin, end, history, problem, axes, False)
    found = searches.run_lowest() if sampled is None else searches.run_from_sample(*sampled)
    without_slope = None
    if problem.box is not None:
        found, without_slope = search_grids(found, searches)
    begin, end, history = as_numpy_if_concrete(found)
    return _collect_searches(begin, end, history, problem, without_slope)


def prepare_searches(
    model: Any, data: Sample, options: Options, axes: Problem | None = None
) -> Searches:
    """Returns the searches of a fit: their problem, and the points from which they begin.

    Outside `jit`, a single fit of several parameters and several starts has more points than
    starts. Without finite bounds it has one point. `axes`: as for `minimise`.
    """
    params = jax.tree.leaves(eqx.filter(model, options.trainable))
    tolerance = float(min(jnp.finfo(leaf.dtype).eps for leaf in params)) ** 0.6
    size, is_single = sum(leaf.size for leaf in params), axes is None
    is_single &= is_outside_jit(model, data, options.key, options.bounds)
    points = options.starts
    if is_single and points > 1 and size > 1:
        points = max(4 * points, min(32 * size, 256))  # of which the lowest are chosen
    data = name_compared_rows(model, data) if is_single else data
    z, problem = build_problem(model, data, options._replace(starts=points), axes)
    # all starts are the same
    if is_single and (problem.box is None or not problem.box.has_bounds()):
        z = take(slice(1), z)
    is_on_line = is_single and data.x.shape[-1] == 1
    is_on_line &= isinstance(data.objective, LeaveOneOut | Penalised)  # sums of folds are of pairs
    is_on_line = is_on_line and not sums_all_pairs(model, data.x, data.objective.weights)
    return Searches(problem, options, tolerance, z, axes, is_on_line)


def loss_at(model: Any, data: Sample, options: Options) -> float:
    """Returns the objective at the parameters of a model; infinite if it or its gradient is not
    finite.

    No search is run, but the compiled step of a search evaluates the objective, so that nothing
    else is compiled. Parameters outside their bounds, or within 1 % of the half-width of one, are
    first moved inside (`Box.unconstrain`).
    """
    searches = prepare_searches(model, data, options)
    return float(searches.losses_and_gradients(flat_rows(searches.z)[:1])[0][0])


@eqx.filter_jit
def _outcome_of_fits(
    begin: PyTree,
    end: Bfgs,
    history: History,
    problem: Problem,
    axes: Problem | None,
    implicit: bool,
) -> Outcome:
    """Returns the `Outcome` of searches of which none was pruned, of one fit or of several.

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


def search_grids(
    searched: SearchResult, searches: Searches
) -> tuple[SearchResult, Bool[np.ndarray, " params"]]:
    """Moves the best end along parameters in which the objective has no slope, by grids.

    Returns the result with that end replaced, and a Boolean per parameter: True if the objective
    has no slope in it. The problem must have a box.
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
    silent = searches._replace(options=searches.options._replace(callback=None))
    for _ in range(4):  # at most so often a grid along some parameters, a search along the others
        z, least, without_slope = _grid_minimum(state.z, without_slope, searches)
        if not least < loss:
            break
        state, loss = state._replace(z=z, loss=np.asarray(least)), least
        if len(without_slope) == 1:
            break
        # one search; the others are stopped, so that the compiled program is the same
        number = searches.num_searches
        several = Bfgs.start(take(np.zeros(number, int), unravel_rows(flat_rows(z, 0)[None], z)))
        several = several._replace(converged=np.arange(number) > 0)
        found = take(0, silent.run(several).end)
        if found.loss < loss:
            state, loss = found, found.loss
    replaced = lambda leaf, one: np.concatenate([leaf[:best], [one], leaf[best + 1 :]])  # noqa: E731
    end = jax.tree.map(replaced, end, state)
    losses = np.array(history["loss"])
    losses[best, -1] = state.loss
    return SearchResult(begin, end, history | {"loss": losses}), without_slope


def find_unmoved(begin: Any, end: Bfgs, box: Box, xp: Any = np) -> Any:
    """Returns, for each parameter, whether it is bounded and no search moved it, with zero gradient
    at all ends.

    `begin`: the initial free variables; `end`: the final states.
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

    A parameter keeps its value unless its loss varies over the grid, with zero slope at each point.

    `z`: free variables (see `Box`); `which`: the flags, one per parameter.

    **Returns:** free variables; the loss there, infinite if all parameters keep their values; a
    Boolean per parameter, False for one that keeps its value.
    """
    point, without, least = flat_rows(z, 0).copy(), np.zeros(len(which), bool), np.inf
    # over the whole box, evenly in the parameter (a lengthscale: its logarithm)
    levels = np.linspace(-1.0, 1.0, 256)
    refined_levels = 8  # the best levels, around which the grid is refined
    refinement = 16  # finer levels on each side

    def along(j: int, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses and gradients with parameter j at levels from −1, its lower bound, to 1."""
        points = np.tile(point, (len(levels), 1))
        points[:, j] = np.arcsin(levels)
        return searches.losses_and_gradients(points)

    for j in map(int, np.flatnonzero(which)):
        values, slopes = along(j, levels)
        without[j] = np.all(slopes[:, j] == 0) and len(np.unique(values[np.isfinite(values)])) > 1
        if not without[j]:
            continue
        best = np.argsort(values)[:refined_levels]
        step = levels[1] - levels[0]
        finer = levels[best][:, None] + step * np.linspace(-1.0, 1.0, 2 * refinement + 1)
        finer = np.clip(np.unique(finer), -1.0, 1.0)
        found, _ = along(j, finer)
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


def sums_all_pairs(model: Any, x: AnyArray, weights: AnyArray | None) -> bool:
    """Whether leave-one-out of all rows sums all pairs: no faster method is known to apply.

    True also for other models than a `KernelRegression` with the method `Auto`, unexamined.
    `x`: shape (n, dim); `weights`: shape (n,).
    """
    if not isinstance(model, KernelRegression) or not isinstance(model.method, Auto):
        return True
    return isinstance(select_for_leave_one_out(model, x, weights).method, Dense | Blockwise)


def select_for_leave_one_out(
    model: KernelRegression, x: Float[AnyArray, "n dim"], weights: Float[AnyArray, " n"] | None
) -> Selection:
    """Returns the `Selection` of the method that sums leave-one-out of all rows.

    Only the shapes and dtypes of `x` and `weights` are read.
    """
    prior = ExcludeSelf()
    if weights is not None:
        prior = prior * KeyWeights(np.zeros(len(x), x.dtype))
    labels = jax.ShapeDtypeStruct((len(x), 1), x.dtype)
    points = jax.ShapeDtypeStruct(x.shape, x.dtype)
    parts = {"kernel": model.kernel, "prior": prior, "rule": model.rule, "order": model.order}
    return select_method(points, points, labels, **parts)
