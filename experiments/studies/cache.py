"""Token by token: a cache that grows, one that wraps, and a state of fixed size."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak
from attnkernel.kernels import EluFeatures
from attnkernel.methods import Linear

from ..benchmarks.driver import interleaved, medians
from ..config import NonEmpty
from ..reports import draw_heat_maps, draw_lines, lengths_axis, save_with_legend, subplots
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study

KINDS = ("full", "ring", "recurrent")

# by cache: the deviation from the full pass; bytes and seconds against the length
Results = tuple[dict[str, float], dict[str, dict[str, list[float]]]]


class Cache(Study):
    """Decoding against the full pass, and what a token costs as the sequence grows."""

    study: Literal["cache"]
    is_benchmark: ClassVar[bool] = True
    size: int = Field(default=64, ge=2, le=4096)
    heads: int = Field(default=4, ge=1, le=64)
    window: int = Field(default=256, ge=1)
    compared: int = Field(
        default=300,
        ge=2,
        le=4096,
        description="tokens that are decoded and compared with the full pass",
    )
    lengths: NonEmpty[Annotated[int, Field(ge=2, le=10**6)]]
    repeats: int = Field(default=50, ge=1)

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        keys = Keys(key)
        modules = {kind: self.module(kind, keys.next()) for kind in KINDS}
        x = jax.random.normal(keys.next(), (max(*self.lengths, self.compared), self.size))
        monitor.print(f"decoding {self.compared} tokens, to compare with the full pass")
        first = x[: self.compared]
        deviations = {kind: self.deviation(kind, of, first) for kind, of in modules.items()}

        def measure(length: int) -> dict[str, dict[str, float]]:
            found = {}
            for kind, module in modules.items():
                held, step = self.last_step(kind, module, x[:length])
                # one by one: a large cache would evict a small one from that of the CPU
                seconds = medians(interleaved({kind: step}, self.repeats).seconds)
                found[kind] = {"bytes": held, "seconds": seconds[kind]}
            return found

        rows = monitor.collect("decoding", self.lengths, measure)
        return deviations, {
            kind: {what: [row[kind][what] for row in rows] for what in ("bytes", "seconds")}
            for kind in KINDS
        }

    def report(self, results: Results, run: Run) -> None:
        deviations, costs = results
        draw_patterns(run)
        self.draw(run, costs)
        rows = [
            {"cache": kind, "equal to": EQUAL_TO[kind].format(window=self.window)}
            | {"largest deviation": deviations[kind], **costs[kind]}
            for kind in KINDS
        ]
        run.table_of(
            f"Decoding {self.compared} tokens against the full pass ({self.precision}), and one "
            f"more token after {', '.join(map(str, self.lengths))}",
            rows,
        )
        run.summary({"deviations": deviations, "lengths": self.lengths, "costs": costs})

    def module(self, kind: str, key: Array) -> ak.MultiheadAttention:
        """The same attention for two caches; linear attention for the state."""
        options: dict[str, Any] = {"rotary": ak.Rotary()}
        if kind == "recurrent":
            options = {"kernel": EluFeatures(), "prior": ak.Causal(), "method": Linear()}
        return ak.MultiheadAttention(self.heads, self.size, **options, key=key)

    def empty(self, kind: str, module: ak.MultiheadAttention, length: int) -> Any:
        if kind == "recurrent":
            return module.recurrent_cache()
        return module.cache(length if kind == "full" else self.window, ring=kind == "ring")

    def deviation(self, kind: str, module: ak.MultiheadAttention, x: Array) -> float:
        """The largest deviation of rows decoded one by one from the full pass."""
        seen = {"full": ak.Causal(), "ring": ak.Window(self.window - 1, 0), "recurrent": None}
        whole = module(x, x, x, prior=seen[kind])
        first = min(len(x), max(1, self.window // 2))
        step = eqx.filter_jit(module.step)
        out, cache = step(x[:first], self.empty(kind, module, len(x)))

        def next_row(cache: Any, row: Array) -> tuple[Any, Array]:
            out, cache = module.step(row[None], cache)
            return cache, out[0]

        _, rows = jax.lax.scan(next_row, cache, x[first:])
        return float(jnp.max(jnp.abs(jnp.concatenate([out, rows]) - whole)))

    def last_step(self, kind: str, module: Any, x: Array) -> tuple[int, Callable[[], Any]]:
        """Bytes of the cache of all but the last token, and a function that decodes that token."""
        step = eqx.filter_jit(module.step)
        _, cache = step(x[:-1], self.empty(kind, module, len(x)))
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(cache, eqx.is_array)))
        return held, lambda: step(x[-1:], cache)

    def draw(self, run: Run, costs: dict[str, dict[str, list[float]]]) -> None:
        figure, axes = subplots(1, 2, figsize=(7.8, 3.2))
        memory = ("bytes", "memory of the cache", "MiB", 2.0**20)
        for ax, (what, label, unit, size) in zip(
            axes, (memory, ("seconds", "time of one token", "ms", 1e-3)), strict=True
        ):
            numbers = {kind: np.asarray(costs[kind][what]) / size for kind in KINDS}
            draw_lines(ax, self.lengths, numbers)
            lengths_axis(ax, self.lengths, "tokens before")
            ax.set_ylabel(f"{label}, {unit}")
            ends = [f"{kind} {line[-1]:.2g}" for kind, line in numbers.items()]
            ax.set_title(f"after {self.lengths[-1]:,} tokens, {unit}:\n{', '.join(ends)}")
        save_with_legend(run, "cache", figure, list(axes))


EQUAL_TO = {
    "full": "causal attention",
    "ring": "attention to a window of {window}",
    "recurrent": "causal linear attention",
}


def draw_patterns(run: Run, tokens: int = 12, subject: int = 1) -> None:
    """Three patterns, as each new query finds them in a cache that grows."""
    one = jnp.zeros((tokens, 1))
    loud = jnp.where(jnp.arange(tokens) == subject, 6.0, 0.0)
    before = jnp.where(jnp.eye(tokens, k=-1) == 1, 6.0, 0.0)
    priors = {
        "broadcast": ak.Causal(),
        "subject pointer": ak.Causal() * ak.priors.KeyWeights(loud),
        "previous token": ak.Causal() * ak.priors.BiasTable(before),
    }
    weights = {
        name: ak.attention_weights(one, one, kernel=ak.DotProduct(), prior=prior)
        for name, prior in priors.items()
    }
    words: Any = {"x": "key in the cache", "y": "token t that asks"}
    run.figure("patterns", draw_heat_maps(weights, 3, "weight (grey: not there yet)", **words))
