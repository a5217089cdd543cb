"""Contenders on an accelerator: dense XLA, cuDNN, PyTorch and KeOps; and the float64 reference."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from pydantic import Field

import attnkernel as ak

from ..config import Part
from .attention_contenders import FORWARD, compile_phase, jax_nn, torch_attention, torch_contender
from .driver import Contender, Unavailable, optional_import

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


def make_contender(
    forward: Work, phase: str, data: list[Array], dtype: Any, max_bytes: float
) -> Contender:
    """As of `compile_phase`, on data of this type."""
    try:
        return compile_phase(forward, phase, [x.astype(dtype) for x in data], max_bytes)
    except (ValueError, RuntimeError, NotImplementedError) as reason:
        raise Unavailable(str(reason).partition("\n")[0]) from None


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
    return jax_nn(q[None], k[None], v[None], causal=True, implementation="cudnn")[0]


def torch_on_gpu(phase: str, data: list[Array], precision: str) -> Contender:
    torch = _import_torch_with_gpu()
    tensors = (torch.tensor(np.asarray(x), dtype=getattr(torch, precision)) for x in data)
    on_gpu = [tensor.cuda()[None, None] for tensor in tensors]
    return torch_contender(torch_attention(causal=True), phase, on_gpu, TorchArray)


def keops_sums(job: Job, phase: str, data: list[Array]) -> Contender:
    torch = _import_torch_with_gpu()
    keops = optional_import("pykeops.torch")
    kernel = job.kernel
    assert isinstance(kernel, ak.Gaussian)
    scale = 0.5 / float(kernel.lengthscale) ** 2

    def attention(q: Any, k: Any, v: Any) -> Any:
        lazy_q, lazy_k = keops.LazyTensor(q[:, None, :]), keops.LazyTensor(k[None, :, :])
        scores = -scale * ((lazy_q - lazy_k) ** 2).sum(-1)
        return scores.sumsoftmaxweight(keops.LazyTensor(v[None, :, :]), dim=1)

    on_gpu = [torch.tensor(np.asarray(x), device="cuda") for x in data]
    return torch_contender(attention, phase, on_gpu, TorchArray)


def _import_torch_with_gpu() -> Any:
    """Imports PyTorch; raises `Unavailable` unless it is installed and sees a GPU."""
    torch = optional_import("torch")
    if not torch.cuda.is_available():
        raise Unavailable("PyTorch sees no GPU")
    return torch


class TorchArray:
    """An array of PyTorch on the GPU, which is waited for, and copied to the host after the
    timing.
    """

    def __init__(self, tensor: Any):
        optional_import("torch").cuda.synchronize()
        self._tensor = tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._tensor.float().cpu().numpy().reshape(self._tensor.shape[-2:])


def float64_reference(
    job: Job, phase: str, data: list[Array], given: str
) -> tuple[np.ndarray, np.ndarray]:
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


def error_from(result: Any, truth: tuple[np.ndarray, np.ndarray]) -> float:
    rows, expected = truth
    found = np.asarray(result).astype(float)[rows]
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
