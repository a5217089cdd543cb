r"""The sum over a mesh of devices, each of which holds a part of the keys.

Each part is a softmax state, and states merge. With all queries on every device, one sum over the
devices (`psum`) merges them. With queries cut as well, each block of keys goes round the ring of
devices (`ppermute`), and every device adds it as it passes (Liu, Zaharia and Abbeel, *Ring
attention with blockwise transformers for near-infinite context*, 2023).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxtyping import Array

from .._core.tracing import NO_SYMBOLIC_SIZES, is_symbolic
from .._core.validation import require_bool
from ..kernels import Kernel
from ..priors import Prior
from ..rules import Rule
from ._base import Keys, Method, Queries, Task, Values
from ._blockwise import Blockwise
from ._device_sums import prior_of_device, sum_replicated, sum_ring
from ._softmax_state import SoftmaxState

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
    axes of the mesh are left to XLA: batches may be cut over them. A mesh is of one machine, and no
    file holds it: save a model with another method, `eqx.tree_at(lambda model: model.method, model,
    ak.attention.Auto())`.

    Virtual devices of a CPU wait for each other in one pool of threads, as many as cores: set
    `NPROC`, before JAX starts, to more than there are devices, or they may wait forever.

    **Arguments:**

    - `mesh`: a `jax.sharding.Mesh` whose axis is `Auto`. Default: all devices, in one axis.
    - `axis`: the name of the axis of the mesh. Default: "devices".
    - `ring`: whether queries are cut as well. Default: no.
    - `inner`: the method of each part. Default: `Blockwise()`.

    **Raises:** `ValueError` if the mesh has no such axis, or it is not `Auto`.

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
        """P, the number of parts."""
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
        inner = self.inner.resolve(self._task_per_device(task))
        return Sharded(self.mesh, self.axis, ring=self.ring, inner=inner)

    def batch_size(self, task: Task) -> int | None:
        return self.inner.batch_size(self._task_per_device(task))

    def _task_per_device(self, task: Task) -> Task:
        """Returns the task that `inner` evaluates on one device: its share of queries and keys."""
        queries = -(-task.queries // self.devices) if self.ring else task.queries
        keys = -(-task.keys // self.devices)
        prior = prior_of_device(task.prior, 0, queries, 0, task.keys, self.devices)
        return task._replace(prior=prior, rule=task.rule.without_sink(), queries=queries, keys=keys)

    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        queries, keys = len(q), len(k)
        if queries == 0 or keys == 0:
            return self.inner.softmax_state(q, k, v, kernel, prior, rule)
        # arrays are arguments, for a function over a mesh closes over none
        parts = self.inner, kernel, prior, rule.without_sink()
        arrays, rest = eqx.partition(parts, eqx.is_array)
        sum_parts = sum_ring if self.ring else sum_replicated

        def on_device(arrays: Any, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
            state = sum_parts(q, k, v, eqx.combine(arrays, rest), keys, (self.axis, self.devices))
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
