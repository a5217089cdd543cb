r"""A sum over 1, 2, 4 and 8 devices: what each holds, what it sends, and that the sum is the same.

Devices of a CPU are virtual here: they share its cores, so that speed is not measured. What a ring
costs on accelerators is arithmetic. At a step each of P devices sums $(n/P)^2$ pairs, and sends
$2 (n/P)\, d$ numbers of b bytes at W bytes a second; with F operations and E exponentials a
second, the sending hides behind the sums from

$$ \frac nP \;\ge\; \frac{2 d b / W}{\max(4 d / F,\; 1 / E)} $$

rows on each device. Gradients ask for less: 10 d operations a pair, 4 d numbers a row.

The cores that a call keeps busy on this machine are its CPU seconds over its seconds.
"""

import functools
import itertools
import os
import time
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..benchmarks.driver import MIB, deviation, in_fresh_process
from ..config import NonEmpty, Positive
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
    """`ak.methods.Sharded`: memory of each device, agreement with one, and communication; and the
    cores that calls without it keep busy.
    """

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
    busy_rows: int = Field(default=4096, ge=16, le=2**20, description="rows of calls by all cores")
    busy_seconds: Positive = Field(default=1.0, description="for which each of them is repeated")
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> tuple[Any, Any]:
        counts = sorted(set(self.devices))
        busy = in_fresh_process(busy_cores, self.busy_rows, self.busy_seconds, self.seed)
        return busy, in_fresh_process(measure, counts, self.n, self.dim, self.checked, self.seed)

    def report(self, results: tuple[Any, Any], run: Run) -> None:
        busy, rows = results
        cores = os.cpu_count()
        run.table_of(f"Cores that a call keeps busy, of {cores}", busy)
        if left := sorted(set(self.devices) - {row["devices"] for row in rows}):
            run.note([f"{', '.join(map(str, left))} devices: not available on this machine"])
        run.table_of(
            f"n = {self.n}, {self.dim} dimensions, float32: MiB of each device; and the largest "
            f"error of {self.checked} rows in float64",
            rows,
        )
        dims = [3, 16, 64, 128]
        least = {on.name: rows_to_hide(on, dims) for on in _ACCELERATORS}
        run.table(
            "Rows n from which a ring computes for longer than it sends (arithmetic, peak rates)",
            ["", *(f"d = {d}" for d in dims)],
            [[name, *(f"{n:,.0f}" for n in found)] for name, found in least.items()],
        )
        self._draw_memory_and_rows(run, rows)
        worst = max(max(row["value_error"], row["gradient_error"]) for row in rows)
        hidden = {"dims": dims, **least}
        found = {"table": rows, "rows_from_which_sending_hides": hidden, "worst_error": worst}
        found |= {"busy": busy, "cores": cores}
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


def busy_cores(n: int, least_seconds: float, seed: int) -> list[dict[str, Any]]:
    """Returns the cores that calls on n rows keep busy: their CPU seconds over their seconds.

    `least_seconds`: for which each call is repeated, twice at least.
    """
    q, k, v = jax.random.normal(jax.random.PRNGKey(seed), (3, 8, n, 64))
    dot = functools.partial(ak.attend, kernel=ak.DotProduct())
    causal = functools.partial(dot, prior=ak.Causal())
    total = lambda *of: jnp.sum(causal(*of))  # noqa: E731
    delta = {"estimator": ak.recurrent.DeltaRule(), "rate": 0.01}
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(seed), n=n)
    model = ak.KernelRegression(ak.kernels.Cauchy(1.0), order=1)  # all pairs: no transform
    fit = functools.partial(ak.fit, model, data.x, data.y)
    fitted = fit(objective=ak.LeaveOneOut(), starts=1)
    calls: dict[str, Callable[[], Any]] = {
        "attention, 1 head": functools.partial(jax.jit(dot), q[0], k[0], v[0]),
        "attention, 8 heads": functools.partial(jax.jit(dot), q, k, v),
        "the same, causal": functools.partial(jax.jit(causal), q, k, v),
        "the same, with gradients": functools.partial(jax.jit(jax.grad(total, (0, 1, 2))), q, k, v),
        "the last row alone": functools.partial(jax.jit(dot), q[:, -1:], k, v),
        "delta rule, 8 heads": lambda: ak.recurrent.regress(q, k, v, **delta)[0],
        "fit, 1 start": lambda: fit(objective=ak.LeaveOneOut(), starts=1).loss,
        "fit, 10 starts": lambda: fit(objective=ak.LeaveOneOut(), starts=10).loss,
        "fit, 5 folds, 1 start": lambda: fit(objective=ak.objectives.KFold(5), starts=1).loss,
        "band": lambda: ak.bands(fitted, data.x[:201]).upper,
    }
    rows = []
    for name, call in calls.items():
        jax.block_until_ready(call())
        cpu, seconds, count = time.process_time(), time.perf_counter(), 0
        while count < 2 or time.perf_counter() - seconds < least_seconds:
            jax.block_until_ready(call())
            count += 1
        spent = time.perf_counter() - seconds
        busy = (time.process_time() - cpu) / spent
        rows.append({"call": name, "seconds": spent / count, "busy_cores": busy})
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
