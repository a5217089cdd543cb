"""Searches from all starts in one compiled program: scans of BFGS steps, and their starts."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int

from ._bfgs import Bfgs
from ._bounds import Box
from ._chunks import History, join_history, run_chunks
from ._options import Options, Space
from ._problem import Problem, spread_starts, take, vmap_over_fits

CHUNK_STEPS = 20  # between looks at whether all searches have stopped

Record = Callable[[Any], History]


def search_step(state: Bfgs, problem: Problem, tolerance: float) -> Bfgs:
    """Evaluates the trial point of a search and updates its state."""
    found, slope = jax.value_and_grad(problem.loss)(state.trial())
    return state.update(found, slope, tolerance)


@eqx.filter_jit
def begin_searches(
    model: Any, x: Array, space: Space, axes: Problem | None = None, fits: int | None = None
) -> tuple[Bfgs, Any, Box | None]:
    """Returns the states of all starts (of all fits), the constant leaves, and the box."""

    def begin(model: Any, x: Array) -> tuple[Bfgs, Box | None]:
        z, box = spread_starts(model, x, space)
        return jax.vmap(Bfgs.start)(z), box

    if axes is not None:
        begin = eqx.filter_vmap(begin, in_axes=(axes.frozen, axes.x), axis_size=fits)
    state, box = begin(model, x)
    return state, eqx.partition(model, space.trainable)[1], box


@eqx.filter_jit
def advance_searches(
    state: Bfgs,
    problem: Problem,
    tolerance: float,
    record: Record | None,
    steps: int,
    axes: Problem | None,
) -> tuple[Bfgs, History]:
    """Takes this number of steps in all searches, of all fits; a stopped search costs nothing.

    The searches of one fit run one after the other, so that none waits for the line search of
    another; those of several fits run side by side.
    """

    def from_starts(state: Bfgs, problem: Problem) -> tuple[Bfgs, History]:
        one = lambda state: _scan_steps(state, problem, tolerance, record, steps)  # noqa: E731
        return jax.lax.map(one, state) if axes is None else eqx.filter_vmap(one)(state)

    return vmap_over_fits(from_starts, axes, 1)(state, problem)


def _scan_steps(
    state: Bfgs, problem: Problem, tolerance: float, record: Record | None, steps: int
) -> tuple[Bfgs, History]:
    dtype = jax.eval_shape(problem.loss, state.z).dtype

    def recorded(state: Bfgs) -> History:
        history = {} if record is None else record(problem.model(state.z))
        return history | {"loss": state.loss.astype(dtype)}

    def step(state: Bfgs, _: None) -> tuple[Bfgs, History]:
        state = jax.lax.cond(
            state.is_stopped(),
            lambda state: state,
            lambda state: search_step(state, problem, tolerance),
            state,
        )
        return state, recorded(state)

    def all_steps(state: Bfgs) -> tuple[Bfgs, History]:
        return jax.lax.scan(step, state, None, length=steps)

    def no_step(state: Bfgs) -> tuple[Bfgs, History]:
        repeat = lambda leaf: jax.numpy.broadcast_to(leaf, (steps, *leaf.shape))  # noqa: E731
        return state, jax.tree.map(repeat, recorded(state))

    return jax.lax.cond(state.is_stopped(), no_step, all_steps, state)


def run_searches(
    state: Bfgs,
    problem: Problem,
    options: Options,
    tolerance: float,
    *,
    axes: Problem | None = None,
    followed: Int[np.ndarray, " starts"] | None = None,
) -> tuple[Bfgs, History]:
    """Runs all searches on the host, in chunks, until they stop or `options.steps` are taken.

    `followed`: which searches are returned, and shown to the callback. Default: all.
    """

    def advance(state: Bfgs, steps: int) -> tuple[Bfgs, History]:
        return advance_searches(state, problem, tolerance, options.record, steps, axes)

    histories, callback, end = [], options.callback, state
    chunk = min(options.chunk, CHUNK_STEPS, options.steps)
    chunks = run_chunks(advance, state, steps=options.steps, chunk=chunk, is_finished=_all_stopped)
    for done, end, history in chunks:  # noqa: B007
        histories.append(history if followed is None else take(followed, history))
        if callback is not None:
            callback(done, histories[-1])
    if followed is not None:
        end = take(followed, jax.device_get(end))  # on the host: nothing is compiled
    return end, join_history(histories, axis=state.steps.ndim)


def _all_stopped(state: Bfgs) -> bool:
    return bool(np.all(np.asarray(state.converged) | np.asarray(state.diverged)))
