r"""On an accelerator: Gaussian regression and attention, against dense XLA, cuDNN, PyTorch, KeOps.

Gaussian: $\log K = -\|q - k\|^2 / 2\ell^2$; attention: $q \cdot k / \sqrt d$, causal. With one
label for each point (`dim_v` 1) that is regression. A pair takes $2 d + 2 d_v$ operations forward;
with backward, scores recomputed, $8 d + 6 d_v$ in all; causal sums have half of the pairs. Rates
are shares of a product of matrices of the same precision, timed in the same run. The error is the
largest deviation of sampled rows (values, or gradients in their queries) from float64, over the
largest number. Without an accelerator, the contenders that need one are listed as unavailable.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Positive
from ..runs import Monitor, Run
from . import gpu_contenders as work
from .attention_contenders import BACKWARD, FORWARD
from .benchmark import Benchmark, Results
from .driver import GIB, Case, Contender, compiled, interleaved, medians

PRECISIONS: dict[str, dict[str, Any]] = {  # arguments of a product of matrices
    "float32": {"dtype": jnp.float32, "precision": "highest"},
    "tf32": {"dtype": jnp.float32, "precision": "tensorfloat32"},
    "bfloat16": {"dtype": jnp.bfloat16, "precision": None},
}


class BenchGPU(Benchmark):
    """Seconds, rates and errors of every contender, for growing n."""

    study: Literal["bench_gpu"]
    n: list[Annotated[int, Field(ge=64, le=2**22)]] = Field(
        default=[16_384, 65_536, 262_144], min_length=1
    )
    jobs: list[work.Job] = Field(
        default=[
            work.Job(score="Gaussian", dim=3),
            work.Job(score="Gaussian", dim=64, dim_v=64),
            work.Job(score="attention", dim=64, dim_v=64),
        ],
        min_length=1,
    )
    matrix: int = Field(
        default=8192,
        ge=64,
        le=2**15,
        description="rows of the product of matrices whose rate is the bound",
    )
    max_seconds: Positive = 10.0
    max_memory_gib: Positive = 40.0
    compared: ClassVar = (
        "Fused, bfloat16",
        "Blockwise, float32",
        "dense XLA, float32",
        "dense XLA, tf32",
        "dense XLA, bfloat16",
        "cuDNN, bfloat16",
        "PyTorch, float32",
        "PyTorch, bfloat16",
        "KeOps, float32",
    )
    along: ClassVar = "n"
    x_label: ClassVar = "points n"
    panel_title: ClassVar = "{job}, {phase}"

    def places(self) -> Iterable[tuple[work.Job, int, str]]:
        return itertools.product(self.jobs, sorted(set(self.n)), (FORWARD, BACKWARD))

    def more(self, key: PRNGKeyArray, monitor: Monitor) -> dict[str, Any]:
        return {
            "devices": ", ".join(sorted({device.device_kind for device in jax.devices()})),
            "matrix_rates": matrix_rates(self.matrix, self.repeats),
        }

    def print_tables(self, results: Results, run: Run) -> None:
        rates = results.more["matrix_rates"]
        run.table(
            f"{results.more['devices']}: a product of {self.matrix} x {self.matrix} matrices",
            ["precision", "Tflop/s"],
            [[name, f"{rate / 1e12:.2f}"] for name, rate in rates.items()],
        )
        run.table(
            f"medians of up to {self.repeats}",
            ["", "contender", "ms", "Tflop/s", "of matrices", "error"],
            [
                [
                    row["label"],
                    name,
                    f"{1e3 * seconds:.2f}",
                    f"{row['operations'] / seconds / 1e12:.2f}",
                    f"{row['operations'] / seconds / rates[name.rpartition(', ')[2]]:.3f}",
                    f"{row['error'][name]:.0e}",
                ]
                for row in results.table
                for name, seconds in row["median"].items()
            ],
        )

    def make_case(self, key: PRNGKeyArray, job: work.Job, n: int, phase: str) -> Case:
        """Returns the `Case` that times every contender on n queries and n keys, with the kernel
        and the dimensions of `job`; `phase`: "forward", or "+ backward" for gradients.
        """
        rng = np.random.default_rng(self.seed)
        shapes = (n, job.dim), (n, job.dim), (n, job.dim_v), (n, job.dim_v)
        data = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
        max_bytes = self.max_memory_gib * GIB

        def ours(method: ak.methods.Method, dtype: Any) -> Contender:
            def forward(q: Array, k: Array, v: Array) -> Array:
                return ak.attend(q, k, v, kernel=job.kernel, prior=job.prior, method=method)

            return work.make_contender(forward, phase, data, dtype, max_bytes)

        def dense(dtype: Any, precision: str | None = None) -> Contender:
            forward = functools.partial(work.dense_xla, job)
            with jax.default_matmul_precision(precision):
                return work.make_contender(forward, phase, data, dtype, max_bytes)

        makers: dict[str, Callable[[], Contender]] = {
            "Fused, bfloat16": lambda: ours(ak.methods.Fused(), jnp.bfloat16),
            "Blockwise, float32": lambda: ours(ak.methods.Blockwise(), jnp.float32),
            "dense XLA, float32": lambda: dense(jnp.float32, "highest"),
            "dense XLA, tf32": lambda: dense(jnp.float32, "tensorfloat32"),
            "dense XLA, bfloat16": lambda: dense(jnp.bfloat16),
        }
        if job.score == work.ATTENTION:
            makers["cuDNN, bfloat16"] = lambda: work.make_contender(
                work.cudnn, phase, data, jnp.bfloat16, max_bytes
            )
            for precision in ("float32", "bfloat16"):
                makers[f"PyTorch, {precision}"] = functools.partial(
                    work.torch_on_gpu, phase, data, precision
                )
        else:
            makers["KeOps, float32"] = lambda: work.keops_sums(job, phase, data)

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            """From float64 sums of the float32 data, or of these rounded to bfloat16."""
            given = {name: "bfloat16" if "bfloat16" in name else "float32" for name in results}
            truth = {g: work.float64_reference(job, phase, data, g) for g in set(given.values())}
            found = results if phase == FORWARD else {k: v[1] for k, v in results.items()}
            errors = {name: work.error_from(found[name], truth[given[name]]) for name in found}
            return {"error": errors, "operations": job.operations(n, phase)}

        fields = {"job": str(job), "n": n, "phase": phase}
        return Case(fields, f"{job}, n = {n}, {phase}", makers, check)


def matrix_rates(size: int, repeats: int) -> dict[str, float]:
    """Operations a second of a product of two square matrices, in each precision."""
    rates = {}
    for name, given in PRECISIONS.items():
        square = jax.random.normal(jax.random.key(0), (size, size)).astype(given["dtype"])
        with jax.default_matmul_precision(given["precision"]):
            contender, _ = compiled(jnp.matmul, square, square)
        seconds = interleaved({name: contender}, repeats).seconds
        rates[name] = 2.0 * size**3 / medians(seconds)[name]
    return rates
