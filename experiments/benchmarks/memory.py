"""How much memory streaming takes: the peak of the process over what it takes idle."""

import time
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.figure import Figure

import attnkernel as ak

from ..parts import Name
from ..run import Run
from ..study import Study
from ..watch import SILENT, Watch
from .driver import MIB, in_fresh_process, peak_bytes


class BenchMemory(Study):
    """Value and gradient (in ℓ, x and y) of a sum over all pairs of n points, for growing n."""

    study: Literal["bench_memory"]
    name: Name = "bench_memory"
    n: Annotated[
        list[Annotated[int, pydantic.Field(ge=3, le=10_000_000)]], pydantic.Field(min_length=1)
    ] = [50_000, 100_000, 200_000]
    dim: Annotated[int, pydantic.Field(ge=1, le=1000)] = 8
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> list[dict[str, Any]]:
        rows = []
        with watch.progress("benchmark", len(self.n)) as tick:
            for i, n in enumerate(sorted(self.n)):
                seconds, peak, buffers = in_fresh_process(
                    measure, n, self.dim, self.seed, self.precision
                )
                rows.append(
                    {
                        "n": n,
                        "seconds": seconds,
                        "growth_mib": peak / MIB,
                        "buffers_mib": buffers / MIB,
                        "matrix_of_scores_mib": np.dtype(self.precision).itemsize * n**2 / MIB,
                    }
                )
                tick(i + 1, f"n = {n}: {peak / MIB:.0f} MiB")
        return rows

    def report(self, results: list[dict[str, Any]], run: Run) -> None:
        rows = results
        run.table(
            f"Blockwise, value and gradient, {self.dim} dimensions: peak over an idle process",
            ["n = m", "MiB", "of which buffers, MiB", "a matrix of scores, MiB", "seconds"],
            [
                [
                    str(row["n"]),
                    f"{row['growth_mib']:.0f}",
                    f"{row['buffers_mib']:.0f}",
                    f"{row['matrix_of_scores_mib']:.0f}",
                    f"{row['seconds']:.1f}",
                ]
                for row in rows
            ],
        )
        self._draw(run, rows)
        run.summary({"dim": self.dim, "table": rows})

    def _draw(self, run: Run, rows: list[dict[str, Any]]) -> None:
        figure = Figure(figsize=(4.6, 3.2))
        ax = figure.subplots()
        series = {key: [row[key] for row in rows] for key in rows[0]}
        ax.loglog(series["n"], series["matrix_of_scores_mib"], "--", label="a matrix of scores")
        ax.loglog(series["n"], series["growth_mib"], "o-", label="Blockwise, value and gradient")
        ax.loglog(series["n"], series["buffers_mib"], "s:", label="of which buffers")
        ax.set(xlabel="points n", ylabel="memory (MiB)")
        ax.legend()
        run.figure("memory", figure, **series)


def measure(n: int, dim: int, seed: int, precision: str) -> tuple[float, int, int]:
    """Seconds, bytes over the idle process, and bytes of buffers, of one value and gradient.

    Buffers are data, results and intermediates; the rest was taken by the compiler, and the C
    library keeps it.
    """
    with jax.enable_x64(precision == "float64"):
        jax.block_until_ready(jax.jit(jnp.sin)(jnp.ones(8)))  # the device is initialised
        idle = peak_bytes()
        numbers = np.random.default_rng(seed).normal(size=(n, dim)).astype(precision)
        x, y = jnp.asarray(numbers), jnp.asarray(np.sin(numbers.sum(axis=1, keepdims=True)))
        del numbers

        def loss(lengthscale: Array, x: Array, y: Array) -> Float[Array, ""]:
            kernel = ak.Gaussian(lengthscale)
            return jnp.mean((ak.attend(x, x, y, kernel=kernel, method=ak.Blockwise()) - y) ** 2)

        arguments = jnp.asarray(0.5 * dim**0.5), x, y
        started = time.perf_counter()
        program = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(*arguments).compile()
        jax.block_until_ready(program(*arguments))
        seconds, peak = time.perf_counter() - started, peak_bytes() - idle
        held = program.memory_analysis()
        assert held is not None  # there are backends that do not tell; CPU and GPU do
        buffers = held.argument_size_in_bytes + held.output_size_in_bytes + held.temp_size_in_bytes
        return seconds, peak, buffers
