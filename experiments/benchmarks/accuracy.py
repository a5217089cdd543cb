r"""How near to exact arithmetic softmax attention is, by precision, against JAX, Equinox, PyTorch.

q ∈ ℝ^{heads × queries × d}, k, v ∈ ℝ^{heads × keys × d}, standard normal, rounded to the precision;
the reference is softmax(qkᵀ/√d) v of the rounded numbers in float64, by NumPy.
"""

import functools
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import Field
from scipy.special import softmax

from ..config import NonEmpty
from ..reports import draw_lines, save_with_legend, subplots
from ..runs import NO_MONITOR, Monitor, Run
from ..studies import Study
from . import attention_contenders as work
from .attention import Tokens
from .driver import Contender, available, optional_import
from .reports import note_unavailable

PRECISIONS = ("float32", "bfloat16")
Rows = list[dict[str, Any]]


class BenchAccuracy(Study):
    """Errors of every contender's attention, against the number of keys."""

    study: Literal["bench_accuracy"]
    length: NonEmpty[Tokens] = [512, 2048, 8192, 32768]
    queries: int = Field(default=256, ge=1, le=100_000)
    heads: int = Field(default=4, ge=1, le=1000)
    dim: int = Field(default=64, ge=1, le=1000)
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Rows:
        places = [(length, precision) for length in self.length for precision in PRECISIONS]
        return monitor.collect("errors", places, self._errors, lambda row: row["label"])

    def _errors(self, place: tuple[int, str]) -> dict[str, Any]:
        """The errors of each contender, in times of the root mean square of the exact result."""
        length, precision = place
        rng = np.random.default_rng(self.seed)
        draws = [rng.standard_normal((self.heads, n, self.dim)) for n in (self.queries, length)]
        draws.append(rng.standard_normal(draws[1].shape))
        arrays = [jnp.asarray(draw, precision) for draw in draws]
        q, k, v = (np.asarray(array, float) for array in arrays)
        exact = softmax(q @ k.swapaxes(1, 2) / np.sqrt(self.dim), axis=2) @ v
        scale = np.sqrt(np.mean(exact**2))
        makers = {name: functools.partial(_make, name, arrays) for name in work.CONTENDERS}
        contenders, unavailable = available(makers)
        row: dict[str, Any] = {"label": f"{length} keys, {precision}", "keys": length}
        row |= {"precision": precision, "rms": {}, "largest": {}, "unavailable": unavailable}
        for name, attend in contenders.items():
            error = np.abs(np.asarray(attend(), float).reshape(exact.shape) - exact) / scale
            row["rms"][name] = float(np.sqrt(np.mean(error**2)))
            row["largest"][name] = float(np.max(error))
        return row

    def report(self, results: Rows, run: Run) -> None:
        note_unavailable(run, results)
        names = list(results[0]["rms"])
        run.table_of(
            "Errors over the root mean square of the exact result: root mean square, largest",
            results,
            {"": "{label}"}
            | {name: f"{{rms[{name}]:.1e}}, {{largest[{name}]:.1e}}" for name in names},
        )
        figure, axes = subplots(1, len(PRECISIONS), figsize=(9.4, 3.4))
        for axis, precision in zip(axes, PRECISIONS, strict=True):
            rows = [row for row in results if row["precision"] == precision]
            draw_lines(
                axis, self.length, {name: [row["rms"][name] for row in rows] for name in names}
            )
            axis.set(xlabel="keys", ylabel="relative error (rms)", xscale="log", title=precision)
            axis.set_ylim(bottom=0)
        save_with_legend(run, "bench_accuracy", figure, list(axes))
        run.summary({"table": results})


def _make(name: str, arrays: list[Any]) -> Contender:
    """Attention of q, k and v by a contender."""
    if name != work.TORCH:
        attend = jax.jit(functools.partial(work.JAX_CONTENDERS[name], causal=False))
        return lambda: attend(*arrays)
    torch = optional_import("torch")
    dtype = getattr(torch, arrays[0].dtype.name)
    tensors = [torch.tensor(np.asarray(array, float)).to(dtype)[None] for array in arrays]
    attention = work.torch_attention(False)
    return lambda: attention(*tensors).double().numpy()
