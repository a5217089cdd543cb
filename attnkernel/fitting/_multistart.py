"""How a fit is carried out: defaults filled in, all starts and all fits in one program."""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PRNGKeyArray

from .._core.arrays import is_concrete
from ..objectives._objective import Objective, Sample
from ..objectives._rows import sorted_by_input
from ._bounds import Box
from ._checkpoints import Checkpoints, identity_of
from ._grid import along
from ._result import Fit, Starts, around, is_bowl, take
from ._starts import count_points, lowest_of_basins
from ._train import Callback, History, Problem, Recipe, State, advance, run

_STEPS, _STEPS_EACH = 100, 40  # of a search at most, and for each further parameter; usually 20
_STARTS = 10
_ROUNDS = 4  # along parameters without a slope, at most
_LOOK = 20  # steps of a search between looks at whether it is done


class Plan(NamedTuple):
    """The arguments of a fit with their defaults filled in."""

    optimizer: optax.GradientTransformation | None  # None: a search
    steps: int
    starts: int
    bounds: tuple[Any, Any] | Literal["default"] | None
    tolerance: float | None  # of a search: None for a given optimiser, which takes all its steps
    trainable: Any


def make_plan(
    model: Any,
    objective: Objective,
    optimizer: optax.GradientTransformation | None,
    steps: int | None,
    starts: int | None,
    bounds: tuple[Any, Any] | None,
    trainable: Any,
    key: Array | None,
    chunk: int,
    n: int,
) -> Plan:
    if not isinstance(objective, Objective):
        raise ValueError(
            f"objective must be an Objective, such as ak.HoldOut(10) or ak.LeaveOneOut(); got "
            f"{objective!r}."
        )
    name = type(objective).__name__
    objective.check(n)
    if objective.is_stochastic and key is None:
        raise ValueError(f"{name} draws rows at random: pass key=jax.random.PRNGKey(0).")
    if objective.is_stochastic and optimizer is None:
        raise ValueError(
            f"{name} is stochastic: say which optimiser and how many steps, for example "
            f"optimizer=optax.adam(0.1), steps=200. LeaveOneOut() needs neither."
        )
    if optimizer is not None and steps is None:
        raise ValueError("With an optimizer, say how many steps: for example steps=200.")
    for argument, value in (("steps", steps), ("starts", starts), ("chunk", chunk)):
        if value is not None and (value < 1 or value != int(value)):
            raise ValueError(f"{argument} must be an integer, at least 1; got {value}.")
    params = jax.tree.leaves(eqx.filter(model, trainable))
    if not params:
        raise ValueError("The model has no inexact array to fit; check trainable=.")
    if bounds is not None:
        _check_bounds(model, bounds, trainable)
    if optimizer is not None:
        if bounds is None and starts not in (None, 1):
            raise ValueError("Several starts are spread over bounds: pass bounds= too.")
        return Plan(optimizer, steps or 1, starts or 1, bounds, None, trainable)
    tolerance = float(min(jnp.finfo(leaf.dtype).eps for leaf in params)) ** 0.6
    default_bounds = "default" if hasattr(model, "search_box") else None
    default_starts = _STARTS if bounds or default_bounds else 1
    return Plan(
        None,
        steps or _STEPS + _STEPS_EACH * (sum(leaf.size for leaf in params) - 1),
        starts or default_starts,
        bounds or default_bounds,
        tolerance,
        trainable,
    )


def _check_bounds(model: Any, bounds: tuple[Any, Any], trainable: Any) -> None:
    if any(jax.tree.structure(side) != jax.tree.structure(model) for side in bounds):
        raise ValueError(
            f"bounds must be two models of the same structure as the model to fit, for "
            f"example (ak.KernelRegression(ak.Gaussian(0.01)), "
            f"ak.KernelRegression(ak.Gaussian(10.0))); got {bounds} for {model}."
        )
    box, params = (
        Box(*(eqx.filter(side, trainable) for side in bounds)),
        eqx.filter(model, trainable),
    )
    box.check()
    if is_concrete(*jax.tree.leaves(params)) and not box.contains(params):
        raise ValueError(f"The model starts outside its bounds: {model}, bounds {bounds}.")


def solve(
    model: Any,
    x: Array,
    y: Array,
    objective: Objective,
    key: Array | None,
    plan: Plan,
    axes: Problem | None,
    record: Callable[[Any], History] | None,
    callback: Callback | None,
    chunk: int,
    checkpoints: Checkpoints | None = None,
) -> Fit:
    """The fit, or the fits, that a plan describes; `axes` says what is batched."""
    is_search, number = plan.tolerance is not None, plan.starts
    on_host = _is_on_host(model, x, y, objective, key, plan.bounds)
    size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, plan.trainable)))
    screens = is_search and on_host and axes is None and size > 1 and number > 1
    if screens:
        plan = plan._replace(starts=count_points(number, size))
    begin, frozen, box = _begin(model, x, key, plan, axes)
    rows = (x, y, objective)
    if not objective.is_stochastic and axes is None:
        rows = sorted_by_input(*rows)
    problem = Problem(frozen, *rows, box)
    recipe = Recipe(plan.optimizer, plan.tolerance, record)
    if on_host and axes is None and box is not None and not box.binds():
        plan, begin = plan._replace(starts=1), take(slice(1), begin)  # all starts are one
        screens = False
    # a search is differentiated at its end, not along its way
    implicit = is_search and not on_host
    state, fixed = _stop_gradient((begin, problem)) if implicit else (begin, problem)
    if checkpoints is not None and (is_search or not on_host):
        raise ValueError(
            "checkpoints= are of trainings by an optimizer, outside transformations: the default "
            "search of a deterministic objective is short, and inside jit there is no disk."
        )
    identity = "" if checkpoints is None else identity_of(begin, problem)

    def search(state: State, of: np.ndarray) -> tuple[State, History]:
        """From a state to the end; the i-th start shares the way of start `of[i]`."""

        def go(state: State, steps: int) -> tuple[State, History]:
            state, history = _advance(state, fixed, recipe, steps, axes)
            return state, history if of is all_of_them else take(of, jax.device_get(history))

        end, history = run(
            go,
            state,
            steps=plan.steps,
            chunk=min(chunk, look) if is_search else chunk,
            callback=callback,
            on_host=on_host,
            checkpoints=checkpoints,
            identity=identity,
        )
        return end if of is all_of_them else _taken(of, end), history

    all_of_them, look = np.arange(plan.starts), min(_LOOK, plan.steps)
    near = (state, all_of_them)
    sample = None
    if is_search and on_host and axes is None:
        sample = objective.subsample(problem.x, problem.y, number)
    rough = Recipe(None, max(plan.tolerance or 0.0, _ROUGH), None)
    if screens:
        of = (fixed, recipe) if sample is None else (fixed._replace(**sample._asdict()), rough)
        chosen = _chosen(state, *of, look, number)
        near = (_only(chosen, state), chosen)
        begin = _taken(chosen, begin)
    rough_steps = min(plan.steps, _ROUGH_STEPS)
    by_sample = sample and _from_sample(*near, fixed, sample, rough, rough_steps)
    end, history = search(*(by_sample or near))
    if by_sample and np.any(end.diverged):  # the sample misled: all the way
        end, history = search(*near)
    still = None
    if is_search and on_host and axes is None and box is not None:
        alone = lambda state: search(state, np.arange(number))[0]  # noqa: E731
        end, history, still = _on_grids(begin, end, history, problem, alone)
    history = jax.tree.map(jnp.asarray, history)
    found = _finish(begin, end, history, problem, axes, is_search, implicit, still)
    model, loss, history, starts, of_fits = found
    # rows in the order given again, and so are their weights
    own = objective if axes is None else of_fits
    return Fit(model, loss, history, starts, own, x, y, is_search)


def _is_on_host(*arguments: Any) -> bool:
    """Whether all arrays have values to look at, and no `jit` is around."""
    return is_concrete(jnp.zeros(()), *filter(eqx.is_array, jax.tree.leaves(arguments)))


_ROUGH = 1e-5  # tolerance on a sample
_ROUGH_STEPS = 30  # at most, there: what still moves then goes along a plain
_SAME = 1e-2  # of a parameter: ends on a sample that are closer than this are one


def _chosen(
    begin: State, problem: Problem, recipe: Recipe, look: int, number: int
) -> Int[np.ndarray, " number"]:
    """The first start, and those of the others where the objective is lowest of a basin.

    By the first evaluation of the search's own program: nothing else is compiled.
    """
    one = eqx.tree_at(lambda state: state.most, begin, jnp.ones_like(begin.most))
    end, _ = _advance(one, problem, recipe, look, None)
    points, loss = _rows(begin.z)[1:], np.asarray(end.loss)[1:]
    return np.append(0, 1 + lowest_of_basins(points, loss, number - 1))


_taken = eqx.filter_jit(take)  # one program: each leaf on its own takes twice the whole search


def _only(chosen: Int[np.ndarray, " number"], state: State) -> State:
    """The state, in which all starts but those chosen have stopped."""
    others = ~np.isin(np.arange(len(state.converged)), chosen)
    return eqx.tree_at(lambda state: state.converged, state, state.converged | others)


def _from_sample(
    begin: State,
    chosen: Int[np.ndarray, " number"],
    problem: Problem,
    sample: Sample,
    recipe: Recipe,
    steps: int,
) -> tuple[State, np.ndarray]:
    """Starts moved to the minima of a sample of the objective; of those that meet, one goes on.

    Those that ended at no minimum, where the sample is flat, go with the best. Returns the
    state, in which all that do not go on have stopped, and for each start the one it goes with.
    """
    on_sample = problem._replace(**sample._asdict())
    end, history = run(
        lambda state, steps: _advance(state, on_sample, recipe, steps, None),
        begin,
        steps=steps,
        chunk=min(_LOOK, steps),
        callback=None,
        on_host=True,
    )
    end, history = _taken(chosen, end), take(chosen, history)
    params = jax.tree.leaves(end.z if problem.box is None else jax.vmap(problem.box.inside)(end.z))
    ends = np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in params], axis=1)
    loss = history["loss"][:, -1]
    order = np.argsort(np.where(np.isfinite(loss), loss, np.inf))
    of = np.arange(len(ends))
    for rank, i in enumerate(order[1:], 1):
        close = np.max(np.abs(ends[order[:rank]] - ends[i]), axis=1) < _SAME
        if np.any(close):
            of[i] = of[order[np.argmax(close)]]
        else:
            model = problem.model(take(i, end.z))
            curvature, distance = around(model, *sample)
            of[i] = i if is_bowl(curvature) and distance < _SAME else order[0]
    start = functools.partial(State.start, optimizer=recipe.optimizer)
    fresh = jax.vmap(lambda z, key: start(z, key=key))(end.z, begin.key)
    stopped = jnp.asarray(of != np.arange(len(ends)))
    where = lambda state: (state.optimizer, state.converged)  # noqa: E731
    return eqx.tree_at(where, fresh, (end.optimizer.again(), stopped)), of


def _on_grids(
    begin: State,
    end: State,
    history: History,
    problem: Problem,
    search: Callable[[State], State],
) -> tuple[State, History, np.ndarray]:
    """The best end moved on along parameters without a slope; and which of all those are.

    Of several parameters, along each in turn, and by a search along the others, until nothing is
    gained.
    """
    assert problem.box is not None
    at_first, at_last = (_rows(state.z) for state in (begin, end))
    unmoved = np.all((at_first == at_last) & (np.asarray(end.optimizer.gradient) == 0), axis=0)
    low, high = (_rows(side, 0) for side in (problem.box.lower, problem.box.upper))
    still = unmoved & np.isfinite(low) & (low < high)
    if not np.any(still):
        return end, history, still
    loss = np.where(np.isfinite(end.loss), end.loss, np.inf)
    best = int(np.argmin(loss))
    state, loss = take(best, end), loss[best]
    for _ in range(_ROUNDS):
        z, least, still = along(state.z, still, problem)
        if not least < loss:
            break
        state = eqx.tree_at(lambda state: (state.z, state.loss), state, (z, jnp.asarray(least)))
        loss = least
        if len(still) == 1:
            break
        fresh = State.start(z, None, state.key)
        several = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(end.steps)), fresh)
        stopped = jnp.arange(len(end.steps)) > 0
        moved = search(eqx.tree_at(lambda several: several.converged, several, stopped))
        if moved.loss[0] < loss:
            state, loss = take(0, moved), moved.loss[0]
    end = jax.tree.map(lambda leaf, one: leaf.at[best].set(one), end, state)
    losses = np.array(history["loss"])
    losses[best, -1] = state.loss
    return end, history | {"loss": losses}, still


def _rows(tree: Any, axes: int = 1) -> np.ndarray:
    """The leaves of a tree side by side, behind so many leading axes."""
    leaves = map(np.asarray, jax.tree.leaves(tree))
    return np.concatenate([leaf.reshape(*leaf.shape[:axes], -1) for leaf in leaves], axis=axes)


@eqx.filter_jit
def _begin(
    model: Any, x: Array, key: Array | None, plan: Plan, axes: Problem | None
) -> tuple[State, Any, Box | None]:
    """The state of every start, the frozen leaves of the model, and the box."""
    key = jax.random.PRNGKey(0) if key is None else key

    def begin(model: Any, x: Array, key: PRNGKeyArray) -> tuple[State, Box | None]:
        params = eqx.filter(model, plan.trainable)
        bounds = model.search_box(x) if plan.bounds == "default" else plan.bounds
        box = None
        if bounds is not None:
            box = Box(*(eqx.filter(side, plan.trainable) for side in bounds))
            params = box.starts(params, plan.starts, jax.random.PRNGKey(0))
            z = jax.vmap(box.free)(params)
        else:
            z = jax.tree.map(lambda leaf: leaf[None], params)
        start = functools.partial(State.start, optimizer=plan.optimizer, key=key)
        return jax.vmap(start)(z), box

    if axes is not None:
        begin = eqx.filter_vmap(begin, in_axes=(axes.frozen, axes.x, eqx.if_array(0)))
    state, box = begin(model, x, key)
    return state, eqx.partition(model, plan.trainable)[1], box


@eqx.filter_jit
def _advance(
    state: State, problem: Problem, recipe: Recipe, steps: int, axes: Problem | None
) -> tuple[State, History]:
    """`advance`, over all starts, and over all fits."""

    def over_starts(state: State, problem: Problem) -> tuple[State, History]:
        one = lambda state: advance(state, problem, recipe, steps)  # noqa: E731
        if recipe.tolerance is not None and axes is None:
            return jax.lax.map(one, state)  # none waits for the slowest line search
        return eqx.filter_vmap(one)(state)

    return _over_fits(over_starts, axes, 1)(state, problem)


@eqx.filter_jit
def _finish(
    begin: State,
    end: State,
    history: History,
    problem: Problem,
    axes: Problem | None,
    is_search: bool,
    implicit: bool,
    still: Array | np.ndarray | None,
) -> tuple[Any, Array, History, Starts, Objective]:
    """The fields of `Fit` but for the data: the best start, and what became of each.

    `still`: of which parameters it is known whether the objective has no slope. Where it is not,
    inside transformations and of many fits, those that no start has moved.
    """

    def finish(begin: State, end: State, history: History, problem: Problem):
        at_bound, edges, box = jnp.zeros_like(end.converged), None, problem.box
        if box is not None:
            at_bound = jax.vmap(lambda z: box.on_edge(box.inside(z)))(end.z)
            edges = jax.vmap(lambda z: box.edges(box.inside(z)))(end.z)
        without, converged = None, end.converged
        if is_search and box is not None:
            of_all = jax.vmap(lambda z: ravel_pytree(z)[0])
            unmoved = (end.optimizer.gradient == 0) & (of_all(end.z) == of_all(begin.z))
            bounded = jnp.isfinite(ravel_pytree(box.lower)[0])
            # a single start may have begun at the very minimum
            none = jnp.all(unmoved, axis=0) & bounded & (len(end.loss) > 1)
            none = none if still is None else still
            without = jax.vmap(lambda _: _booleans(box.lower, none))(end.loss)
            converged &= ~jnp.any(none)
        models = eqx.filter_vmap(problem.model)
        loss = history["loss"][:, -1]
        if not (problem.objective.is_stochastic or is_search):  # of the end, not one step before
            loss = jax.vmap(lambda z: problem.objective(problem.model(z), problem.x, problem.y))(
                end.z
            )
        starts = Starts(
            begin=models(begin.z),
            end=models(end.z),
            loss=loss,
            steps=end.steps,
            converged=converged,
            diverged=end.diverged,
            at_bound=at_bound,
            edges=edges,
            without_slope=without,
        )
        best = jnp.argmin(jnp.where(jnp.isfinite(loss), loss, jnp.inf))
        model, least, history = take(best, (starts.end, loss, history))
        if implicit:
            model = problem.model(_minimiser(take(best, end.z), problem))
            least = problem.objective(model, problem.x, problem.y)
        return model, least, history, starts, problem.objective

    return _over_fits(finish, axes, 3)(begin, end, history, problem)


def _booleans(like: Any, flat: ArrayLike) -> Any:
    """A vector of Booleans as a tree, of the shape of another."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = jnp.split(jnp.asarray(flat), ends[:-1])
    shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def _minimiser(z: Any, problem: Problem) -> Any:
    r"""z at a minimum of the objective L, with the derivative that a minimiser has.

    $$ \mathrm{d} z = -\big(\nabla^2_z L\big)^{+}\, \mathrm{d} \nabla_z L $$

    by the implicit function theorem (first derivatives, forward and reverse); the value is z.
    """
    z, fixed = _stop_gradient((z, problem))
    flat, unravel = ravel_pytree(z)

    def slope(flat: Array, problem: Problem) -> Array:
        def loss(flat: Array) -> Array:
            return problem.objective(problem.model(unravel(flat)), problem.x, problem.y)

        return jax.grad(loss)(flat)

    curvature = jax.jacrev(slope)(flat, fixed)
    moving = slope(flat, problem)
    change = moving - jax.lax.stop_gradient(moving)  # zero, but for its derivative
    return unravel(flat - jnp.linalg.pinv(curvature, hermitian=True) @ change)


def _stop_gradient(tree: Any) -> Any:
    """The tree as constants to differentiation."""
    return jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, tree
    )


def _over_fits(function: Callable, axes: Problem | None, batched: int) -> Callable:
    """The function of one fit over many: its first `batched` arguments, then the problem."""
    if axes is None:
        return function
    return eqx.filter_vmap(function, in_axes=(eqx.if_array(0),) * batched + (axes,))
