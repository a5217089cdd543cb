"""`fit` and `fit_many`: any model, any objective, any optax optimiser; and what came of it."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._checks import as_points, is_known, require_regression_data
from ._box import Box
from ._loop import Callback, History, Problem, Recipe, State, advance, run
from ._objectives import Objective

_STEPS = 100  # of L-BFGS at most; it usually stops within twenty
_STARTS = 10


class Starts(eqx.Module):
    """Where each start of a fit began and ended; every leaf has a leading axis of starts."""

    begin: Any  # models
    end: Any  # models
    loss: Float[Array, "*fits starts"]
    steps: Int[Array, "*fits starts"]
    converged: Bool[Array, "*fits starts"]
    diverged: Bool[Array, "*fits starts"]
    at_bound: Bool[Array, "*fits starts"]


class Fit(eqx.Module):
    """A fitted model, and the record of how it was fitted.

    `fit(x_new)` predicts. After `fit_many` every array has a leading axis of fits, and
    `fit.member(i)` is one of them.
    """

    model: Any
    loss: Float[Array, "*fits"]  # the objective's last value at the best start
    history: History = eqx.field(repr=False)  # "loss", shape (*fits, steps), and what was recorded
    starts: Starts = eqx.field(repr=False)
    objective: Objective
    x: Float[Array, "*batch n dim"] = eqx.field(repr=False)
    y: Float[Array, "*rows"] = eqx.field(repr=False)

    def __call__(self, x_new: ArrayLike) -> Array:
        """Predictions at new inputs, shape (m, dim) or (m,), from the fitted data."""
        return self.model(x_new, self.x, self.y)

    def member(self, i: int) -> "Fit":
        """The i-th of many fits."""
        x, y = (self.x[i], self.y[i]) if self.x.ndim == 3 else (self.x, self.y)
        parts = (self.model, self.loss, self.history, self.starts, self.objective)
        model, loss, history, starts, objective = _take(i, parts)
        return Fit(model, loss, history, starts, objective, x, y)

    def minima(self, tolerance: float = 1e-3) -> list[tuple[Any, float]]:
        """The distinct minima that the starts reached inside the bounds, best first.

        A list of (model, loss). Two ends count as one minimum where no parameter (a lengthscale
        by its logarithm) differs by more than `tolerance`. Ends where the objective is flat (no
        curvature above `tolerance` of its value) are no minima and are left out.
        """
        if self.loss.ndim:
            raise ValueError("This is a batch of fits: ask one of them, fit.member(i).minima().")
        found: list[tuple[Any, float]] = []
        for i in np.argsort(np.asarray(self.starts.loss)):
            if self.starts.at_bound[i] or not self.starts.converged[i]:
                continue
            model = _take(i, self.starts.end)
            if any(_distance(model, other) <= tolerance for other, _ in found):
                continue
            if _least_curvature(model, self.objective, self.x, self.y) > tolerance:
                found.append((model, float(self.starts.loss[i])))
        return found

    def warnings(self) -> list[str]:
        """Why the result may be no optimum: divergence, a bound hit, too few steps."""
        starts = self.starts
        best = np.argmin(np.where(np.isfinite(starts.loss), starts.loss, np.inf), axis=-1)[
            ..., None
        ]
        diverged, at_bound, converged, steps = (
            np.take_along_axis(np.asarray(flag), best, axis=-1)[..., 0]
            for flag in (starts.diverged, starts.at_bound, starts.converged, starts.steps)
        )
        searched = starts.loss.shape[-1] > 1
        kinds = (
            (
                diverged,
                "diverged at step {step}: the loss or its gradient was not finite; the parameters "
                "of the step before are kept. Likely causes: (a) a learning rate too large, (b) a "
                f"query without neighbours, (c) numbers too large for {self.y.dtype}.",
            ),
            (
                at_bound,
                "the best value found lies on a bound: the objective may go on falling beyond it. "
                "Widen bounds=, or ask whether x says anything of y.",
            ),
            (
                searched & ~converged & ~diverged,
                "the best start had not converged after {step} steps: raise steps=.",
            ),
        )
        found = []
        for flags, sentence in kinds:
            if not np.any(flags):
                continue
            first = int(np.argmax(flags))
            sentence = sentence.format(step=int(np.ravel(steps)[first]))
            if flags.ndim:
                sentence = f"{np.sum(flags)} of {flags.size} fits, first fit {first}: {sentence}"
            found.append(sentence)
        return found


def fit(
    model: Any,
    x: ArrayLike,
    y: ArrayLike,
    *,
    objective: Objective,
    optimizer: optax.GradientTransformation | None = None,
    steps: int | None = None,
    key: PRNGKeyArray | None = None,
    bounds: tuple[Any, Any] | None = None,
    starts: int | None = None,
    trainable: Any = eqx.is_inexact_array,
    record: Callable[[Any], History] | None = None,
    callback: Callback | None = None,
    chunk: int = 100,
) -> Fit:
    r"""Fits the parameters of a model by minimising an objective.

    $$ \hat\theta = \arg\min_{\theta \in \Theta} L(f_\theta, x, y) $$

    Stochastic objectives (`HoldOut`) take an optax optimiser, a number of steps and a key, and
    draw anew at every step. Deterministic ones (`LeaveOneOut`) by default run L-BFGS from
    several starts inside bounds, all starts in one program, and keep the best end.

    **Arguments:**

    - `model`: any Equinox module called as `model(x_new, x, y, prior=...)`.
    - `x`: inputs, shape (n, dim) or (n,); `y`: labels, shape (n,) or (n, out). n at least 3.
    - `objective`: `HoldOut(h)`, `LeaveOneOut()`, or your own `Objective`.
    - `optimizer`: any optax optimiser. Default: L-BFGS, for deterministic objectives only. Reuse
      one object over several calls: each new one compiles anew.
    - `steps`: how many steps, at most. Required with `optimizer`; 100 for the default.
    - `key`: a PRNG key; required by stochastic objectives.
    - `bounds`: (lower, upper), two models of the structure of `model`: each leaf is the bound on
      that leaf. Default: `model.bounds(x)` for the default optimiser, none for a given one.
    - `starts`: how many starts: `model` itself and points spread over the bounds. Default: 10 for
      the default optimiser, 1 for a given one.
    - `trainable`: which leaves to fit, as in `equinox.partition`. Default: every inexact array.
    - `record`: from the model to a dictionary of arrays, recorded at every step beside the loss.
    - `callback`: called as `callback(steps_done, history_of_chunk)` between chunks.
    - `chunk`: steps per call of the compiled program.

    **Returns:** a `Fit`: `model`, `history["loss"]`, `starts`, `minima()`, `warnings()`.

    **Raises:** `ValueError` if the data cannot be fitted (fewer than 3 rows, shapes that differ,
    constant or non-finite numbers) or the arguments do not go together.

    Can be jitted, vmapped and differentiated; all steps are then one scan.
    """
    x, y = as_points("x", x), _labels(y)
    require_regression_data(x, y)
    plan = _plan(model, objective, optimizer, steps, starts, bounds, trainable, key, x.shape[0])
    key = jax.random.PRNGKey(0) if key is None else key
    return _solve(model, x, y, objective, key, plan, None, record, callback, chunk)


def fit_many(
    model: Any,
    x: ArrayLike,
    y: ArrayLike,
    *,
    objective: Objective,
    in_axes: tuple[int | None, int | None, int | None] = (0, None, 0),
    optimizer: optax.GradientTransformation | None = None,
    steps: int | None = None,
    key: Array | None = None,
    bounds: tuple[Any, Any] | None = None,
    starts: int | None = None,
    trainable: Any = eqx.is_inexact_array,
    record: Callable[[Any], History] | None = None,
    callback: Callback | None = None,
    chunk: int = 100,
) -> Fit:
    """Many fits at once in one compiled program, each as `fit` would do it.

    **Arguments:** as for `fit`, and

    - `in_axes`: for (model, data, objective), 0 where every array leaf has a leading axis of
      fits, None where all fits share it. Default: models and objectives differ, data are shared.
    - `key`: one key per fit, shape (fits, ...), as from `jax.random.split(key, fits)`.

    **Returns:** one `Fit` whose arrays have a leading axis of fits; `member(i)` is the i-th.
    """
    model_axis, data_axis, objective_axis = (
        eqx.if_array(0) if axis == 0 else None for axis in in_axes
    )
    if in_axes == (None, None, None) and key is None:
        raise ValueError("fit_many needs something that differs: a 0 in in_axes, or keys.")
    if data_axis is None:
        x, y = as_points("x", x), _labels(y)
        require_regression_data(x, y)
    else:
        x, y = jnp.asarray(x), _labels(y)
        if x.ndim != 3 or y.ndim < 2 or len(x) != len(y):
            raise ValueError(
                f"Batched data must have shapes (fits, n, dim) and (fits, n); got x {x.shape} "
                f"and y {y.shape}."
            )
        for member in range(len(x)):
            require_regression_data(x[member], y[member])
    plan = _plan(model, objective, optimizer, steps, starts, bounds, trainable, key, x.shape[-2])
    axes = Problem._make((model_axis, data_axis, data_axis, objective_axis, eqx.if_array(0)))
    if key is None:
        parts = zip((model, (x, y), objective), in_axes, strict=True)
        batched = eqx.filter([part for part, axis in parts if axis == 0], eqx.is_array)
        fits = jax.tree.leaves(batched)[0].shape[0]
        key = jnp.broadcast_to(jax.random.PRNGKey(0), (fits, 2))
    return _solve(model, x, y, objective, key, plan, axes, record, callback, chunk)


class _Plan(NamedTuple):
    """The arguments of a fit with their defaults filled in."""

    optimizer: optax.GradientTransformation
    steps: int
    starts: int
    bounds: tuple[Any, Any] | Literal["default"] | None
    tolerance: float | None
    trainable: Any


def _plan(
    model: Any,
    objective: Objective,
    optimizer: optax.GradientTransformation | None,
    steps: int | None,
    starts: int | None,
    bounds: tuple[Any, Any] | None,
    trainable: Any,
    key: Array | None,
    n: int,
) -> _Plan:
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
    for argument, value in (("steps", steps), ("starts", starts)):
        if value is not None and value < 1:
            raise ValueError(f"{argument} must be at least 1; got {value}.")
    params = jax.tree.leaves(eqx.filter(model, trainable))
    if not params:
        raise ValueError("The model has no inexact array to fit; check trainable=.")
    if bounds is not None:
        if any(jax.tree.structure(side) != jax.tree.structure(model) for side in bounds):
            raise ValueError(
                f"bounds must be two models of the same structure as the model to fit, for "
                f"example (ak.KernelRegression(ak.Gaussian(0.01)), "
                f"ak.KernelRegression(ak.Gaussian(10.0))); got {bounds} for {model}."
            )
        box = Box(*(eqx.filter(side, trainable) for side in bounds))
        box.check()
        if is_known(*params) and not box.contains(eqx.filter(model, trainable)):
            raise ValueError(f"The model starts outside its bounds: {model}, bounds {bounds}.")
    if optimizer is not None:
        if bounds is None and starts not in (None, 1):
            raise ValueError("Several starts are spread over bounds: pass bounds= too.")
        return _Plan(optimizer, steps or 1, starts or 1, bounds, None, trainable)
    tolerance = float(min(jnp.finfo(leaf.dtype).eps for leaf in params)) ** 0.6
    default_bounds = "default" if hasattr(model, "bounds") else None
    default_starts = _STARTS if bounds or default_bounds else 1
    return _Plan(
        _lbfgs(),
        steps or _STEPS,
        starts or default_starts,
        bounds or default_bounds,
        tolerance,
        trainable,
    )


@functools.cache
def _lbfgs() -> optax.GradientTransformation:
    """One object for all fits, so that they share compiled programs."""
    return optax.lbfgs()


def _solve(
    model: Any,
    x: Array,
    y: Array,
    objective: Objective,
    key: Array,
    plan: _Plan,
    axes: Problem | None,
    record: Callable[[Any], History] | None,
    callback: Callback | None,
    chunk: int,
) -> Fit:
    """The fit, or the fits, that a plan describes; `axes` says what is batched."""
    state, frozen, box = _begin(model, x, key, plan, axes)
    problem = Problem(frozen, x, y, objective, box)
    recipe = Recipe(plan.optimizer, plan.tolerance, record)
    end, history = run(
        lambda state, steps: _advance(state, problem, recipe, steps, axes),
        state,
        steps=plan.steps,
        chunk=chunk if plan.tolerance is None else min(chunk, 10),  # look often: it may be done
        callback=callback,
        on_host=is_known(*jax.tree.leaves(eqx.filter((state, problem), eqx.is_array))),
    )
    history = jax.tree.map(jnp.asarray, history)
    result = _finish(state, end, history, problem, axes)
    fit = Fit(*result, x, y)
    _warn(fit)
    return fit


@eqx.filter_jit
def _begin(
    model: Any, x: Array, key: Array, plan: _Plan, axes: Problem | None
) -> tuple[State, Any, Box | None]:
    """The state of every start, the frozen leaves of the model, and the box."""

    def begin(model: Any, x: Array, key: PRNGKeyArray) -> tuple[State, Box | None]:
        params = eqx.filter(model, plan.trainable)
        bounds = model.bounds(x) if plan.bounds == "default" else plan.bounds
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
        return eqx.filter_vmap(one)(state)

    return _over_fits(over_starts, axes, 1)(state, problem)


@eqx.filter_jit
def _finish(
    begin: State, end: State, history: History, problem: Problem, axes: Problem | None
) -> tuple[Any, Array, History, Starts, Objective]:
    """The fields of `Fit` but for the data: the best start, and what became of each."""

    def finish(begin: State, end: State, history: History, problem: Problem):
        at_bound, box = jnp.zeros_like(end.converged), problem.box
        if box is not None:
            at_bound = jax.vmap(lambda z: box.on_edge(box.inside(z)))(end.z)
        models = eqx.filter_vmap(problem.model)
        loss = history["loss"][:, -1]
        starts = Starts(
            begin=models(begin.z),
            end=models(end.z),
            loss=loss,
            steps=end.steps,
            converged=end.converged,
            diverged=end.diverged,
            at_bound=at_bound,
        )
        best = jnp.argmin(jnp.where(jnp.isfinite(loss), loss, jnp.inf))
        model, history = _take(best, (starts.end, history))
        return model, loss[best], history, starts, problem.objective

    return _over_fits(finish, axes, 3)(begin, end, history, problem)


def _over_fits(function: Callable, axes: Problem | None, batched: int) -> Callable:
    """The function of one fit over many: its first `batched` arguments, then the problem."""
    if axes is None:
        return function
    return eqx.filter_vmap(function, in_axes=(eqx.if_array(0),) * batched + (axes,))


def _take(i: Any, tree: Any) -> Any:
    """The i-th along the leading axis of every array of a tree."""
    return jax.tree.map(lambda leaf: leaf[i] if eqx.is_array(leaf) else leaf, tree)


def _labels(y: ArrayLike) -> Array:
    """Labels as a floating array of their own shape."""
    array = jnp.asarray(y)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def _distance(model: Any, other: Any) -> float:
    """The largest difference of any parameter of two models."""
    pairs = zip(
        jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)),
        jax.tree.leaves(eqx.filter(other, eqx.is_inexact_array)),
        strict=True,
    )
    return max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs)


@eqx.filter_jit
def _least_curvature(model: Any, objective: Objective, x: Array, y: Array) -> Float[Array, ""]:
    """The least eigenvalue of the objective's Hessian, in units of the objective."""
    params, frozen = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)

    def loss(flat: Array) -> Array:
        return objective(eqx.combine(unravel(flat), frozen), x, y)

    return jnp.min(jnp.linalg.eigvalsh(jax.hessian(loss)(flat))) / jnp.abs(loss(flat))


def _warn(fit: Fit) -> None:
    """Warn of ends that are no optimum, where they can be seen."""
    if is_known(fit.starts.loss):
        for sentence in fit.warnings():
            warnings.warn(sentence, stacklevel=4)
