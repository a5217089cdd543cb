"""Training on tasks that are drawn anew at every step, where `ak.fit` fits one data set."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

import attnkernel as ak

from ..results import Run

Model = TypeVar("Model")


class Diverged(FloatingPointError):
    """A training whose loss, or the slope of it, is no longer a number."""


def train(
    run: Run,
    model: Model,
    loss: Callable[[Model, Array], Array],
    *,
    steps: int,
    learning_rate: float,
    key: Array,
    chunk: int = 100,
) -> tuple[Model, np.ndarray]:
    """AdamW with warm-up, cosine decay and clipped gradients; a chunk of steps is one program.

    A run that is resumed goes on from its last checkpoint, `checkpoints/training-STEP.ckpt`.

    **Arguments:** `loss`: of a model and a fresh key.

    **Returns:** the model, and the loss of every step.

    **Raises:** `Diverged` at the first step without a finite loss and gradient; the model before
    that step is in `checkpoints/last_finite`, for `ak.load`.
    """
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, max(1, steps // 20), steps, 0.01 * learning_rate
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    moving, fixed = eqx.partition(model, eqx.is_inexact_array)

    @eqx.filter_jit
    def advance(state: Any, keys: Array) -> tuple[Any, tuple[Array, Array]]:
        def step(state: Any, key: Array) -> tuple[Any, tuple[Array, Array]]:
            moving, optimizer_state, sound = state
            value, slope = jax.value_and_grad(lambda m: loss(eqx.combine(m, fixed), key))(moving)
            sound = sound & jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(slope))
            updates, moved = optimizer.update(slope, optimizer_state, moving)
            moved = (optax.apply_updates(moving, updates), moved)
            # one that diverged stays where it was
            kept = jax.tree.map(
                lambda new, old: jnp.where(sound, new, old), moved, (moving, optimizer_state)
            )
            return (*kept, sound), (value, sound)

        return jax.lax.scan(step, state, keys)

    checkpoints = run.checkpoints("training")
    state, losses, begun = (moving, optimizer.init(moving), jnp.ones((), bool)), [], 0
    keys = jax.random.split(key, steps)
    with run.progress("training", steps) as tick, run.timed("training"):
        if (kept := checkpoints.load(state)) is not None:
            state, losses, begun = kept.state, [kept.found], kept.done
            run.step_metrics(begun, "model", ["model"], loss=kept.found[None])
            tick(begun, f"loss {kept.found[-chunk:].mean():.4f}")
        for start in range(begun, steps, chunk):
            state, (found, sound) = advance(state, keys[start : start + chunk])
            found, sound = np.asarray(found), np.asarray(sound)
            losses.append(found)
            done = start + len(found)
            run.step_metrics(done, "model", ["model"], loss=found[None])
            if not sound.all():
                first = int(np.argmin(sound))
                ak.save(run.file("checkpoints/last_finite"), eqx.combine(state[0], fixed))
                raise Diverged(_why(start + first + 1, float(found[first]), learning_rate))
            losses = [np.concatenate(losses)]
            checkpoints.save(done, state, losses[0], last=done == steps)
            tick(done, f"loss {found.mean():.4f}")
    return eqx.combine(state[0], fixed), losses[0]


def _why(step: int, loss: float, learning_rate: float) -> str:
    what = "its gradient is not finite" if np.isfinite(loss) else f"the loss is {loss}"
    return (
        f"at step {step} {what}; the model before it is in checkpoints/last_finite. Likely: "
        f"learning_rate={learning_rate:g} is too large (try {learning_rate / 3:.1g}), or numbers "
        f"outgrew float32 (try precision: float64)"
    )
