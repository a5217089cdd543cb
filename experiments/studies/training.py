"""Training on tasks that are drawn anew at every step, where `ak.fit` fits one data set."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

import attnkernel as ak

from ..runs import Monitor, distributed

Model = TypeVar("Model")


class Diverged(FloatingPointError):
    """The loss of a training, or its gradient, is not finite."""


def require_finite(fit: ak.Fit) -> None:
    """Raise `Diverged` if a fit diverged from all of its starts. Call it after `run.summary`."""
    if np.any(np.all(fit.starts.diverged, axis=-1)):
        raise Diverged(fit.warnings()[0])


def sizes(study: Any) -> dict[str, Any]:
    """The arguments of `train` that are fields of a study."""
    return {name: getattr(study, name) for name in ("batch", "steps", "learning_rate")}


def train(
    monitor: Monitor,
    model: Model,
    loss: Callable[[Model, Array], Array],
    *,
    batch: int,
    steps: int,
    learning_rate: float,
    key: Array,
    chunk: int = 100,
    name: str = "training",
) -> tuple[Model, np.ndarray]:
    """AdamW with warm-up, cosine decay and clipped gradients; a chunk of steps is one program.

    The members of a batch are split over all devices of all processes; the model is replicated.
    A resumed run starts from its last checkpoint, `checkpoints/NAME-STEP.ckpt`.

    **Arguments:** `loss`: of a model, and the fresh key of one member of a batch. `name`: of the
    model, one for each training of a run.

    **Returns:** the model, and the loss of every step.

    **Raises:** `Diverged` at the first step without a finite loss and gradient; the model before
    that step is in `checkpoints/last_finite`, for `ak.load`.
    """
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, max(1, steps // 20), steps, 0.01 * learning_rate
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    moving, fixed = eqx.partition(model, eqx.is_inexact_array)
    # no weak types: the state of a chunk has none, and the next chunk would compile again
    moving = jax.tree.map(lambda leaf: leaf.astype(leaf.dtype), moving)
    devices = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    whole, cut = (NamedSharding(devices, PartitionSpec(*axes)) for axes in ((), ("batch",)))

    def mean_loss(moving: Any, key: Array) -> Array:
        keys = jax.lax.with_sharding_constraint(jax.random.split(key, batch), cut)
        return jnp.mean(jax.vmap(lambda key: loss(eqx.combine(moving, fixed), key))(keys))

    @eqx.filter_jit
    def advance(state: Any, keys: Array) -> tuple[Any, tuple[Array, Array]]:
        def step(state: Any, key: Array) -> tuple[Any, tuple[Array, Array]]:
            moving, optimizer_state, sound = state
            value, slope = jax.value_and_grad(mean_loss)(moving, key)
            sound = sound & jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(slope))
            updates, moved = optimizer.update(slope, optimizer_state, moving)
            moved = (optax.apply_updates(moving, updates), moved)
            # one that diverged stays where it was
            kept = jax.tree.map(
                lambda new, old: jnp.where(sound, new, old), moved, (moving, optimizer_state)
            )
            return (*kept, sound), (value, sound)

        return jax.lax.with_sharding_constraint(jax.lax.scan(step, state, keys), whole)

    checkpoints = monitor.checkpoints(name.replace(" ", "_"))
    member = "model" if name == "training" else name
    state, losses = (moving, optimizer.init(moving), jnp.ones((), bool)), []
    keys = jax.random.split(key, steps)
    with monitor.progress(name, steps) as tick, monitor.timed(name):
        kept = None if checkpoints is None else checkpoints.load(state)
        if begun := int(distributed.broadcast(np.array(0 if kept is None else kept.done))):
            found = np.zeros(begun, jnp.result_type(float))
            state, found = distributed.broadcast((state, found) if kept is None else kept[1:])
            losses = [np.asarray(found)]
            monitor.step_metrics(begun, "model", [member], loss=losses[0][None])
            tick(begun, f"loss {losses[0][-chunk:].mean():.4f}")
        if jax.process_count() == 1:  # as a chunk returns it: else the second compiles again
            state = jax.device_put(state, whole)
        for start in range(begun, steps, chunk):
            state, (found, sound) = advance(state, keys[start : start + chunk])
            found, sound = np.asarray(found), np.asarray(sound)
            losses.append(found)
            done = start + len(found)
            monitor.step_metrics(done, "model", [member], loss=found[None])
            if not sound.all():
                first = int(np.argmin(sound))
                monitor.save("last_finite", eqx.combine(state[0], fixed))
                raise Diverged(
                    _explain_divergence(start + first + 1, float(found[first]), learning_rate)
                )
            losses = [np.concatenate(losses)]
            if checkpoints is not None:
                checkpoints.save(done, state, losses[0], last=done == steps)
            tick(done, f"loss {found.mean():.4f}")
    # on one device, and on that of each process: what comes after the training is no batch
    here = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), state[0])
    return eqx.combine(here, fixed), losses[0]


def _explain_divergence(step: int, loss: float, learning_rate: float) -> str:
    """Returns a sentence that names the step at which the loss or its gradient was not finite, and
    what to try.
    """
    what = "its gradient is not finite" if np.isfinite(loss) else f"the loss is {loss}"
    return (
        f"at step {step} {what}; the model before it is in checkpoints/last_finite. Likely: "
        f"learning_rate={learning_rate:g} is too large (try {learning_rate / 3:.1g}), or numbers "
        f"outgrew float32 (try precision: float64)"
    )
