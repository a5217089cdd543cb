r"""How fast softmax attention is, and what memory it takes, against JAX, Equinox and PyTorch.

q, k, v ∈ ℝ^{heads × T × d}, standard normal; full, or causal: key position ≤ query position.
Forward: softmax(qkᵀ/√d) v. Backward: forward and the gradients in q, k and v for one cotangent. A
pair takes 4d operations forward and, with scores recomputed, 10d more backward, plus one or two
exponentials; causal attention has half of the pairs.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from jaxtyping import PRNGKeyArray
from pydantic import Field

from ..runs import Monitor, Run
from . import attention_contenders as work, driver
from .benchmark import Benchmark, Results
from .reports import draw_rows, note_unavailable, ratios, target

MEMORY = ("growth_bytes", "later_growth_bytes")  # of the first call, and of a later one
Tokens = Annotated[int, Field(ge=2, le=1_000_000)]


class AttentionBenchmark(Benchmark):
    """Seconds against the length T of a sequence that attends to itself, full and causal, forward
    and backward.
    """

    length: list[Tokens] = Field(default=[1024, 4096], min_length=1)
    heads: int = Field(default=8, ge=1, le=1000)
    axes: ClassVar = ("length", (False, True), (work.FORWARD, work.BACKWARD))
    along: ClassVar = "length"
    x_label: ClassVar = "tokens T"
    # short calls are repeated, or they are timed with cold caches: T = 256 2.9 ms, repeated 1.4
    round_seconds: ClassVar = 0.1

    def panel(self, row: Mapping[str, Any]) -> str:
        return _work(row)

    def case(self, length: int, causal: bool, phase: str, makers: Mapping[str, Any]) -> driver.Case:
        """Returns the case of these contenders, which agree."""
        fields = {"length": length, "causal": causal, "phase": phase}
        label = f"T = {length}, {_work(fields)}"
        return driver.Case(fields, label, makers, driver.agree(work.OURS, 1e-4))

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        """Seconds in times of those of PyTorch, of up to 1024 tokens and of more."""
        limits = {work.FORWARD: (1.15, 1.35), work.BACKWARD: (1.3, 1.4)}
        for (phase, of_phase), longer in itertools.product(limits.items(), (False, True)):
            rows = [row for row in results.table if (row["length"] > 1024) == longer]
            found = ratios(rows, work.OURS, work.TORCH, phase=phase)
            words = f"times PyTorch, {phase}, {'above' if longer else 'up to'} 1024 tokens"
            yield target(words, of_phase[longer], found, at_most=True)


class BenchAttention(AttentionBenchmark):
    """These seconds of attention alone; and its memory at one T."""

    study: Literal["bench_attention"]
    length: list[Tokens] = Field(default=[256, 1024, 4096, 16384], min_length=1)
    memory_length: Tokens | None = Field(
        default=4096, description="T at which memory is measured; null: nowhere"
    )
    dim: int = Field(default=64, ge=1, le=1000)
    compared: ClassVar = work.CONTENDERS

    def make_case(self, key: PRNGKeyArray, length: int, causal: bool, phase: str) -> driver.Case:
        """Returns the `Case` that times every contender's attention between `length` tokens, causal
        or full; `phase`: "forward", or "+ backward" for gradients too.
        """
        arrays = work.draw_arrays(self.heads, length, self.dim, self.seed)
        given = (causal, phase, arrays, self.max_memory_gib * driver.GIB)
        makers = {name: functools.partial(work.make, name, *given) for name in work.CONTENDERS}
        return self.case(length, causal, phase, makers)

    def more(self, key: PRNGKeyArray, monitor: Monitor) -> dict[str, Any]:
        """Memory over the idle process: bytes of the first call, which compiles, and of a later
        one."""
        places = list(itertools.product(work.WORKS, work.CONTENDERS)) if self.memory_length else []

        def measure_memory(place: tuple[tuple[bool, str], str]) -> dict[str, Any]:
            (causal, phase), name = place
            sizes = (self.heads, self.memory_length, self.dim, self.seed)
            call = (work.one_call, name, causal, phase, sizes, self.max_memory_gib * driver.GIB)
            row = {"contender": name, "length": self.memory_length}
            row |= {"causal": causal, "phase": phase}
            try:
                grown = driver.in_fresh_process(driver.growth_of_calls, self.precision, *call)
            except driver.Unavailable as reason:
                return row | dict.fromkeys(MEMORY) | {"unavailable": str(reason)}
            return row | dict(zip(MEMORY, grown, strict=True)) | {"unavailable": None}

        label = lambda row: f"{row['contender']}, {_work(row)}"  # noqa: E731
        return {"memory": monitor.collect("memory", places, measure_memory, label)}

    def columns(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Operations a second of the products of matrices; causal: of the allowed pairs."""
        pairs = row["length"] * (row["length"] + 1) / 2 if row["causal"] else row["length"] ** 2
        operations = self.heads * pairs * (4 if row["phase"] == work.FORWARD else 14) * self.dim
        return {"Gflop/s": f"{operations / row['median'][work.OURS] / 1e9:.0f}"}

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        table, memory, ours = results.table, _memory_by_work(results), work.OURS
        later = {row["label"]: row["later"][ours] for row in memory if ours in row["later"]}
        times = {(row["causal"], row["length"], row["phase"]): row["median"][ours] for row in table}
        causal_part = {
            f"T = {length}, {phase}": times[True, length, phase] / spent
            for (causal, length, phase), spent in times.items()
            if not causal and length >= 1024
        }
        at_4096 = ratios(table, work.JAX_NN, ours, length=4096)
        saved = ratios(memory, work.JAX_NN, ours)
        yield target("times as fast as jax.nn, T = 4096", 4.0, at_4096)
        yield target(f"times less memory than jax.nn, T = {self.memory_length}", 10.0, saved)
        yield target("MiB of a later call, with gradients too", 150.0, later, at_most=True)
        yield from super().targets(results)
        yield target("causal, in times of full", 0.6, causal_part, at_most=True)

    def print_tables(self, results: Results, run: Run) -> None:
        memory = _memory_by_work(results)
        note_unavailable(run, [row | {"label": f"memory, {row['label']}"} for row in memory])
        super().print_tables(results, run)

    def draw(self, results: Results, run: Run) -> None:
        super().draw(results, run)
        if memory := _memory_by_work(results):
            label = f"MiB over an idle process, T = {self.memory_length}"
            draw_rows(run, "bench_attention_memory", memory, self.values, label)


def _memory_by_work(results: Results) -> list[dict[str, Any]]:
    """Returns a row for each work, such as "causal forward", like those of seconds: by contender
    the MiB of a first call as `median`, of a `later` one, and why one is `unavailable`.
    """
    rows: dict[str, dict[str, Any]] = {}
    for row in results.more["memory"]:
        name, label = row["contender"], _work(row)
        found = rows.setdefault(label, {"label": label, "unavailable": {}})
        for key, of_call in zip(("median", "later"), MEMORY, strict=True):
            found.setdefault(key, {})
            if row[of_call] is not None:
                found[key][name] = row[of_call] / driver.MIB
        if row["unavailable"] is not None:
            found["unavailable"][name] = row["unavailable"]
    return list(rows.values())


def _work(row: Mapping[str, Any]) -> str:
    return work.in_words(row["causal"], row["phase"])
