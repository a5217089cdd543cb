r"""On an accelerator: Gaussian regression and attention, against dense XLA, cuDNN, PyTorch, KeOps.

Gaussian: $\log K = -\|q - k\|^2 / 2\ell^2$; attention: $q \cdot k / \sqrt d$, causal. With one
label for each point (`dim_v` 1) that is regression. A pair takes $2 d + 2 d_v$ operations forward;
with backward, scores recomputed, $8 d + 6 d_v$ in all; causal sums have half of the pairs. Rates
are in shares of a product of matrices of the same precision, timed beside them. Beside each time
stands the largest error of sampled rows (values, or gradients in their queries) from float64, over
the largest number. Where there is no accelerator the sides that need one are named as absent.
"""

import functools
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, Float

import attnkernel as ak

from ..panels import label_outer, legend, panels
from ..parts import Name, Part, Positive
from ..run import Run
from ..study import Study
from .driver import (
    GIB,
    Contender,
    Unavailable,
    available,
    compiled,
    interleaved,
    medians,
    note_unavailable,
    optional_import,
)

GAUSSIAN, ATTENTION = "Gaussian", "attention"
FORWARD, BACKWARD = "forward", "+ backward"
_SAMPLED = 64  # queries that are compared
_FAMILIES = {
    "Fused": (ak.plot.BLUE, "o"),
    "Blockwise": (ak.plot.SKY, "s"),
    "dense XLA": (ak.plot.ORANGE, "^"),
    "cuDNN": (ak.plot.GREEN, "D"),
    "PyTorch": (ak.plot.PURPLE, "v"),
    "KeOps": (ak.plot.GREY, "x"),
}
_LINES = {"float32": "-", "tf32": "-.", "bfloat16": "--"}
Work = Callable[[Array, Array, Array], Array]


class Job(Part):
    """What is summed."""

    score: Literal["Gaussian", "attention"]
    dim: Annotated[int, pydantic.Field(ge=1, le=256)]
    dim_v: Annotated[int, pydantic.Field(ge=1, le=256)] = 1

    def __str__(self) -> str:
        return f"{self.score}, d = {self.dim}, {self.dim_v} label{'s' * (self.dim_v > 1)}"

    @property
    def kernel(self) -> ak.Kernel:
        # lengthscales such that some keys are near, whatever the dimension
        return ak.Gaussian(0.3 * self.dim**0.5) if self.score == GAUSSIAN else ak.DotProduct()

    @property
    def prior(self) -> ak.Prior | None:
        return None if self.score == GAUSSIAN else ak.Causal()

    def operations(self, n: int, phase: str) -> float:
        pairs = n**2 if self.score == GAUSSIAN else n * (n + 1) / 2
        of_pair = 2 * self.dim + 2 * self.dim_v
        return pairs * (of_pair if phase == FORWARD else 8 * self.dim + 6 * self.dim_v)


class BenchGPU(Study):
    """Seconds, rates and errors of every side, for growing n."""

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
        default=10.0, description="for all repeats of a side; a slower one has fewer, but one"
    )
    most_memory_gib: Positive = pydantic.Field(
        default=40.0, description="sides that would need more are left out"
    )
    is_benchmark: ClassVar[bool] = True

    def run(self, run: Run) -> None:
        jobs = self.jobs
        rates = matrix_rates(self.matrix, self.repeats)
        rows, missing = [], []
        works = [(job, n, phase) for job in jobs for n in self.n for phase in (FORWARD, BACKWARD)]
        with run.progress("benchmark", len(works)) as tick:
            for done, (job, n, phase) in enumerate(works, 1):
                where = f"{job}, n = {n}, {phase}"
                found, absent = self._measure(job, n, phase, rates)
                rows += found
                missing += [(name, f"n = {n}", reason) for name, reason in absent.items()]
                tick(done, where)
        note_unavailable(run, list(dict.fromkeys(missing)))
        devices = ", ".join(sorted({device.device_kind for device in jax.devices()}))
        run.table(
            f"{devices}: rates of a product of {self.matrix} x {self.matrix} matrices",
            ["precision", "Tflop/s"],
            [[name, f"{rate / 1e12:.2f}"] for name, rate in rates.items()],
        )
        for job in jobs:
            run.table(
                str(job),
                ["n", "", "side", "ms", "Tflop/s", "of matrices", "error"],
                [
                    [
                        str(row["n"]),
                        row["phase"],
                        row["side"],
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

    def _measure(
        self, job: Job, n: int, phase: str, rates: dict[str, float]
    ) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Rows of the sides that ran, and why each of the others did not."""
        rng = np.random.default_rng(self.seed)
        shapes = (n, job.dim), (n, job.dim), (n, job.dim_v), (n, job.dim_v)
        data = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
        most = self.most_memory_gib * GIB

        def ours(method: ak.Method, dtype: Any) -> Contender:
            def forward(q: Array, k: Array, v: Array) -> Array:
                return ak.attend(q, k, v, kernel=job.kernel, prior=job.prior, method=method)

            return _side(forward, phase, data, dtype, most)

        def dense(dtype: Any, precision: str | None = None) -> Contender:
            forward = functools.partial(_dense, job)
            with jax.default_matmul_precision(precision):
                return _side(forward, phase, data, dtype, most)

        makers: dict[str, Callable[[], Contender]] = {
            "Fused, bfloat16": lambda: ours(ak.Fused(), jnp.bfloat16),
            "Fused, float32": lambda: ours(ak.Fused(), jnp.float32),
            "Blockwise, float32": lambda: ours(ak.Blockwise(), jnp.float32),
            "dense XLA, float32": lambda: dense(jnp.float32, "highest"),
            "dense XLA, tf32": lambda: dense(jnp.float32, "tensorfloat32"),
            "dense XLA, bfloat16": lambda: dense(jnp.bfloat16),
        }
        if job.score == ATTENTION:
            makers["cuDNN, bfloat16"] = lambda: _side(_cudnn, phase, data, jnp.bfloat16, most)
            for precision in ("float32", "bfloat16"):
                makers[f"PyTorch, {precision}"] = functools.partial(_torch, phase, data, precision)
        else:
            makers["KeOps, float32"] = lambda: _keops(job, phase, data)
        sides, absent = available(makers)
        seconds, results = interleaved(sides, self.repeats, most_seconds=self.most_seconds)
        truth = {}  # of float32 data, and of what is left of them in bfloat16
        rows = []
        for name, spent in medians(seconds).items():
            precision = name.rpartition(", ")[2]
            given = "bfloat16" if precision == "bfloat16" else "float32"
            if given not in truth:
                truth[given] = _truth(job, phase, data, given)
            operations = job.operations(n, phase)
            rows.append(
                {
                    "job": str(job),
                    "n": n,
                    "phase": phase,
                    "side": name,
                    "seconds": spent,
                    "rate": operations / spent,
                    "share": operations / spent / rates[precision],
                    "error": _error(results[name], truth[given]),
                }
            )
        return rows, absent

    def _draw(self, run: Run, jobs: list[Job], rows: list[dict[str, Any]]) -> None:
        works = [(str(job), phase) for job in jobs for phase in (FORWARD, BACKWARD)]
        figure, axes = panels(len(works))
        arrays: dict[str, Any] = {"n": sorted(set(self.n))}
        for ax, (job, phase) in zip(axes, works, strict=True):
            of_work = [row for row in rows if (row["job"], row["phase"]) == (job, phase)]
            for name in dict.fromkeys(row["side"] for row in of_work):
                family, _, precision = name.rpartition(", ")
                color, marker = _FAMILIES[family]
                line = [(row["n"], row["seconds"]) for row in of_work if row["side"] == name]
                style = {"color": color, "marker": marker, "linestyle": _LINES[precision]}
                ax.loglog(*zip(*line, strict=True), label=name, **style)
                arrays[f"{name}, {job}, {phase}"] = [seconds for _, seconds in line]
            ax.set_title(f"{job}, {phase}", fontsize="small")
            ax.set_xticks(arrays["n"], [str(n) for n in arrays["n"]])
            ax.minorticks_off()
        label_outer(axes, "points n", "seconds")
        legend(figure, axes, columns=3)
        run.figure("bench_gpu", figure, **arrays)


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
            side, _ = compiled(jnp.matmul, square, square)
        seconds, _ = interleaved({name: side}, repeats)
        rates[name] = 2.0 * size**3 / medians(seconds)[name]
    return rates


def _side(forward: Work, phase: str, data: list[Array], dtype: Any, most: float) -> Contender:
    """Values; or gradients in q, k and v, for the last of the data as a cotangent."""

    def backward(q: Array, k: Array, v: Array, cotangent: Array) -> tuple[Array, ...]:
        return jax.vjp(forward, q, k, v)[1](cotangent)

    def work(q: Array, k: Array, v: Array, cotangent: Array) -> Any:
        return (forward(q, k, v),) if phase == FORWARD else backward(q, k, v, cotangent)

    try:
        return compiled(work, *(x.astype(dtype) for x in data), most_bytes=most)[0]
    except (ValueError, RuntimeError, NotImplementedError) as reason:
        raise Unavailable(str(reason).partition("\n")[0]) from None


def _dense(job: Job, q: Array, k: Array, v: Array) -> Float[Array, "n dim_v"]:
    """What one writes down first: products of matrices, in the precision that is set."""
    kernel = job.kernel
    if isinstance(kernel, ak.Gaussian):
        q, k = (x / kernel.lengthscale.astype(x.dtype) for x in (q, k))
        squares = [jnp.sum(x * x, axis=1, dtype=jnp.float32) for x in (q, k)]
        product = jnp.matmul(q, k.T, preferred_element_type=jnp.float32)
        scores = product - 0.5 * squares[0][:, None] - 0.5 * squares[1][None, :]
    else:
        scores = jnp.matmul(q, k.T, preferred_element_type=jnp.float32) / q.shape[1] ** 0.5
        scores = jnp.where(jnp.tri(*scores.shape, dtype=bool), scores, -jnp.inf)
    return jnp.matmul(jax.nn.softmax(scores, axis=1).astype(v.dtype), v)


def _cudnn(q: Array, k: Array, v: Array) -> Array:
    heads = (x[:, None, :] for x in (q, k, v))
    return jax.nn.dot_product_attention(*heads, is_causal=True, implementation="cudnn")[:, 0]


def _torch(phase: str, data: list[Array], precision: str) -> Contender:
    torch = optional_import("torch")
    if not torch.cuda.is_available():
        raise Unavailable("PyTorch sees no GPU")
    dtype = getattr(torch, precision)
    q, k, v, cotangent = (
        torch.tensor(np.asarray(x), device="cuda", dtype=dtype)[None, None] for x in data
    )
    attention = torch.nn.functional.scaled_dot_product_attention

    def forward() -> Any:
        with torch.no_grad():
            out = attention(q, k, v, is_causal=True)
        torch.cuda.synchronize()
        return (_OfTorch(out),)

    def backward() -> Any:
        leaves = [leaf.detach().requires_grad_() for leaf in (q, k, v)]
        attention(*leaves, is_causal=True).backward(cotangent)
        torch.cuda.synchronize()
        return tuple(_OfTorch(leaf.grad) for leaf in leaves)

    return forward if phase == FORWARD else backward


class _OfTorch:
    """An array of PyTorch on the GPU, fetched when it is looked at and not while it is timed."""

    def __init__(self, tensor: Any):
        self._tensor = tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._tensor.float().cpu().numpy().reshape(self._tensor.shape[-2:])


def _keops(job: Job, phase: str, data: list[Array]) -> Contender:
    torch = optional_import("torch")
    keops = optional_import("pykeops.torch")
    if not torch.cuda.is_available():
        raise Unavailable("PyTorch sees no GPU")
    kernel = job.kernel
    assert isinstance(kernel, ak.Gaussian)
    scale = 0.5 / float(kernel.lengthscale) ** 2
    q, k, v, cotangent = (torch.tensor(np.asarray(x), device="cuda") for x in data)

    def attention(q: Any, k: Any, v: Any) -> Any:
        lazy_q, lazy_k = keops.LazyTensor(q[:, None, :]), keops.LazyTensor(k[None, :, :])
        scores = -scale * ((lazy_q - lazy_k) ** 2).sum(-1)
        return scores.sumsoftmaxweight(keops.LazyTensor(v[None, :, :]), dim=1)

    def forward() -> Any:
        with torch.no_grad():
            out = attention(q, k, v)
        torch.cuda.synchronize()
        return (_OfTorch(out),)

    def backward() -> Any:
        leaves = [leaf.detach().requires_grad_() for leaf in (q, k, v)]
        attention(*leaves).backward(cotangent)
        torch.cuda.synchronize()
        return tuple(_OfTorch(leaf.grad) for leaf in leaves)

    return forward if phase == FORWARD else backward


def _truth(job: Job, phase: str, data: list[Array], given: str) -> tuple[np.ndarray, np.ndarray]:
    """Sampled rows, and what a float64 sum gives there: values, or gradients in the queries."""
    rows = np.unique(np.linspace(0, len(data[0]) - 1, _SAMPLED).astype(int))
    with jax.enable_x64(True):
        q, k, v, cotangent = (jnp.asarray(np.asarray(x.astype(given)), float) for x in data)
        prior = None
        if job.prior is not None:
            prior = ak.priors.At(job.prior, rows, np.arange(len(k)))

        def forward(q: Array) -> Array:
            named = {"kernel": job.kernel, "prior": prior, "method": ak.Blockwise()}
            return ak.attend(q, k, v, **named)

        if phase == FORWARD:
            return rows, np.asarray(forward(q[rows]))
        pullback = jax.vjp(forward, q[rows])[1]
        return rows, np.asarray(pullback(cotangent[rows])[0])


def _error(result: Any, truth: tuple[np.ndarray, np.ndarray]) -> float:
    rows, expected = truth
    found = np.asarray(result[0]).astype(float)[rows]
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
