r"""On an accelerator: Gaussian regression and attention, against dense XLA, cuDNN, PyTorch, KeOps.

Gaussian: $\log K = -\|q - k\|^2 / 2\ell^2$; attention: $q \cdot k / \sqrt d$, causal. With one
label for each point (`dim_v` 1) that is regression. A pair takes $2 d + 2 d_v$ operations forward;
with backward, scores recomputed, $8 d + 6 d_v$ in all; causal sums have half of the pairs. Rates
are in shares of a product of matrices of the same precision, timed beside them. Beside each time
stands the largest error of sampled rows (values, or gradients in their queries) from float64, over
the largest number. Contenders that need an accelerator are noted where there is none.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, PRNGKeyArray

import attnkernel as ak

from ..panels import label_outer, legend, panels
from ..parts import Name, Positive
from ..run import Run
from ..study import Study
from ..watch import SILENT, Watch
from .driver import (
    GIB,
    Case,
    Contender,
    compiled,
    interleaved,
    measure,
    medians,
)
from .gpu_contenders import (
    ATTENTION,
    BACKWARD,
    FORWARD,
    Job,
    cudnn,
    dense_xla,
    error_from,
    float64_reference,
    keops_sums,
    make_contender,
    torch_attention,
)
from .tables import note_unavailable

_FAMILIES = {
    "Fused": (ak.plot.BLUE, "o"),
    "Blockwise": (ak.plot.SKY, "s"),
    "dense XLA": (ak.plot.ORANGE, "^"),
    "cuDNN": (ak.plot.GREEN, "D"),
    "PyTorch": (ak.plot.PURPLE, "v"),
    "KeOps": (ak.plot.GREY, "x"),
}
_LINES = {"float32": "-", "tf32": "-.", "bfloat16": "--"}


class Results(NamedTuple):
    """Operations a second of a product of matrices, by precision; and a row for each case."""

    matrix_rates: dict[str, float]
    table: list[dict[str, Any]]


class BenchGPU(Study):
    """Seconds, rates and errors of every contender, for growing n."""

    study: Literal["bench_gpu"]
    name: Name = "bench_gpu"
    n: Annotated[
        list[Annotated[int, pydantic.Field(ge=64, le=2**22)]], pydantic.Field(min_length=1)
    ] = [16_384, 65_536, 262_144]
    jobs: Annotated[list[Job], pydantic.Field(min_length=1)] = [
        Job(score="Gaussian", dim=3),
        Job(score="Gaussian", dim=64, dim_v=64),
        Job(score="attention", dim=64, dim_v=64),
    ]
    matrix: Annotated[int, pydantic.Field(ge=64, le=2**15)] = pydantic.Field(
        default=8192, description="rows of the product of matrices whose rate is the bound"
    )
    repeats: Annotated[int, pydantic.Field(ge=1, le=100)] = 5
    most_seconds: Positive = pydantic.Field(
        default=10.0, description="for all rounds of a contender; a slower one has fewer"
    )
    most_memory_gib: Positive = pydantic.Field(
        default=40.0, description="contenders that need more are left out"
    )
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> Results:
        rates = matrix_rates(self.matrix, self.repeats)
        places = list(itertools.product(self.jobs, self.n, (FORWARD, BACKWARD)))
        cases = (self._case(*place) for place in places)
        found = measure(watch, cases, len(places), self.repeats, self.most_seconds)
        return Results(rates, found)

    def report(self, results: Results, run: Run) -> None:
        rates, found = results
        jobs, rows = self.jobs, [row for one in found for row in _rows_of(one, rates)]
        note_unavailable(
            run,
            list(
                dict.fromkeys(
                    (name, f"n = {one['n']}", reason)
                    for one in found
                    for name, reason in one["unavailable"].items()
                )
            ),
        )
        devices = ", ".join(sorted({device.device_kind for device in jax.devices()}))
        run.table(
            f"{devices}: rates of a product of {self.matrix} x {self.matrix} matrices",
            ["precision", "Tflop/s"],
            [[name, f"{rate / 1e12:.2f}"] for name, rate in rates.items()],
        )
        for job in jobs:
            run.table(
                str(job),
                ["n", "", "contender", "ms", "Tflop/s", "of matrices", "error"],
                [
                    [
                        str(row["n"]),
                        row["phase"],
                        row["contender"],
                        f"{1e3 * row['seconds']:.2f}",
                        f"{row['rate'] / 1e12:.2f}",
                        f"{row['share']:.3f}",
                        f"{row['error']:.0e}",
                    ]
                    for row in rows
                    if row["job"] == str(job)
                ],
            )
        self._draw(run, jobs, rows)
        run.summary({"devices": devices, "matrix_rates": rates, "table": rows})

    def _case(self, job: Job, n: int, phase: str) -> Case:
        rng = np.random.default_rng(self.seed)
        shapes = (n, job.dim), (n, job.dim), (n, job.dim_v), (n, job.dim_v)
        data = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
        max_bytes = self.most_memory_gib * GIB

        def ours(method: ak.Method, dtype: Any) -> Contender:
            def forward(q: Array, k: Array, v: Array) -> Array:
                return ak.attend(q, k, v, kernel=job.kernel, prior=job.prior, method=method)

            return make_contender(forward, phase, data, dtype, max_bytes)

        def dense(dtype: Any, precision: str | None = None) -> Contender:
            forward = functools.partial(dense_xla, job)
            with jax.default_matmul_precision(precision):
                return make_contender(forward, phase, data, dtype, max_bytes)

        makers: dict[str, Callable[[], Contender]] = {
            "Fused, bfloat16": lambda: ours(ak.Fused(), jnp.bfloat16),
            "Fused, float32": lambda: ours(ak.Fused(), jnp.float32),
            "Blockwise, float32": lambda: ours(ak.Blockwise(), jnp.float32),
            "dense XLA, float32": lambda: dense(jnp.float32, "highest"),
            "dense XLA, tf32": lambda: dense(jnp.float32, "tensorfloat32"),
            "dense XLA, bfloat16": lambda: dense(jnp.bfloat16),
        }
        if job.score == ATTENTION:
            makers["cuDNN, bfloat16"] = lambda: make_contender(
                cudnn, phase, data, jnp.bfloat16, max_bytes
            )
            for precision in ("float32", "bfloat16"):
                makers[f"PyTorch, {precision}"] = functools.partial(
                    torch_attention, phase, data, precision
                )
        else:
            makers["KeOps, float32"] = lambda: keops_sums(job, phase, data)

        def errors(results: Mapping[str, Any]) -> dict[str, float]:
            """From float64 sums of the float32 data, or of these rounded to bfloat16."""
            given = {name: "bfloat16" if "bfloat16" in name else "float32" for name in results}
            truth = {
                g: float64_reference(job, phase, data, g) for g in dict.fromkeys(given.values())
            }
            return {name: error_from(found, truth[given[name]]) for name, found in results.items()}

        place = {"job": str(job), "n": n, "phase": phase}
        place["operations"] = job.operations(n, phase)
        return Case(place, f"{job}, n = {n}, {phase}", makers, errors)

    def _draw(self, run: Run, jobs: list[Job], rows: list[dict[str, Any]]) -> None:
        works = [(str(job), phase) for job in jobs for phase in (FORWARD, BACKWARD)]
        figure, axes = panels(len(works))
        arrays: dict[str, Any] = {"n": sorted(set(self.n))}
        for ax, (job, phase) in zip(axes, works, strict=True):
            of_work = [row for row in rows if (row["job"], row["phase"]) == (job, phase)]
            for name in dict.fromkeys(row["contender"] for row in of_work):
                family, _, precision = name.rpartition(", ")
                color, marker = _FAMILIES[family]
                line = [(row["n"], row["seconds"]) for row in of_work if row["contender"] == name]
                style = {"color": color, "marker": marker, "linestyle": _LINES[precision]}
                ax.loglog(*zip(*line, strict=True), label=name, **style)
                arrays[f"{name}, {job}, {phase}"] = [seconds for _, seconds in line]
            ax.set_title(f"{job}, {phase}", fontsize="small")
            ax.set_xticks(arrays["n"], [str(n) for n in arrays["n"]])
            ax.minorticks_off()
        label_outer(axes, "points n", "seconds")
        legend(figure, axes, columns=3)
        run.figure("bench_gpu", figure, **arrays)


def _rows_of(found: dict[str, Any], rates: dict[str, float]) -> list[dict[str, Any]]:
    """A row of `measure` as a row for each contender, with its rate."""
    place = {name: found[name] for name in ("job", "n", "phase")}
    rows = []
    for name, seconds in found["median"].items():
        rate = found["operations"] / seconds
        share = rate / rates[name.rpartition(", ")[2]]
        numbers = {"seconds": seconds, "rate": rate, "share": share}
        rows.append({**place, "contender": name, **numbers, "error": found["deviation"][name]})
    return rows


def matrix_rates(size: int, repeats: int) -> dict[str, float]:
    """Operations a second of a product of two square matrices, in each precision."""
    rates = {}
    for name, dtype, precision in (
        ("float32", jnp.float32, "highest"),
        ("tf32", jnp.float32, "tensorfloat32"),
        ("bfloat16", jnp.bfloat16, None),
    ):
        square = jax.random.normal(jax.random.key(0), (size, size)).astype(dtype)
        with jax.default_matmul_precision(precision):
            contender, _ = compiled(jnp.matmul, square, square)
        seconds, _ = interleaved({name: contender}, repeats)
        rates[name] = 2.0 * size**3 / medians(seconds)[name]
    return rates
