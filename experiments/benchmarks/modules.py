"""`MultiheadAttention` as a user of Equinox meets it, against Equinox and PyTorch, equal weights.

One sequence x ∈ ℝ^{T × D} attends to itself, with projections, causal or not. With backward: the
sum of squares of the output and its gradients in all weights and in x.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from .attention import AttentionBenchmark
from .attention_contenders import BACKWARD, EQUINOX, FORWARD, OURS, TORCH
from .benchmark import Results
from .driver import GIB, Case, Contender, compiled, optional_import
from .reports import ratios, target

_PROJECTIONS = ("query_proj", "key_proj", "value_proj", "output_proj")


class BenchModules(AttentionBenchmark):
    """Seconds of a module against the length T, full and causal, forward and backward."""

    study: Literal["bench_modules"]
    size: int = Field(default=512, ge=1, le=16384)
    compared: ClassVar = (OURS, EQUINOX, TORCH)

    def make_case(self, key: PRNGKeyArray, length: int, causal: bool, phase: str) -> Case:
        """Returns the `Case` that times the modules of all libraries, with equal weights, on a
        sequence of `length` tokens; `phase`: "forward", or "+ backward" for gradients.
        """
        module_key, x_key = jax.random.split(key)
        theirs = eqx.nn.MultiheadAttention(self.heads, self.size, key=module_key)
        ours = ak.MultiheadAttention(self.heads, self.size, key=module_key)  # the same weights
        x = jax.random.normal(x_key, (length, self.size))

        def hidden() -> Array:
            return jnp.tril(jnp.ones((length, length), bool))

        def compile_module(module: Any, **masks: Callable[[], Any]) -> Contender:
            weights, rest = eqx.partition(module, eqx.is_inexact_array)

            def forward(weights: Any, x: Array) -> Array:
                named = {name: make() if causal else None for name, make in masks.items()}
                return eqx.combine(weights, rest)(x, x, x, **named)

            def both(weights: Any, x: Array) -> Any:
                loss = lambda w, x: jnp.sum(forward(w, x) ** 2)  # noqa: E731
                of_weights, of_x = jax.grad(loss, (0, 1))(weights, x)
                return [*(getattr(of_weights, name).weight for name in _PROJECTIONS), of_x]

            function = forward if phase == FORWARD else both
            return compiled(function, weights, x, max_bytes=self.max_memory_gib * GIB)

        makers = {
            OURS: lambda: compile_module(ours, prior=ak.Causal),
            EQUINOX: lambda: compile_module(theirs, mask=hidden),
            TORCH: lambda: torch_module(theirs, x, causal, phase),
        }
        return self.case(length, causal, phase, makers)

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        longest = max(self.length)
        found = ratios(results.table, EQUINOX, OURS, length=longest, phase=BACKWARD)
        yield target(f"times as fast as Equinox, T = {longest}, + backward", 3.0, found)
        yield from super().targets(results)


def torch_module(module: Any, x: Array, causal: bool, phase: str) -> Contender:
    """`torch.nn.MultiheadAttention` with the weights of the module; it returns no weights."""
    torch = optional_import("torch")
    size, heads = x.shape[1], module.num_heads
    theirs = torch.nn.MultiheadAttention(size, heads, bias=False, batch_first=True)
    weights = [np.array(getattr(module, name).weight) for name in _PROJECTIONS]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.from_numpy(np.concatenate(weights[:3])))
        theirs.out_proj.weight.copy_(torch.from_numpy(weights[3]))
    rows = torch.from_numpy(np.array(x))[None].requires_grad_(phase == BACKWARD)
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(len(x)) if causal else None
    options = {"need_weights": False, "is_causal": causal, "attn_mask": hidden}

    def forward() -> Any:
        with torch.no_grad():
            return theirs(rows, rows, rows, **options)[0][0].numpy()

    def both() -> Any:
        inputs = (theirs.in_proj_weight, theirs.out_proj.weight, rows)
        loss = (theirs(rows, rows, rows, **options)[0] ** 2).sum()
        of_in, of_out, of_rows = torch.autograd.grad(loss, inputs)
        return [*(part.numpy() for part in of_in.chunk(3)), of_out.numpy(), of_rows[0].numpy()]

    return forward if phase == FORWARD else both
