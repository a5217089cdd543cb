r"""How fast softmax attention is, and what memory it takes, against JAX, Equinox and PyTorch.

q, k, v ∈ ℝ^{heads × T × d}, standard normal; full, or causal: key position ≤ query position.
Forward: softmax(qkᵀ/√d) v. Backward: forward and the gradients in q, k and v for one cotangent. A
pair takes 4d operations forward and, with scores recomputed, 10d more backward, beside one or two
exponentials; causal attention has half of the pairs.
"""

import functools
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import pydantic
from jaxtyping import PRNGKeyArray

from ..panels import label_outer, legend, panels
from ..parts import Name, Positive
from ..run import Run
from ..study import Study
from ..watch import SILENT, Watch
from .attention_contenders import (
    FORWARD,
    JAX_NN,
    LOOKS,
    OURS,
    TORCH,
    WORKS,
    draw_arrays,
    in_words,
    make,
)
from .attention_memory import draw_memory, growth, memory_of_each
from .driver import GIB, Case, agreement, measure
from .tables import (
    draw_series,
    note_unavailable,
    note_unavailable_rows,
    number,
    ratio,
    ratios,
    set_ticks,
    table_of_targets,
    target,
)

TOLERANCE = 1e-4  # relative to the largest number of an array


class Results(NamedTuple):
    """Rows of seconds by length, and rows of memory at one length."""

    table: list[dict[str, Any]]
    memory: list[dict[str, Any]]


class BenchAttention(Study):
    """Seconds against the length T, full and causal, forward and backward; memory at one T."""

    study: Literal["bench_attention"]
    name: Name = "bench_attention"
    length: Annotated[
        list[Annotated[int, pydantic.Field(ge=2, le=1_000_000)]], pydantic.Field(min_length=1)
    ] = [1024, 2048, 4096, 8192, 16384]
    memory_length: Annotated[int, pydantic.Field(ge=2, le=1_000_000)] | None = pydantic.Field(
        default=4096, description="T at which memory is measured; null: nowhere"
    )
    heads: Annotated[int, pydantic.Field(ge=1, le=1000)] = 8
    dim: Annotated[int, pydantic.Field(ge=1, le=1000)] = 64
    repeats: Annotated[int, pydantic.Field(ge=1, le=100)] = 5
    most_seconds: Positive = pydantic.Field(
        default=20.0, description="for all rounds of a contender; a slower one has fewer"
    )
    most_memory_gib: Positive = pydantic.Field(
        default=6.0, description="contenders that need more are left out"
    )
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> Results:
        memory = []
        if self.memory_length is not None:
            sizes = (self.heads, self.memory_length, self.dim, self.seed)
            memory = memory_of_each(
                watch, list(LOOKS), WORKS, sizes, self.precision, self.most_memory_gib
            )
        cases = (self._case(length, *work) for length in sorted(self.length) for work in WORKS)
        total = len(self.length) * len(WORKS)
        return Results(measure(watch, cases, total, self.repeats, self.most_seconds), memory)

    def _case(self, length: int, causal: bool, phase: str) -> Case:
        draw = functools.cache(lambda: draw_arrays(self.heads, length, self.dim, self.seed))
        return Case(
            {"length": length, "causal": causal, "phase": phase},
            f"T = {length}, {in_words(causal, phase)}",
            {
                name: lambda name=name: make(
                    name, causal, phase, draw(), self.most_memory_gib * GIB
                )
                for name in LOOKS
            },
            functools.partial(agreement, reference=OURS, tolerance=TOLERANCE),
        )

    def report(self, results: Results, run: Run) -> None:
        table, memory = results
        note_unavailable_rows(run, table)
        note_unavailable(
            run,
            [
                (row["contender"], f"memory, {in_words(row['causal'], row['phase'])}", reason)
                for row in memory
                if (reason := row["unavailable"]) is not None
            ],
        )
        self._print(run, table, memory)
        targets = self._targets(table, memory)
        table_of_targets(run, targets)
        self._draw(run, table)
        if memory:
            draw_memory(run, memory, LOOKS, WORKS)
        run.summary({"tolerance": TOLERANCE, "table": table, "memory": memory, "targets": targets})

    def _print(self, run: Run, table: list[Any], memory: list[Any]) -> None:
        places = [[str(row["length"]), in_words(row["causal"], row["phase"])] for row in table]
        others = [name for name in LOOKS if name != OURS]
        run.table(
            f"Seconds, medians of up to {self.repeats}; {self.heads} heads, d = {self.dim}",
            ["T", "", *LOOKS],
            [
                [*place, *(number(row["median"].get(name)) for name in LOOKS)]
                for place, row in zip(places, table, strict=True)
            ],
        )
        run.table(
            "Seconds of others in those of attnkernel, and its operations a second",
            ["T", "", *others, "Gflop/s"],
            [
                [
                    *place,
                    *(number(ratio(row, name, OURS), ".2f") for name in others),
                    f"{self._operations(row) / row['median'][OURS] / 1e9:.0f}",
                ]
                for place, row in zip(places, table, strict=True)
            ],
        )
        if memory:
            run.table(
                f"Memory at T = {self.memory_length}, MiB: peak of a fresh process over idle",
                ["", *LOOKS],
                [
                    [
                        in_words(*work),
                        *(number(growth(memory, name, *work), ".0f") for name in LOOKS),
                    ]
                    for work in WORKS
                ],
            )

    def _operations(self, row: dict[str, Any]) -> float:
        """Operations of the products of matrices; of a causal mask, for the allowed pairs."""
        pairs = row["length"] * (row["length"] + 1) / 2 if row["causal"] else row["length"] ** 2
        per_pair = (4 if row["phase"] == FORWARD else 14) * self.dim
        return float(self.heads * pairs * per_pair)

    def _targets(self, table: list[Any], memory: list[Any]) -> list[dict[str, Any]]:
        saved = {
            in_words(*work): theirs / ours
            for work in WORKS
            if (theirs := growth(memory, JAX_NN, *work)) and (ours := growth(memory, OURS, *work))
        }
        times = {(row["length"], row["phase"], row["causal"]): row["median"][OURS] for row in table}
        causal_part = {
            f"T = {length}, {phase}": times[length, phase, True] / spent
            for (length, phase, causal), spent in times.items()
            if not causal
        }
        at_4096 = ratios(table, JAX_NN, OURS, lambda row: row["length"] == 4096)
        causal, full = (
            ratios(table, TORCH, OURS, lambda row, causal=causal: row["causal"] == causal)
            for causal in (True, False)
        )
        return [
            target("times as fast as jax.nn, T = 4096", 4.0, at_4096),
            target(f"times less memory than jax.nn, T = {self.memory_length}", 10.0, saved),
            target("times as fast as PyTorch, causal", 1.0, causal),
            target("times as fast as PyTorch, full", 0.8, full),
            target("causal, in times of full", 0.6, causal_part, at_most=True),
        ]

    def _draw(self, run: Run, table: list[dict[str, Any]]) -> None:
        figure, axes = panels(len(WORKS))
        lengths = sorted(set(self.length))
        arrays: dict[str, Any] = {"length": lengths}
        for ax, work in zip(axes, WORKS, strict=True):
            rows = [row for row in table if (row["causal"], row["phase"]) == work]
            drawn = draw_series(ax, rows, "length", LOOKS)
            arrays |= {f"{name}, {in_words(*work)}": values for name, values in drawn.items()}
            ax.set_title(in_words(*work))
            set_ticks(ax, lengths, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths])
        label_outer(axes, "tokens T", "seconds")
        legend(figure, axes)
        run.figure("bench_attention", figure, **arrays)
