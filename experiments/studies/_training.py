"""Training on tasks that are drawn anew at every step, where `ak.fit` fits one data set."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import Array

from ..results import Run

Model = TypeVar("Model")


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

    **Arguments:** `loss`: of a model and a fresh key.

    **Returns:** the model, and the loss of every step.
    """
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, max(1, steps // 20), steps, 0.01 * learning_rate
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    moving, fixed = eqx.partition(model, eqx.is_inexact_array)

    @eqx.filter_jit
    def advance(state: Any, keys: Array) -> tuple[Any, Array]:
        def step(state: Any, key: Array) -> tuple[Any, Array]:
            moving, optimizer_state = state
            value, slope = jax.value_and_grad(lambda m: loss(eqx.combine(m, fixed), key))(moving)
            updates, optimizer_state = optimizer.update(slope, optimizer_state, moving)
            return (optax.apply_updates(moving, updates), optimizer_state), value

        return jax.lax.scan(step, state, keys)

    state, losses = (moving, optimizer.init(moving)), []
    keys = jax.random.split(key, steps)
    with run.progress("training", steps) as tick, run.timed("training"):
        for start in range(0, steps, chunk):
            state, found = advance(state, keys[start : start + chunk])
            found = np.asarray(found)
            losses.append(found)
            done = start + len(found)
            run.step_metrics(done, "model", ["model"], loss=found[None])
            if not np.isfinite(found).all():
                raise FloatingPointError(f"the loss is not finite by step {done}")
            tick(done, f"loss {found.mean():.4f}")
    return eqx.combine(state[0], fixed), np.concatenate(losses)
