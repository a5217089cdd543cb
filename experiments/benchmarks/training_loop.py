"""Masked hold-out as a Python loop over jitted steps: the code of Czyż (2024)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import attnkernel as ak

SINK_MASS = 1e-16
LEARNING_RATE = 0.2


def train_each(
    problems: Sequence[tuple[dict[str, Any], int, PRNGKeyArray]],
    data: ak.data.Dataset,
    steps: int,
    kept: dict[tuple[int, int], Callable],
) -> list[Float[Array, " heads"]]:
    """The lengthscales of each problem (initial parameters, number of rows held out, key)."""
    x, y, fixed = data.x[:, 0], data.y, {"steps": steps, "kept": kept}
    return [
        train_step_by_step(start, x, y, hold_out=hold_out, key=key, **fixed)
        for start, hold_out, key in problems
    ]


def train_step_by_step(
    params: dict[str, Any],
    x: Float[Array, " n"],
    y: Float[Array, " n"],
    *,
    hold_out: int,
    steps: int,
    key: PRNGKeyArray,
    kept: dict[tuple[int, int], Callable],
) -> Float[Array, " heads"]:
    """Masked hold-out as Czyż (2024) writes it; `kept` keeps compiled steps, by problem.

    `params` are a list `log_lengthscales`, and `weights` (None: one head, of weight 1). Returns
    the lengthscales, unhalved.
    """
    optimizer = optax.adam(LEARNING_RATE)

    def head(log_lengthscale: Array, q: Array, k: Array, v: Array) -> Array:
        weights = jnp.exp(-(((q[:, None] - k[None, :]) / jnp.exp(log_lengthscale)) ** 2))
        weights = weights / (jnp.sum(weights, axis=1, keepdims=True) + SINK_MASS)
        return jnp.sum(weights * v[None, :], axis=1)

    @jax.jit
    def step(params: Any, state: Any, q: Array, truth: Array, k: Array, v: Array) -> Any:
        def loss(params: Any) -> Array:
            heads = jnp.stack([head(log, q, k, v) for log in params["log_lengthscales"]])
            combined = heads[0] if params["weights"] is None else params["weights"] @ heads
            return jnp.mean((combined - truth) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    kept_step = kept.setdefault((hold_out, len(params["log_lengthscales"])), step)
    state = optimizer.init(params)
    losses = []
    for _ in range(steps):
        key, subkey = jax.random.split(key)
        order = jax.random.permutation(subkey, jnp.arange(len(x)))
        test, train = order[:hold_out], order[hold_out:]
        params, state, value = kept_step(params, state, x[test], y[test], x[train], y[train])
        losses.append(value)
    return jnp.exp(jnp.stack(params["log_lengthscales"]))
