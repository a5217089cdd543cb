r"""On an accelerator: Gaussian regression and attention, against dense XLA, cuDNN, PyTorch, KeOps.

Gaussian: $\log K = -\|q - k\|^2 / 2\ell^2$; attention: $q \cdot k / \sqrt d$, causal. With one
label for each point (`dim_v` 1) that is regression. A pair takes $2 d + 2 d_v$ operations forward;
with backward, scores recomputed, $8 d + 6 d_v$ in all; causal sums have half of the pairs. Rates
are shares of a product of matrices of the same precision, timed in the same run. The error is the
largest deviation of sampled rows (values, or gradients in their queries) from float64, over the
largest number. Without an accelerator, the contenders that need one are listed as unavailable.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty, Part, Positive
from ..runs import Monitor, Run
from . import attention_contenders as work, driver
from .attention_contenders import BACKWARD, FORWARD
from .benchmark import Benchmark, Results

PRECISIONS: dict[str, dict[str, Any]] = {  # arguments of a product of matrices
    "float32": {"dtype": jnp.float32, "precision": "highest"},
    "tf32": {"dtype": jnp.float32, "precision": "tensorfloat32"},
    "bfloat16": {"dtype": jnp.bfloat16, "precision": None},
}
DENSE = {f"dense XLA, {name}": given for name, given in PRECISIONS.items()}
TORCH = {f"PyTorch, {name}": name for name in ("float32", "bfloat16")}
GAUSSIAN, ATTENTION = "Gaussian", "attention"
SAMPLED_QUERIES = 64
Work = Callable[[Array, Array, Array], Array]


class Job(Part):
    """What is summed."""

    score: Literal["Gaussian", "attention"]
    dim: int = Field(ge=1, le=256)
    dim_v: int = Field(default=1, ge=1, le=256)

    def __str__(self) -> str:
        return f"{self.score}, d = {self.dim}, {self.dim_v} label{'s' * (self.dim_v > 1)}"

    @property
    def kernel(self) -> ak.kernels.Kernel:
        # lengthscales such that some keys are near, whatever the dimension
        return ak.Gaussian(0.3 * self.dim**0.5) if self.score == GAUSSIAN else ak.DotProduct()

    @property
    def prior(self) -> ak.priors.Prior | None:
        return None if self.score == GAUSSIAN else ak.Causal()

    def operations(self, n: int, phase: str) -> float:
        pairs = n**2 if self.score == GAUSSIAN else n * (n + 1) / 2
        of_pair = 2 * self.dim + 2 * self.dim_v
        return pairs * (of_pair if phase == FORWARD else 8 * self.dim + 6 * self.dim_v)


class BenchGPU(Benchmark):
    """Seconds, rates and errors of every contender, for growing n."""

    study: Literal["bench_gpu"]
    n: NonEmpty[Annotated[int, Field(ge=64, le=2**22)]] = [16_384, 65_536, 262_144]
    jobs: NonEmpty[Job] = [
        Job(score="Gaussian", dim=3),
        Job(score="Gaussian", dim=64, dim_v=64),
        Job(score="attention", dim=64, dim_v=64),
    ]
    matrix: int = Field(
        default=8192,
        ge=64,
        le=2**15,
        description="rows of the product of matrices whose rate is the bound",
    )
    max_seconds: Positive = 10.0
    max_memory_gib: Positive = 40.0
    compared: ClassVar = (
        *("Fused, bfloat16", "Blockwise, float32", *DENSE),
        *("cuDNN, bfloat16", *TORCH, "KeOps, float32"),
    )
    axes: ClassVar = ("jobs", "n", (FORWARD, BACKWARD))
    along: ClassVar = "n"
    x_label: ClassVar = "points n"
    panel_title: ClassVar = "{job}, {phase}"

    def more(self, key: PRNGKeyArray, monitor: Monitor) -> dict[str, Any]:
        return {
            "devices": ", ".join(sorted({device.device_kind for device in jax.devices()})),
            "matrix_rates": matrix_rates(self.matrix, self.repeats),
        }

    def print_tables(self, results: Results, run: Run) -> None:
        rates = results.more["matrix_rates"]
        run.table_of(
            f"{results.more['devices']}: a product of {self.matrix} x {self.matrix} matrices",
            [{"precision": name, "Tflop/s": rate / 1e12} for name, rate in rates.items()],
        )
        rows = []
        for row in results.table:
            for name, seconds in row["median"].items():
                rate = row["operations"] / seconds
                found = {"": row["label"], "contender": name, "ms": 1e3 * seconds}
                found |= {"Tflop/s": rate / 1e12, "error": row["error"][name]}
                rows.append(found | {"of matrices": rate / rates[name.rpartition(", ")[2]]})
        run.table_of(f"medians of up to {self.repeats}", rows)

    def make_case(self, key: PRNGKeyArray, job: Job, n: int, phase: str) -> driver.Case:
        """Returns the `Case` that times every contender on n queries and n keys, with the kernel
        and the dimensions of `job`; `phase`: "forward", or "+ backward" for gradients.
        """
        rng = np.random.default_rng(self.seed)
        shapes = (n, job.dim), (n, job.dim), (n, job.dim_v), (n, job.dim_v)
        data = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
        ours = functools.partial(ak.attend, kernel=job.kernel, prior=job.prior)
        fused = functools.partial(ours, method=ak.methods.Fused())
        blockwise = functools.partial(ours, method=ak.methods.Blockwise())
        dense = functools.partial(dense_xla, job)

        def make(forward: Work, dtype: Any, precision: str | None = None) -> driver.Contender:
            """As of `compile_phase`, on data of this type."""
            arrays, max_bytes = [x.astype(dtype) for x in data], self.max_memory_gib * driver.GIB
            try:
                with jax.default_matmul_precision(precision):
                    return work.compile_phase(forward, phase, arrays, max_bytes)
            except (ValueError, RuntimeError, NotImplementedError) as reason:
                raise driver.Unavailable(str(reason).partition("\n")[0]) from None

        makers: dict[str, Callable[[], driver.Contender]] = {
            "Fused, bfloat16": lambda: make(fused, jnp.bfloat16),
            "Blockwise, float32": lambda: make(blockwise, jnp.float32),
            **{name: functools.partial(make, dense, **given) for name, given in DENSE.items()},
        }
        if job.score == ATTENTION:
            makers["cuDNN, bfloat16"] = lambda: make(cudnn, jnp.bfloat16)
            for name, precision in TORCH.items():
                makers[name] = functools.partial(torch_on_gpu, phase, data, precision)
        else:
            makers["KeOps, float32"] = lambda: keops_sums(job, phase, data)

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            """From float64 sums of the float32 data, or of these rounded to bfloat16."""
            given = {name: "bfloat16" if "bfloat16" in name else "float32" for name in results}
            truth = {g: float64_reference(job, phase, data, g) for g in set(given.values())}
            errors = {}
            for name, result in results.items():
                rows, expected = truth[given[name]]
                found = np.asarray(result if phase == FORWARD else result[1]).astype(float)
                errors[name] = driver.deviation(found[rows], expected)
            return {"error": errors, "operations": job.operations(n, phase)}

        fields = {"job": str(job), "n": n, "phase": phase}
        return driver.Case(fields, f"{job}, n = {n}, {phase}", makers, check)


def matrix_rates(size: int, repeats: int) -> dict[str, float]:
    """Operations a second of a product of two square matrices, in each precision."""
    rates = {}
    for name, given in PRECISIONS.items():
        square = jax.random.normal(jax.random.key(0), (size, size)).astype(given["dtype"])
        with jax.default_matmul_precision(given["precision"]):
            contender = driver.compiled(jnp.matmul, square, square)
        seconds = driver.interleaved({name: contender}, repeats).seconds
        rates[name] = 2.0 * size**3 / driver.medians(seconds)[name]
    return rates


def dense_xla(job: Job, q: Array, k: Array, v: Array) -> Float[Array, "n dim_v"]:
    """Products of matrices and a softmax, in the precision that is set."""
    kernel = job.kernel
    if isinstance(kernel, ak.Gaussian):
        q, k = (x / jnp.asarray(kernel.lengthscale, x.dtype) for x in (q, k))
        squares = [jnp.sum(x * x, axis=1, dtype=jnp.float32) for x in (q, k)]
        product = jnp.matmul(q, k.T, preferred_element_type=jnp.float32)
        scores = product - 0.5 * squares[0][:, None] - 0.5 * squares[1][None, :]
    else:
        scores = jnp.matmul(q, k.T, preferred_element_type=jnp.float32) / q.shape[1] ** 0.5
        scores = jnp.where(jnp.tri(*scores.shape, dtype=bool), scores, -jnp.inf)
    return jnp.matmul(jax.nn.softmax(scores, axis=1).astype(v.dtype), v)


def cudnn(q: Array, k: Array, v: Array) -> Array:
    return work.jax_nn(q[None], k[None], v[None], causal=True, implementation="cudnn")[0]


def torch_on_gpu(phase: str, data: list[Array], precision: str) -> driver.Contender:
    torch = _import_torch_with_gpu()
    tensors = (torch.tensor(np.asarray(x), dtype=getattr(torch, precision)) for x in data)
    on_gpu = [tensor.cuda()[None, None] for tensor in tensors]
    return work.torch_contender(work.torch_attention(True), phase, on_gpu, TorchArray)


def keops_sums(job: Job, phase: str, data: list[Array]) -> driver.Contender:
    torch = _import_torch_with_gpu()
    keops = driver.optional_import("pykeops.torch")
    kernel = job.kernel
    assert isinstance(kernel, ak.Gaussian)
    scale = 0.5 / float(kernel.lengthscale) ** 2

    def attention(q: Any, k: Any, v: Any) -> Any:
        lazy_q, lazy_k = keops.LazyTensor(q[:, None, :]), keops.LazyTensor(k[None, :, :])
        scores = -scale * ((lazy_q - lazy_k) ** 2).sum(-1)
        return scores.sumsoftmaxweight(keops.LazyTensor(v[None, :, :]), dim=1)

    on_gpu = [torch.tensor(np.asarray(x), device="cuda") for x in data]
    return work.torch_contender(attention, phase, on_gpu, TorchArray)


def _import_torch_with_gpu() -> Any:
    """Imports PyTorch; raises `Unavailable` unless it is installed and sees a GPU."""
    torch = driver.optional_import("torch")
    if not torch.cuda.is_available():
        raise driver.Unavailable("PyTorch sees no GPU")
    return torch


class TorchArray:
    """An array of PyTorch on the GPU, which is waited for, and copied to the host after the
    timing.
    """

    def __init__(self, tensor: Any):
        driver.optional_import("torch").cuda.synchronize()
        self._tensor = tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._tensor.float().cpu().numpy().reshape(self._tensor.shape[-2:])


def float64_reference(job: Job, phase: str, data: list[Array], given: str) -> tuple[Any, Any]:
    """Sampled rows, and what a float64 sum gives there: values, or gradients in the queries."""
    rows = np.unique(np.linspace(0, len(data[0]) - 1, SAMPLED_QUERIES).astype(int))
    with jax.enable_x64(True):
        q, k, v, cotangent = (jnp.asarray(np.asarray(x.astype(given)), float) for x in data)
        prior = None
        if job.prior is not None:
            prior = ak.priors.AtPositions(job.prior, rows, np.arange(len(k)))

        def forward(q: Array) -> Array:
            named = {"kernel": job.kernel, "prior": prior, "method": ak.methods.Blockwise()}
            return ak.attend(q, k, v, **named)

        if phase == FORWARD:
            return rows, np.asarray(forward(q[rows]))
        pullback = jax.vjp(forward, q[rows])[1]
        return rows, np.asarray(pullback(cotangent[rows])[0])
