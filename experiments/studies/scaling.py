r"""A sum over 1, 2, 4 and 8 devices: what each holds, what it sends, and that the sum is the same.

Devices of a CPU are virtual here: they share its cores, so that speed is not measured. What a ring
costs on accelerators is arithmetic. At a step each of P devices sums $(n/P)^2$ pairs, and sends
$2 (n/P)\, d$ numbers of b bytes at W bytes a second; with F operations and E exponentials a
second, the sending hides behind the sums from

$$ \frac nP \;\ge\; \frac{2 d b / W}{\max(4 d / F,\; 1 / E)} $$

rows on each device. Gradients ask for less: 10 d operations a pair, 4 d numbers a row.
"""

import functools
import itertools
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..benchmarks.driver import MIB, deviation, in_fresh_process
from ..config import NonEmpty
from ..reports import subplots, ticks_at
from ..runs import NO_MONITOR, Monitor, Run, reserve_threads
from .study import Study

Count = Annotated[int, Field(ge=1, le=64)]


class Accelerators(NamedTuple):
    """So many devices, and of each the operations, exponentials and bytes sent in a second."""

    name: str
    devices: int
    operations: float
    exponentials: float
    link: float
    bytes: int


# NVIDIA's data sheets: dense rates; a link one way, within a machine (NVLink) and between machines
# (one adapter for each GPU); exponentials: 16 a clock of each multiprocessor (CUDA's guide)
_ACCELERATORS = [
    Accelerators("8 A100, bf16, NVLink", 8, 312e12, 108 * 16 * 1.41e9, 300e9, 2),
    Accelerators("64 A100, bf16, 200 Gb/s", 64, 312e12, 108 * 16 * 1.41e9, 25e9, 2),
    Accelerators("8 H100, bf16, NVLink", 8, 989e12, 132 * 16 * 1.83e9, 450e9, 2),
    Accelerators("64 H100, bf16, 400 Gb/s", 64, 989e12, 132 * 16 * 1.83e9, 50e9, 2),
    Accelerators("8 H100, float32, NVLink", 8, 67e12, 132 * 16 * 1.83e9, 450e9, 4),
    Accelerators("64 H100, float32, 400 Gb/s", 64, 67e12, 132 * 16 * 1.83e9, 50e9, 4),
]


class Scaling(Study):
    """`ak.methods.Sharded`: memory of each device, agreement with one, and communication."""

    study: Literal["scaling"]
    devices: NonEmpty[Count] = [1, 2, 4, 8]
    n: int = Field(default=2**18, ge=64, le=2**24)
    dim: int = Field(default=64, ge=1, le=256)
    checked: int = Field(
        default=1000,
        ge=8,
        le=2**13,
        description="rows of the sum that is compared with the dense one",
    )
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> list[dict[str, Any]]:
        counts = sorted(set(self.devices))
        return in_fresh_process(measure, counts, self.n, self.dim, self.checked, self.seed)

    def report(self, results: list[dict[str, Any]], run: Run) -> None:
        if left := sorted(set(self.devices) - {row["devices"] for row in results}):
            run.note([f"{', '.join(map(str, left))} devices: not available on this machine"])
        run.table_of(
            f"n = {self.n}, {self.dim} dimensions, float32: MiB of each device; and the largest "
            f"error of {self.checked} rows in float64",
            results,
        )
        dims = [3, 16, 64, 128]
        least = {on.name: rows_to_hide(on, dims) for on in _ACCELERATORS}
        run.table(
            "Rows n from which a ring computes for longer than it sends (arithmetic, peak rates)",
            ["", *(f"d = {d}" for d in dims)],
            [[name, *(f"{n:,.0f}" for n in found)] for name, found in least.items()],
        )
        self._draw_memory_and_rows(run, results)
        worst = max(max(row["value_error"], row["gradient_error"]) for row in results)
        hidden = {"dims": dims, **least}
        found = {"table": results, "rows_from_which_sending_hides": hidden, "worst_error": worst}
        run.summary(found)

    def _draw_memory_and_rows(self, run: Run, rows: list[dict[str, Any]]) -> None:
        """Draws the memory of a device against the number of devices, and the number of rows from
        which a ring computes for longer than it sends; saves the figure in `run`. `rows`: those of
        `measure`.
        """
        figure, (left, right) = subplots(1, 2, figsize=(8.6, 3.8))
        saved = {}  # by layout, of the gradient, from the fewest devices to the most
        for layout, color in (("keys cut", ak.plot.BLUE), ("ring", ak.plot.ORANGE)):
            of_layout = [row for row in rows if row["layout"] == layout]
            counts = [row["devices"] for row in of_layout]
            for what, line in (("value", "o-"), ("gradient", "s--")):
                held = [row[f"{what}_mib"] for row in of_layout]
                left.loglog(counts, held, line, color=color, label=f"{layout}, {what}")
                saved[layout] = held[0] / held[-1]
        most = max(row["gradient_mib"] for row in rows)
        ideal = [most * counts[0] / count for count in counts]
        left.loglog(counts, ideal, ":", color=ak.plot.ink(), label="1 / devices")
        left.set(xlabel="devices P (virtual)", ylabel="memory of each device (MiB)")
        ticks_at(left.xaxis, counts)
        words = ", ".join(f"{layout} {times:.2g}" for layout, times in saved.items())
        left.set_title(f"{counts[-1]} devices, times less memory: {words}", fontsize="medium")
        left.legend()
        dims = np.geomspace(1, 256, 65)
        colors = {"A100": ak.plot.GREEN, "H100": ak.plot.BLUE}
        for on in _ACCELERATORS:
            color = ak.plot.ORANGE if "float32" in on.name else colors[on.name.split()[1][:4]]
            line = "--" if on.devices > 8 else "-"
            right.loglog(dims, rows_to_hide(on, dims), line, color=color, label=on.name)
        right.set(xlabel="dimensions d", ylabel="rows n")
        right.set_title("above, a ring computes for longer than it sends", fontsize="medium")
        entries = right.get_legend_handles_labels()
        figure.legend(*entries, loc="outside right center", fontsize="small")
        run.figure("scaling", figure)


def rows_to_hide(on: Accelerators, dims: Any) -> np.ndarray:
    """n from which a step of the ring computes for longer than it sends, of each dimension."""
    dims = np.asarray(dims)
    summed = np.maximum(4 * dims / on.operations, 1 / on.exponentials)
    return on.devices * (2 * dims * on.bytes / on.link) / summed


def measure(counts: list[int], n: int, dim: int, checked: int, seed: int) -> list[dict[str, Any]]:
    """Of each layout and number of devices: MiB of each device, and errors."""
    reserve_threads(max(counts))
    jax.config.update("jax_num_cpu_devices", max(counts))
    data = np.random.default_rng(seed).normal(size=(3, checked, dim))
    with jax.enable_x64(True):
        dense = value_and_gradients(ak.methods.Dense(), data)
    rows = []
    available = [count for count in counts if count <= jax.device_count()]
    for ring, count in itertools.product((False, True), available):
        devices = np.array(jax.devices()[:count])
        mesh = Mesh(devices, ("devices",), axis_types=(AxisType.Auto,))
        method = ak.methods.Sharded(mesh, ring=ring)
        found: dict[str, Any] = {"devices": count, "layout": "ring" if ring else "keys cut"}
        found["value_mib"] = held(method, n, dim, gradient=False) / MIB
        found["gradient_mib"] = held(method, n, dim, gradient=True) / MIB
        with jax.enable_x64(True):
            (_, out), gradients = value_and_gradients(method, data)
        found["value_error"] = deviation(out, dense[0][1])
        rows.append(found | {"gradient_error": deviation(gradients, dense[1])})
    return rows


def number(method: ak.methods.Method, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """A number that depends on all values of causal Gaussian attention; and these."""
    kernel = ak.Gaussian(q.shape[1] ** 0.5)
    out = ak.attend(q, k, v, kernel=kernel, prior=ak.Causal(), method=method)
    return jnp.sum(jnp.sin(out)), out


def held(method: ak.methods.Sharded, n: int, dim: int, *, gradient: bool) -> int:
    """Bytes of each device: arguments, results and all between."""
    cut, whole = (NamedSharding(method.mesh, PartitionSpec(*axes)) for axes in (("devices",), ()))
    places = (cut if method.ring else whole, cut, cut)
    n += -n % method.devices
    shapes = [jax.ShapeDtypeStruct((n, dim), jnp.float32, sharding=place) for place in places]

    def value(*data: Array) -> Array:
        return number(method, *data)[1]

    def gradients(*data: Array) -> Any:
        return jax.grad(lambda *of: number(method, *of)[0], (0, 1, 2))(*data)

    function, out = (gradients, places) if gradient else (value, places[0])
    plan = jax.jit(function, out_shardings=out).lower(*shapes).compile().memory_analysis()
    assert plan is not None  # None on some backends, not on CPU and GPU
    return plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes


def value_and_gradients(method: ak.methods.Method, data: np.ndarray) -> tuple[Any, Any]:
    """The number and all values of attention, and the gradients in q, k and v."""
    program = jax.value_and_grad(number, (1, 2, 3), has_aux=True)
    return jax.jit(functools.partial(program, method))(*data)
