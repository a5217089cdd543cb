"""How much memory streaming takes: the peak of the process over what it takes idle."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty
from ..reports import draw_lines, subplots
from ..runs import NO_MONITOR, Monitor, Run
from ..studies import Study
from .driver import MIB, growth_of_memory, in_fresh_process, timed


class BenchMemory(Study):
    """Value and gradient (in ℓ, x and y) of a sum over all pairs of n points, for growing n."""

    study: Literal["bench_memory"]
    n: NonEmpty[Annotated[int, Field(ge=3, le=10_000_000)]] = [50_000, 100_000, 200_000]
    dim: int = Field(default=8, ge=1, le=1000)
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> list[dict[str, Any]]:
        def measure(n: int) -> dict[str, Any]:
            work = (value_and_gradient, n, self.dim, self.seed, self.precision)
            growth, (seconds, buffers) = in_fresh_process(growth_of_memory, self.precision, *work)
            scores = np.dtype(self.precision).itemsize * n**2
            row = {"n": n, "seconds": seconds, "growth_mib": growth / MIB}
            return row | {"buffers_mib": buffers / MIB, "matrix_of_scores_mib": scores / MIB}

        label = "n = {n}: {growth_mib:.0f} MiB".format_map
        return monitor.collect("sizes", sorted(set(self.n)), measure, label)

    def report(self, results: list[dict[str, Any]], run: Run) -> None:
        n, _, growth, buffers, scores = np.transpose([list(row.values()) for row in results])
        title = f"Blockwise, value and gradient, {self.dim} dimensions: peak over an idle process"
        run.table_of(title, results)
        figure, ax = subplots(figsize=(4.6, 3.2))
        ours = {"Blockwise, value and gradient": growth, "of which buffers": buffers}
        draw_lines(ax, n, ours | {"a matrix of scores": scores})
        ax.set(xscale="log", yscale="log", xlabel="points n", ylabel="memory (MiB)")
        ax.legend()
        run.figure("memory", figure)
        run.summary({"dim": self.dim, "table": results})


def value_and_gradient(n: int, dim: int, seed: int, precision: str) -> Callable[[], Any]:
    """A call that draws data, compiles and computes; it returns seconds and bytes of buffers.

    Buffers are data, results and intermediates; the rest was taken by the compiler, and the C
    library keeps it.
    """

    def loss(lengthscale: Array, x: Array, y: Array) -> Float[Array, ""]:
        kernel = ak.Gaussian(lengthscale)
        return jnp.mean((ak.attend(x, x, y, kernel=kernel, method=ak.methods.Blockwise()) - y) ** 2)

    def call() -> tuple[float, int]:
        numbers = np.random.default_rng(seed).normal(size=(n, dim)).astype(precision)
        x, y = jnp.asarray(numbers), jnp.asarray(np.sin(numbers.sum(axis=1, keepdims=True)))
        del numbers
        arguments = jnp.asarray(0.5 * dim**0.5), x, y

        def compile_and_run() -> Any:
            program = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(*arguments).compile()
            return program(*arguments), program.memory_analysis()

        seconds, (_, held) = timed(compile_and_run)
        assert held is not None  # None on some backends, not on CPU and GPU
        buffers = held.argument_size_in_bytes + held.output_size_in_bytes + held.temp_size_in_bytes
        return seconds, buffers

    return call
