r"""How fast the chunked forms of recurrent layers are, against a scan of their recurrence.

q, k, v ∈ ℝ^{heads × T × d}, standard normal, keys of length 1. Forward: the results; backward: also
the gradients in q, k and v for one cotangent. A row of a scan takes 4d² operations forward, one of
a chunk of C rows 4d² + 4Cd, in products of matrices. Causal softmax attention takes 2Td on average.
"""

import functools
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from .attention_contenders import BACKWARD, FORWARD, blockwise, compile_phase, draw_arrays
from .benchmark import Benchmark, Results
from .driver import GIB, Case, Contender, agree
from .reports import ratios, target

CHUNKED, SCAN, SOFTMAX = "chunks", "scan", "softmax"
Layer = Literal["linear", "decay", "channel decay", "delta", "gated delta", "Kimi delta", "Mesa"]
Tokens = Annotated[int, Field(ge=2, le=1_000_000)]


class BenchRecurrent(Benchmark):
    """Seconds of each layer against the length T, forward and backward."""

    study: Literal["bench_recurrent"]
    length: list[Tokens] = Field(default=[1024, 4096], min_length=1)
    layers: list[Layer] = Field(default=["linear", "decay", "delta"], min_length=1)
    heads: int = Field(default=8, ge=1, le=1000)
    dim: int = Field(default=64, ge=1, le=1000)
    compared: ClassVar = (CHUNKED, SCAN, SOFTMAX)
    axes: ClassVar = ("layers", (FORWARD, BACKWARD), "length")
    along: ClassVar = "length"
    x_label: ClassVar = "tokens T"
    panel_title: ClassVar = "{layer}, {phase}"

    def make_case(self, key: PRNGKeyArray, layer: str, phase: str, length: int) -> Case:
        """Returns the `Case` that times one layer on `length` tokens."""
        q, k, v, cotangent = draw_arrays(self.heads, length, self.dim, self.seed)
        arrays = [q, k / jnp.linalg.norm(k, axis=-1, keepdims=True), v, cotangent]
        options = _options_of(layer, self.heads, length, self.dim, self.seed)

        def make(name: str) -> Contender:
            def forward(q: Array, k: Array, v: Array) -> Array:
                if name == SOFTMAX:
                    return blockwise(q, k, v, True)
                method = "chunked" if name == CHUNKED else "recurrent"
                return ak.recurrent.regress(q, k, v, **options, method=method)[0]

            return compile_phase(forward, phase, arrays, self.max_memory_gib * GIB)

        fields = {"length": length, "layer": layer, "phase": phase}
        makers = {name: functools.partial(make, name) for name in self.compared}
        check = agree(CHUNKED, 1e-3, (CHUNKED, SCAN))
        return Case(fields, f"T = {length}, {layer}, {phase}", makers, check)

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        rows = [row for row in results.table if row["layer"] != "Mesa"]
        longest = max(self.length)
        for what, least, phase, name in (
            (f"times as fast as the scan, T = {longest}", 5.0, FORWARD, SCAN),
            ("the same with gradients", 5.0, BACKWARD, SCAN),
            (f"times as fast as softmax, T = {longest}", 1.0, FORWARD, SOFTMAX),
        ):
            yield target(what, least, ratios(rows, name, CHUNKED, length=longest, phase=phase))


def _options_of(layer: str, heads: int, length: int, dim: int, seed: int) -> dict[str, Any]:
    """Returns the estimator of a layer, with decays in [0.8, 1] and rates in [0, 1]."""
    rng = np.random.default_rng(seed)
    estimator: ak.recurrent.Estimator = ak.recurrent.LinearAttention()
    if "delta" in layer:
        estimator = ak.recurrent.DeltaRule()
    if layer == "Mesa":
        estimator = ak.recurrent.RecursiveLeastSquares(1.0)
    channels = {"linear": 0, "delta": 0, "channel decay": dim, "Kimi delta": dim}.get(layer, 1)
    decay = rng.uniform(0.8, 1.0, size=(heads, length, channels))
    return {
        "estimator": estimator,
        "rate": jnp.asarray(rng.uniform(size=(heads, length)), float),
        "log_decay": jnp.asarray(np.log(decay), float) if channels else None,
    }
