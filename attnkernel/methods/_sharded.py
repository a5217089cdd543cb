r"""The sum over a mesh of devices, each of which holds a part of the keys.

Each part is a softmax state, and states merge. With all queries on every device, one sum over the
devices (`psum`) merges them. With queries cut as well, each block of keys goes round the ring of
devices (`ppermute`), and every device adds it as it passes (Liu, Zaharia and Abbeel, *Ring
attention with blockwise transformers for near-infinite context*, 2023).
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.tracing import NO_SYMBOLIC_SIZES, is_symbolic
from .._core.validation import require_bool
from ..kernels import Kernel
from ..priors import AtPositions, HeldOut, Prior, pair_mask_of
from ..rules import Rule
from ._base import Keys, Method, Queries, Task, Values
from ._blockwise import Blockwise
from ._softmax_state import SoftmaxState

Parts = tuple[Method, Kernel, Prior | None, Rule]

_ADVICE = "jax.make_mesh((8,), ('devices',), axis_types=(jax.sharding.AxisType.Auto,))"


class Sharded(Method):
    r"""Keys and values cut over the devices of a mesh; exact, if the method of each part is.

    On P devices each holds n / P keys. With the queries on all of them (`ring=False`), each sums
    its keys for every query, and the states of all parts are merged by a `psum`: it moves
    $m (d_v + 2)$ numbers, whatever n is. With `ring=True` queries are cut too, and in P steps each
    block of keys and values goes round: a device then holds $(m + n) / P$ rows, for gradients too,
    and each step moves $n (d + d_v) / P$ numbers while $m n / P^2$ pairs are summed.

    Rows are padded to a multiple of P. Kernel, rule and prior are whole on every device; positions
    are those of the whole arrays. Arrays may come from one device, or laid out on the mesh. Other
    axes of the mesh are left to XLA: batches may be cut over them. A mesh belongs to one machine
    and is not saved to files: save a model with another method, `eqx.tree_at(lambda model:
    model.method, model, ak.attention.Auto())`.

    Virtual devices of a CPU wait for each other in one pool of threads, as many as cores: set
    `NPROC`, before JAX starts, to more than there are devices, or they may wait forever.

    **Arguments:**

    - `mesh`: a `jax.sharding.Mesh` whose axis is `Auto`. Default: all devices, in one axis.
    - `axis`: the name of the axis of the mesh. Default: "devices".
    - `ring`: whether queries are cut as well. Default: no.
    - `inner`: the method of each part. Default: `Blockwise()`.

    **Raises:** `ValueError` if the mesh has no such axis, or it is not `Auto`; if `inner` is
    `Sharded`, or another argument is not of its type.

    ```python
    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    out = ak.attend(x, x, x, kernel=ak.Gaussian(0.3), method=ak.methods.Sharded())
    assert jnp.allclose(out, ak.attend(x, x, x, kernel=ak.Gaussian(0.3)), atol=1e-5)
    ```
    """

    mesh: Mesh = eqx.field(static=True)
    axis: str = eqx.field(static=True)
    ring: bool = eqx.field(static=True)
    inner: Method

    def __init__(
        self,
        mesh: Mesh | None = None,
        axis: str = "devices",
        *,
        ring: bool = False,
        inner: Method = Blockwise(),
    ):
        require_bool("ring", ring)
        if not isinstance(axis, str):
            raise ValueError(f"axis must be the name of an axis of the mesh; got {axis!r}.")
        if mesh is None:
            mesh = jax.make_mesh((jax.device_count(),), (axis,), axis_types=(AxisType.Auto,))
        if not isinstance(mesh, Mesh):
            raise ValueError(f"mesh must be a jax.sharding.Mesh; got {mesh!r}. Try {_ADVICE}.")
        if axis not in mesh.axis_names:
            names = ", ".join(map(str, mesh.axis_names))
            raise ValueError(f"axis must be one of the axes of the mesh, {names}; got {axis!r}.")
        kind = mesh.axis_types[mesh.axis_names.index(axis)]
        if kind != AxisType.Auto:
            raise ValueError(f"The axis {axis!r} must be Auto; it is {kind.name}. Try {_ADVICE}.")
        if not isinstance(inner, Method) or isinstance(inner, Sharded):
            raise ValueError(
                f"inner must be a Method for one device, such as ak.methods.Blockwise(); "
                f"got {inner!r}."
            )
        self.mesh, self.axis, self.ring, self.inner = mesh, axis, ring, inner

    @property
    def devices(self) -> int:
        """The number P of devices along `axis`."""
        return self.mesh.shape[self.axis]

    def unsupported_reason(self, task: Task) -> str | None:
        if is_symbolic(task.queries, task.keys):
            return NO_SYMBOLIC_SIZES
        if task.rule.entmax_exponent is not None:
            return (
                f"the weights of {type(task.rule).__name__} depend on all keys of a query at once"
            )
        if (reason := self.inner.unsupported_reason(self._task_per_device(task))) is not None:
            return f"{type(self.inner).__name__} cannot evaluate a part of it: {reason}"
        return None

    def resolve(self, task: Task) -> "Sharded":
        """Returns this method with `inner` resolved for the part of the task on one device."""
        inner = self.inner.resolve(self._task_per_device(task))
        return Sharded(self.mesh, self.axis, ring=self.ring, inner=inner)

    def batch_size(self, task: Task) -> int | None:
        """The `batch_size` of `inner` for the part of the task on one device."""
        return self.inner.batch_size(self._task_per_device(task))

    def _task_per_device(self, task: Task) -> Task:
        """Returns the task that `inner` evaluates on one device, without the sink.

        It has the keys of one device. It has all queries; with `ring`, the queries of one device.
        """
        queries = -(-task.queries // self.devices) if self.ring else task.queries
        keys = -(-task.keys // self.devices)
        prior = _prior_of_device(task.prior, 0, queries, 0, task.keys, self.devices)
        return task._replace(prior=prior, rule=task.rule.without_sink(), queries=queries, keys=keys)

    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        queries, keys = len(q), len(k)
        # arrays are arguments, for a function over a mesh closes over none
        parts = self.inner, kernel, prior, rule.without_sink()
        arrays, rest = eqx.partition(parts, eqx.is_array)
        axis = self.axis, self.devices

        def on_device(arrays: Any, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
            of_device = q, k, v, eqx.combine(arrays, rest)
            if self.ring:
                return _ring_sums(*of_device, keys, axis)
            here = jax.lax.axis_index(self.axis)
            state = _state_of_device(*of_device, 0, here, (keys, self.devices))
            state = state.merge_over_axis(self.axis)
            return state.maximum, state.mass, state.total

        whole, cut = PartitionSpec(), PartitionSpec(self.axis)
        of_queries = cut if self.ring else whole
        summed = jax.shard_map(
            on_device,
            mesh=self.mesh,
            in_specs=(whole, of_queries, cut, cut),
            out_specs=of_queries,
            axis_names={self.axis},
            check_vma=False,  # the methods know of no mesh, and their loops begin with constants
        )

        def padded(rows: Array) -> Array:
            short = -len(rows) % self.devices
            # no empty pad: its derivative would hold all rows on one device
            return jnp.pad(rows, ((0, short), (0, 0)), mode="edge") if short else rows

        out = jax.jit(summed)(arrays, padded(q) if self.ring else q, padded(k), padded(v))
        return SoftmaxState(*(leaf[:queries] for leaf in out)).with_sink(rule.log_sink())


def _prior_of_device(
    prior: Prior | None,
    first_query: ArrayLike,
    queries: int,
    first_key: ArrayLike,
    keys: int,
    devices: int,
) -> Prior | None:
    """Returns the prior of the queries and keys of one device.

    Returns None if `prior` masks nothing, such as None, and no device has padding. `first_query`,
    `first_key`: the positions of the first query and key of the device. `queries`: the number of
    queries on the device. `keys`: the number of all keys of all devices; the positions from
    there on are padding and hidden.
    """
    mask = pair_mask_of(prior)
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
    prior = _prior_of_device(prior, first_query, len(q), owner * len(k), *total)
    return method.softmax_state(q, k, v, kernel, prior, rule)


@eqx.filter_custom_jvp
def _ring_sums(
    q: Array, k: Array, v: Array, parts: Parts, keys: int, axis: tuple[str, int]
) -> tuple[Float[Array, " queries"], Float[Array, " queries"], Float[Array, "queries dim_v"]]:
    """Returns L = log Z and Σ exp(s − L) (v, 1) over the keys of all devices.

    All are 0 for a query that sees no key. Keys and values pass round a ring of devices. L has no
    derivative, and the sums have that at constant L.

    `k`, `v`: the keys and values of this device. `parts`: the method, kernel, prior and rule.
    `keys`: the number of all keys. `axis`: the name of the mesh axis, and its number of devices.
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
    sums = state.relative_to(shift)
    return shift, sums.mass, sums.total


@_ring_sums.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    """Returns L and the sums, and their tangents; that of L is None: L is held constant."""
    out = _ring_sums(*primals)
    sums = functools.partial(_ring_sums_at_shift, shift=out[0])
    return out, (None, *eqx.filter_jvp(sums, primals, tangents)[1])


def _ring_sums_at_shift(
    q: Array, k: Array, v: Array, parts: Parts, keys: int, axis: tuple[str, int], shift: Array
) -> tuple[Array, Array]:
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
    def of_step(t: Array, q: Array, k: Array, v: Array, parts: Parts, shift: Array) -> tuple:
        k, v = jax.lax.switch(t, hops, (k, v))
        owner, first = (here - t) % devices, here * len(q)
        part = _state_of_device(q, k, v, parts, first, owner, (keys, devices)).relative_to(shift)
        return part.mass, part.total

    def step(sums: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], None]:
        return jax.tree.map(jnp.add, sums, of_step(t, q, k, v, parts, shift)), None

    start = jnp.zeros(len(q), v.dtype), jnp.zeros((len(q), v.shape[1]), v.dtype)
    return jax.lax.scan(step, start, jnp.arange(devices))[0]


def _send_along_ring(
    rows: tuple[Array, Array], name: str, devices: int, by: int
) -> tuple[Array, Array]:
    """Sends the keys and values of each device `by` devices on, and returns those received.

    `rows`: the keys and the values. `name`: the name of the mesh axis. `devices`: their number.
    """
    if by == 0:
        return rows
    return jax.lax.ppermute(rows, name, [(r, (r + by) % devices) for r in range(devices)])
