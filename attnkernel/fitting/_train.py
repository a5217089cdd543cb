"""The training loop: a scan over steps, in chunks.

One chunk is one call of one compiled program. Between chunks the host looks: at progress, at
Ctrl-C, at whether everything has stopped. The PRNG key is part of the state.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .._core.validation import require_shape
from ..objectives._objective import Objective
from ._bfgs import Bfgs
from ._bounds import Box
from ._checkpoints import Checkpoints

History = dict[str, Any]
Callback = Callable[[int, History], None]


class Problem(NamedTuple):
    """What is fitted to what: arrays, the same from the first step to the last."""

    frozen: PyTree  # the leaves of the model that are not trained
    x: Float[Array, "*batch n dim"]
    y: Float[Array, "*rows"]
    objective: Objective
    box: Box | None

    def model(self, z: PyTree) -> Any:
        """The model at free variables z."""
        return eqx.combine(z if self.box is None else self.box.inside(z), self.frozen)


class Recipe(NamedTuple):
    """How it is fitted: functions and numbers, static to the compiled program."""

    optimizer: optax.GradientTransformation | None  # None: a search
    # stop where |gradient| <= tolerance · |loss|, or nothing is gained; None: never
    tolerance: float | None
    record: Callable[[Any], History] | None


class State(eqx.Module):
    """The state of one training. A stopped one (converged or diverged) no longer moves."""

    z: PyTree
    finite: PyTree  # the last z whose loss and gradient were finite
    optimizer: PyTree
    key: PRNGKeyArray
    loss: Float[Array, ""]  # of the step before; infinite at first
    steps: Int[Array, ""]  # taken
    most: Int[Array, ""]  # of a search
    converged: Bool[Array, ""]
    diverged: Bool[Array, ""]

    @classmethod
    def start(
        cls, z: PyTree, optimizer: optax.GradientTransformation | None, key: PRNGKeyArray
    ) -> "State":
        false = jnp.zeros((), bool)
        loss = jnp.asarray(jnp.inf, float)
        zero = jnp.zeros((), int)
        begun = Bfgs.start(z) if optimizer is None else optimizer.init(z)
        most = jnp.full((), jnp.iinfo(zero.dtype).max)
        return cls(z, z, begun, key, loss, zero, most, false, false)


def advance(state: State, problem: Problem, recipe: Recipe, steps: int) -> tuple[State, History]:
    """`steps` steps of training: a pure function, to be jitted, vmapped, differentiated.

    Each step splits the key, evaluates the objective with the new half, records the loss (and
    what `recipe.record` says of the model) before the update, and updates. A step whose loss or
    gradient is not finite is not taken.
    """
    optimizer = optax.with_extra_args_support(recipe.optimizer or optax.identity())

    def loss_at(z: PyTree, key: PRNGKeyArray) -> Float[Array, ""]:
        found = problem.objective(problem.model(z), problem.x, problem.y, key=key)
        name, hint = f"{type(problem.objective).__name__}", "Take the mean over the rows."
        return require_shape(name, found, (), "one number", hint)

    dtype = jax.eval_shape(loss_at, state.z, state.key).dtype

    def step(state: State, _: None) -> tuple[State, History]:
        if recipe.tolerance is not None:  # a search that stopped costs nothing
            moved = jax.lax.cond(stopped(state), lambda state: state, look, state)
            return moved, recorded(moved) | {"loss": moved.loss.astype(dtype)}
        moved, loss = move(state)
        return moved, recorded(state) | {"loss": loss}

    def stopped(state: State) -> Bool[Array, ""]:
        return state.converged | state.diverged | (state.steps >= state.most)

    def recorded(state: State) -> History:
        return {} if recipe.record is None else recipe.record(problem.model(state.z))

    def look(state: State) -> State:
        bfgs = state.optimizer
        found, slope = jax.value_and_grad(loss_at)(bfgs.trial(state.z), state.key)
        bfgs, z, loss, converged, diverged = bfgs.learn(
            state.z, state.loss, found, slope, recipe.tolerance
        )
        steps = state.steps + ~(converged | diverged)
        return State(z, z, bfgs, state.key, loss, steps, state.most, converged, diverged)

    def move(state: State) -> tuple[State, Array]:
        key, subkey = jax.random.split(state.key)
        loss, gradient = jax.value_and_grad(loss_at)(state.z, subkey)
        slope = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(gradient)]))
        diverged = state.diverged | ~jnp.isfinite(loss) | ~jnp.isfinite(slope)
        updates, optimizer_state = optimizer.update(
            gradient,
            state.optimizer,
            state.z,
            value=loss,
            grad=gradient,
            value_fn=lambda z: loss_at(z, subkey),
        )
        # a diverged training stays at its last finite z; whatever else moves has no effect
        finite = jax.tree.map(lambda a, b: jnp.where(diverged, a, b), state.finite, state.z)
        moves = optax.apply_updates(state.z, updates)
        moved = State(
            z=jax.tree.map(lambda a, b: jnp.where(diverged, a, b), finite, moves),
            finite=finite,
            optimizer=optimizer_state,
            key=key,
            loss=loss.astype(state.loss.dtype),
            steps=state.steps + ~diverged,
            most=state.most,
            converged=state.converged,
            diverged=diverged,
        )
        return moved, loss

    def all_steps(state: State) -> tuple[State, History]:
        return jax.lax.scan(step, state, None, length=steps)

    def no_step(state: State) -> tuple[State, History]:
        last = recorded(state) | {"loss": state.loss.astype(dtype)}
        return state, jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (steps, *jnp.shape(leaf))), last
        )

    if recipe.tolerance is None:
        return all_steps(state)
    return jax.lax.cond(stopped(state), no_step, all_steps, state)


def run(
    advance: Callable[[State, int], tuple[State, History]],
    state: State,
    *,
    steps: int,
    chunk: int,
    callback: Callback | None,
    on_host: bool,
    checkpoints: Checkpoints | None = None,
    identity: str = "",
) -> tuple[State, History]:
    """Calls `advance` in chunks until `steps` are taken or all trainings have stopped.

    Inside a transformation (`on_host` False) there is no host to look between chunks: all steps
    are then one scan. With `checkpoints` it goes on from the newest of them.
    """
    if not on_host:
        return advance(state, steps)
    # the axis of steps comes right behind the axes of fits and starts
    join = functools.partial(np.concatenate, axis=state.steps.ndim)
    histories = []
    done = 0
    if checkpoints is not None and (kept := checkpoints.load(state, identity=identity)):
        done, state = kept.done, kept.state
        histories.append(kept.found)
        if done > steps:
            raise ValueError(
                f"The checkpoints {checkpoints.path} are of {done} steps already, more than "
                f"steps={steps}: ask for at least as many, or give another path."
            )
        if callback is not None:
            callback(done, kept.found)
    while done < steps and not _all_stopped(state):
        taken = min(chunk, steps - done)
        state, history = advance(state, taken)
        history = jax.tree.map(np.asarray, history)
        histories.append(history)
        done += taken
        if callback is not None:
            callback(done, history)
        if checkpoints is not None:
            histories = [jax.tree.map(lambda *parts: join(parts), *histories)]
            last = done >= steps or _all_stopped(state)
            checkpoints.save(done, state, histories[0], identity=identity, last=last)
    return state, jax.tree.map(lambda *parts: join(parts), *histories)


def _all_stopped(state: State) -> bool:
    return bool(np.all(np.asarray(state.converged) | np.asarray(state.diverged)))
