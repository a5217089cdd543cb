"""The sums on one device of a mesh: of its own keys, or of all keys as they go round the ring."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ..kernels import Kernel
from ..priors import AtPositions, HeldOut, Prior, key_mask_of
from ..rules import Rule
from ._base import Method
from ._blocks import jvp_with_constants
from ._softmax_state import SoftmaxState

Parts = tuple[Method, Kernel, Prior | None, Rule]


def prior_of_device(
    prior: Prior | None,
    first_query: ArrayLike,
    queries: int,
    first_key: ArrayLike,
    keys: int,
    devices: int,
) -> Prior | None:
    """Returns the prior of the queries and keys of one device; None if it allows all pairs.

    `first_query`, `first_key`: the positions of the first query and key of the device. `queries`:
    their number on the device. `keys`: the number of all keys of all devices; the positions from
    there on are padding and hidden.
    """
    mask = key_mask_of(prior)
    number = first_key + jnp.arange(-(-keys // devices))
    padding = number >= keys if keys % devices else None
    if mask.reason_beyond() is None:
        if mask.allowed is None:
            return None if padding is None else HeldOut(padding)
        hidden = ~mask.allowed[jnp.minimum(number, keys - 1)]
        return HeldOut(hidden if padding is None else hidden | padding)
    assert prior is not None
    part = AtPositions(prior, first_query + jnp.arange(queries), number)
    return part if padding is None else part * HeldOut(padding)


def _state_of_device(
    q: Array,
    k: Array,
    v: Array,
    parts: Parts,
    first_query: ArrayLike,
    owner: Array,
    total: tuple[int, int],
) -> SoftmaxState:
    """Returns the softmax state of the queries q over the keys k and values v of one device.

    `parts`: the method, kernel, prior and rule. `first_query`: the position of the first query.
    `owner`: the index of the device that the keys come from. `total`: the number of all keys, and
    the number of devices.
    """
    method, kernel, prior, rule = parts
    prior = prior_of_device(prior, first_query, len(q), owner * len(k), *total)
    return method.softmax_state(q, k, v, kernel, prior, rule)


def sum_replicated(
    q: Array, k: Array, v: Array, parts: Parts, keys: int, axis: tuple[str, int]
) -> SoftmaxState:
    """Returns the softmax state of all queries over all keys; each device holds part of the keys.

    `k`, `v`: the keys and values of this device. `parts`: the method, kernel, prior and rule.
    `keys`: the number of all keys. `axis`: the name of the mesh axis, and its number of devices.
    """
    name, devices = axis
    here = jax.lax.axis_index(name)
    return _state_of_device(q, k, v, parts, 0, here, (keys, devices)).merge_over_axis(name)


def sum_ring(
    q: Array, k: Array, v: Array, parts: Parts, keys: int, axis: tuple[str, int]
) -> SoftmaxState:
    """Returns the softmax state of the queries of this device over the keys of all devices.

    Keys and values pass round a ring of devices; arguments as for `sum_replicated`.
    """
    shift, sums = _ring_sums(q, k, v, parts, keys, axis)
    return SoftmaxState(shift, sums[:, -1], sums[:, :-1])


@eqx.filter_custom_jvp
def _ring_sums(
    q: Array, k: Array, v: Array, parts: Parts, keys: int, axis: tuple[str, int]
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """Returns L = log Z and Σ exp(s − L) (v, 1) over the keys of all devices.

    Both are 0 for a query that sees no key. Arguments as for `sum_ring`.
    """
    name, devices = axis
    here = jax.lax.axis_index(name)

    def step(
        t: Array, state: tuple[Array, Array, SoftmaxState]
    ) -> tuple[Array, Array, SoftmaxState]:
        k, v, merged = state
        onward = _send_along_ring((k, v), name, devices, 1)
        owner, first = (here - t) % devices, here * len(q)
        part = _state_of_device(q, k, v, parts, first, owner, (keys, devices))
        return *onward, merged.merge(part)

    none = SoftmaxState.from_log_weights(jnp.zeros((len(q), 0), v.dtype), v[:0])
    state = jax.lax.fori_loop(0, devices, step, (k, v, none))[2]
    shift = jnp.where(state.mass > 0, state.log_mass, 0.0)
    shift = jnp.where(jnp.isnan(state.mass), jnp.nan, shift)
    return shift, _rescaled_sums(state, shift)


@_ring_sums.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[tuple[Array, Array], tuple[None, Array]]:
    """Returns `_ring_sums` and its tangents; that of L is None, since L is held constant."""
    out = _ring_sums(*primals)
    sums = functools.partial(_ring_sums_at_shift, shift=out[0])
    return out, (None, jvp_with_constants(sums, primals, tangents))


def _ring_sums_at_shift(
    q: Array, k: Array, v: Array, parts: Parts, keys: int, axis: tuple[str, int], shift: Array
) -> Float[Array, "queries width"]:
    """Returns Σ exp(s − shift) (v, 1) over the keys of all devices; its steps are checkpointed.

    Each step fetches its keys from their own device: a derivative would save what is carried from
    step to step, for all steps.
    """
    name, devices = axis
    here = jax.lax.axis_index(name)
    hops = [
        functools.partial(_send_along_ring, name=name, devices=devices, by=by)
        for by in range(devices)
    ]

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def of_step(t: Array, q: Array, k: Array, v: Array, parts: Parts, shift: Array) -> Array:
        k, v = jax.lax.switch(t, hops, (k, v))
        owner, first = (here - t) % devices, here * len(q)
        part = _state_of_device(q, k, v, parts, first, owner, (keys, devices))
        return _rescaled_sums(part, shift)

    def step(sums: Array, t: Array) -> tuple[Array, None]:
        return sums + of_step(t, q, k, v, parts, shift), None

    start = jnp.zeros((len(q), v.shape[1] + 1), v.dtype)
    return jax.lax.scan(step, start, jnp.arange(devices))[0]


def _rescaled_sums(
    state: SoftmaxState, shift: Float[Array, " queries"]
) -> Float[Array, "queries width"]:
    """Returns Σ exp(s − shift) (v, 1) of a softmax state: its total, then its mass as a column."""
    scale = jnp.exp(jnp.where(state.mass > 0, state.maximum - shift, -jnp.inf))
    sums = jnp.concatenate([state.total, state.mass[:, None]], axis=1)
    return sums * scale[:, None]


def _send_along_ring(
    rows: tuple[Array, Array], name: str, devices: int, by: int
) -> tuple[Array, Array]:
    """Sends the keys and values of each device `by` devices on, and returns those received.

    `rows`: the keys and the values. `name`: the name of the mesh axis. `devices`: their number.
    """
    if by == 0:
        return rows
    return jax.lax.ppermute(rows, name, [(r, (r + by) % devices) for r in range(devices)])
