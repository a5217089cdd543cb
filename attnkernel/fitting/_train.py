"""Stochastic training: a scan over steps of an optax optimiser, in chunks, with checkpoints.

The PRNG key is part of the state, so that a resumed training equals an uninterrupted one bit for
bit. A step whose loss or gradient is not finite is not taken, and ends the training.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .._core.arrays import AnyArray, as_numpy_if_concrete, is_outside_jit, namespace_of
from .._core.compilation import ComparableFunction, comparable_by_program, program_key
from ..objectives import Sample
from ._checkpoints import identity_of
from ._options import Options
from ._outcome import Outcome, Result, collect_outcome
from ._problem import History, Problem, Record, build_problem, run_chunks, vmap_over_fits


class Training(eqx.Module):
    """The state of a training from one start."""

    z: PyTree
    finite_z: PyTree  # the last z whose loss and gradient were finite
    optimizer: PyTree
    key: PRNGKeyArray
    steps: Int[Array, ""]
    diverged: Bool[Array, ""]


def train(model: Any, data: Sample, options: Options, axes: Problem | None = None) -> Outcome:
    """Takes all steps of the given optimiser from every start, and returns the `Outcome`, whose
    model is the best end.

    `axes`: the batched axes of several fits; None: one fit. **Raises:** `ValueError` for
    checkpoints inside `jit`, or if they hold more steps than `options.steps`.
    """
    on_host = is_outside_jit(model, data, options.key, options.bounds)
    key = jax.random.PRNGKey(0) if options.key is None else options.key
    assert options.optimizer is not None
    z, problem = build_problem(model, data, options._replace(key=key), axes)
    optimizer = comparable_optimizer(options.optimizer, z, 1 if axes is None else 2)
    options = options._replace(optimizer=optimizer)
    state = _start_trainings(optimizer, z, key, axes)

    def advance(state: Training, steps: int) -> tuple[Training, History]:
        return _advance_training(state, problem, optimizer, options.record, steps, axes)

    if on_host:
        end, history = _train_in_chunks(advance, state, problem, options)
    elif options.checkpoints is None:
        end, history = advance(state, options.steps)
    else:
        raise ValueError(
            "checkpoints= need an optimizer=, and cannot be written inside jit: call fit outside."
        )
    if on_host and axes is None and data.objective.is_stochastic:  # compiles nothing
        ends = as_numpy_if_concrete((state.z, end.z, end.steps, end.diverged, history))
        return _collect_training(*ends, problem=problem)
    history = jax.tree.map(jnp.asarray, history)
    parts = state.z, end.z, end.steps, end.diverged, history, problem
    return _outcome_of_training(parts, axes)


def comparable_optimizer(
    optimizer: optax.GradientTransformation, z: PyTree, batched: int
) -> optax.GradientTransformation:
    """Returns the same optimiser in a form that is equal (==) to others that compute the same.

    Trainings with equal optimisers share one compiled program.

    `z`: free variables, with `batched` leading axes of fits and starts.
    """
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[batched:], leaf.dtype), z)
    update = optax.with_extra_args_support(optimizer).update

    def start_and_step(gradient: PyTree, state: PyTree, z: PyTree) -> PyTree:
        """Starts, and takes a step with all that an optimiser may read, as `train_step` does."""
        read = {"value": optax.tree.sum(z), "grad": gradient, "value_fn": optax.tree.sum}
        return optimizer.init(z), update(gradient, state, z, **read)

    key = program_key(start_and_step, like, jax.eval_shape(optimizer.init, like), like)
    if key is None:
        return type(optimizer)(comparable_by_program(optimizer.init, like), optimizer.update)
    init = ComparableFunction(optimizer.init, ("init", key))
    return type(optimizer)(init, ComparableFunction(update, ("update", key)))


@eqx.filter_jit
def _start_trainings(
    optimizer: optax.GradientTransformation, z: PyTree, key: Array, axes: Problem | None
) -> Training:
    """Returns the initial states of all starts (of all fits, each with a key of its own)."""

    def from_starts(z: PyTree, key: PRNGKeyArray) -> Training:
        zero, false = jnp.zeros((), int), jnp.zeros((), bool)
        return eqx.filter_vmap(lambda z: Training(z, z, optimizer.init(z), key, zero, false))(z)

    return (from_starts if axes is None else eqx.filter_vmap(from_starts))(z, key)


def _train_in_chunks(
    advance: Callable[[Training, int], tuple[Training, History]],
    state: Training,
    problem: Problem,
    options: Options,
) -> tuple[Training, History]:
    """Returns the final state and the whole history, from the newest checkpoint if there is one.

    Writes checkpoints between chunks, if `options` has them. **Raises:** `ValueError` if the newest
    holds more than `options.steps` steps.

    `advance`: takes a state and a number of steps, and returns the state and history after them.
    """
    checkpoints, done, histories, save = options.checkpoints, 0, [], None
    if checkpoints is not None:
        identity = identity_of(state, problem, options.optimizer)
        save = functools.partial(checkpoints.save, identity=identity)
        if kept := checkpoints.load(state, identity=identity):
            done, state, histories = kept.done, kept.state, [kept.history]
            if done > options.steps:
                raise ValueError(
                    f"The checkpoints {checkpoints.path} hold {done} steps, more than "
                    f"steps={options.steps}: ask for at least as many, or give another path."
                )
            if options.callback is not None:
                options.callback(done, kept.history)
    is_finished = lambda state: bool(np.all(np.asarray(state.diverged)))  # noqa: E731
    return run_chunks(advance, state, options, is_finished, done, histories, save)


def train_step(
    state: Training,
    problem: Problem,
    optimizer: optax.GradientTransformation,
    record: Record | None,
) -> tuple[Training, History]:
    """Takes one step; returns the new state, and the loss and the record before it.

    If the loss or its gradient is not finite, now or before, z is the last at which both were.
    """
    history = {} if record is None else record(problem.model(state.z))
    key, subkey = jax.random.split(state.key)
    loss, gradient = jax.value_and_grad(problem.loss)(state.z, subkey)
    steepest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(gradient)]))
    diverged = state.diverged | ~jnp.isfinite(loss) | ~jnp.isfinite(steepest)
    read = {"value": loss, "grad": gradient, "value_fn": lambda z: problem.loss(z, subkey)}
    update = optax.with_extra_args_support(optimizer).update
    updates, optimizer_state = update(gradient, state.optimizer, state.z, **read)
    # a diverged training stays at its last finite z
    finite_z = jax.tree.map(lambda a, b: jnp.where(diverged, a, b), state.finite_z, state.z)
    moved = optax.apply_updates(state.z, updates)
    state = Training(
        z=jax.tree.map(lambda a, b: jnp.where(diverged, a, b), finite_z, moved),
        finite_z=finite_z,
        optimizer=optimizer_state,
        key=key,
        steps=state.steps + ~diverged,
        diverged=diverged,
    )
    return state, history | {"loss": loss}


@eqx.filter_jit
def _advance_training(
    state: Training,
    problem: Problem,
    optimizer: optax.GradientTransformation,
    record: Record | None,
    steps: int,
    axes: Problem | None,
) -> tuple[Training, History]:
    """Takes `steps` optimiser steps from every start; returns the states and their history.

    `axes`: the batched axes of several fits, None for one fit; `record`: see `fit`.
    """

    def from_starts(state: Training, problem: Problem) -> tuple[Training, History]:
        step = lambda state, _: train_step(state, problem, optimizer, record)  # noqa: E731
        return eqx.filter_vmap(lambda state: jax.lax.scan(step, state, None, length=steps))(state)

    return vmap_over_fits(from_starts, axes, 1)(state, problem)


@eqx.filter_jit
def _outcome_of_training(parts: tuple, axes: Problem | None) -> Outcome:
    """Returns the `Outcome` of a training of one fit, or with `axes` of several.

    `parts`: the arguments of `_collect_training`.
    """
    return vmap_over_fits(_collect_training, axes, 5)(*parts)


def _collect_training(
    begin: PyTree,
    end: PyTree,
    steps: Int[AnyArray, " starts"],
    diverged: Bool[AnyArray, " starts"],
    history: History,
    problem: Problem,
) -> Outcome:
    """Returns the `Outcome` of one fit, from the free variables of all starts.

    `begin`, `end`: those before and after training. The loss of a stochastic objective is the last
    one of `history`; the arrays may then be NumPy.
    """
    loss: Float[AnyArray, " starts"] = history["loss"][:, -1]
    if not problem.objective.is_stochastic:  # that of the end, not of one step before
        loss = jax.vmap(problem.loss)(end)
    result = namespace_of(loss).where(diverged, Result.DIVERGED, Result.TRAINED)
    return collect_outcome(problem, begin, end, loss, steps, result, history)
