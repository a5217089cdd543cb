r"""How fast softmax attention is, and what memory it takes, against JAX, Equinox and PyTorch.

q, k, v ∈ ℝ^{heads × T × d}, standard normal; full, or causal: key position ≤ query position.
Forward: softmax(qkᵀ/√d) v. Backward: forward and the gradients in q, k and v for one cotangent. A
pair takes 4d operations forward and, with scores recomputed, 10d more backward, beside one or two
exponentials; causal attention has half of the pairs.
"""

import operator
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, Float
from matplotlib.figure import Figure

import attnkernel as ak

from ..panels import label_outer, legend, panels
from ..parts import Name, Positive
from ..run import Run
from ..study import Study
from .driver import (
    GIB,
    MIB,
    Contender,
    Unavailable,
    agreement,
    available,
    compiled,
    in_fresh_process,
    interleaved,
    medians,
    note_unavailable,
    optional_import,
    peak_bytes,
    table_of_targets,
    target,
    timed,
)

OURS, JAX_NN, EQUINOX, TORCH = "attnkernel", "jax.nn", "Equinox", "PyTorch"
FORWARD, BACKWARD = "forward", "+ backward"
_TOLERANCE = 1e-4  # relative to the largest number of an array
_LOOK: dict[str, Any] = {
    OURS: {"color": ak.plot.BLUE, "marker": "o"},
    JAX_NN: {"color": ak.plot.ORANGE, "marker": "^"},
    EQUINOX: {"color": ak.plot.GREEN, "marker": "D"},
    TORCH: {"color": ak.plot.PURPLE, "marker": "v"},
}
Heads = Float[Array, "heads tokens dim"]


def streamed(q: Heads, k: Heads, v: Heads, causal: bool) -> Heads:
    prior = ak.Causal() if causal else None
    return ak.attend(q, k, v, kernel=ak.DotProduct(), prior=prior, method=ak.Blockwise())


def jax_nn(q: Heads, k: Heads, v: Heads, causal: bool) -> Heads:
    tokens_first = (a.swapaxes(0, 1) for a in (q, k, v))
    return jax.nn.dot_product_attention(*tokens_first, is_causal=causal).swapaxes(0, 1)


def equinox_core(q: Heads, k: Heads, v: Heads, causal: bool) -> Heads:
    """`eqx.nn.MultiheadAttention`, its projections the identity."""
    heads, tokens, dim = q.shape
    module = eqx.nn.MultiheadAttention(heads, heads * dim, dtype=q.dtype, key=jax.random.PRNGKey(0))
    for name in ("query_proj", "key_proj", "value_proj", "output_proj"):
        module = eqx.tree_at(operator.attrgetter(name), module, eqx.nn.Identity())
    mask = jnp.tril(jnp.ones((tokens, tokens), bool)) if causal else None
    q, k, v = (a.swapaxes(0, 1).reshape(tokens, heads * dim) for a in (q, k, v))
    return module(q, k, v, mask=mask).reshape(tokens, heads, dim).swapaxes(0, 1)


JAX_SIDES: dict[str, Callable[..., Array]] = {
    OURS: streamed,
    JAX_NN: jax_nn,
    EQUINOX: equinox_core,
}


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
        default=20.0, description="for all repeats of a side; a slower one has fewer, but one"
    )
    most_memory_gib: Positive = pydantic.Field(
        default=6.0, description="sides that would need more are left out"
    )
    is_benchmark: ClassVar[bool] = True

    def run(self, run: Run) -> None:
        works = [(causal, phase) for causal in (False, True) for phase in (FORWARD, BACKWARD)]
        rows: list[dict[str, Any]] = []
        memory: list[dict[str, Any]] = []
        with run.progress("benchmark", len(works) * (len(self.length) + 1)) as tick:
            for done, (causal, phase) in enumerate(works, 1):
                if self.memory_length is not None:
                    memory += self._memories(causal, phase)
                tick(done, f"memory, {_name(causal, phase)}")
            for length in sorted(self.length):
                for causal, phase in works:
                    rows.append(self._measure(length, causal, phase))
                    tick(len(rows) + len(works), f"T = {length}, {_name(causal, phase)}")
        missing = [
            (side, _where(row), why) for row in rows for side, why in row["absent"].items()
        ] + [
            (row["side"], f"memory, {_where(row)}", row["absent"])
            for row in memory
            if row["absent"] is not None
        ]
        note_unavailable(run, missing)
        targets = self._targets(rows, memory)
        self._tables(run, rows, memory)
        table_of_targets(run, targets)
        self._draw(run, rows, memory)
        run.summary({"tolerance": _TOLERANCE, "table": rows, "memory": memory, "targets": targets})

    def _measure(self, length: int, causal: bool, phase: str) -> dict[str, Any]:
        arrays = _arrays(self.heads, length, self.dim, self.seed)
        most, planned = self.most_memory_gib * GIB, {}

        def of_jax(name: str) -> Contender:
            function = _work(JAX_SIDES[name], causal, phase)
            limit = np.inf if name == OURS else most
            side, planned[name] = compiled(function, *arrays, most_bytes=limit)
            return side

        sides, absent = available(
            {name: lambda name=name: of_jax(name) for name in JAX_SIDES}
            | {TORCH: lambda: _torch(arrays, causal, phase)}
        )
        seconds, results = interleaved(sides, self.repeats, most_seconds=self.most_seconds)
        return {
            "length": length,
            "causal": causal,
            "phase": phase,
            "seconds": seconds,
            "median": medians(seconds),
            "planned_bytes": planned,
            "deviation": agreement(results, OURS, _TOLERANCE),
            "absent": absent,
        }

    def _memories(self, causal: bool, phase: str) -> list[dict[str, Any]]:
        sizes = (self.heads, self.memory_length, self.dim, self.seed)
        rest = (sizes, self.precision, self.most_memory_gib)
        return [
            {"side": side, "length": self.memory_length, "causal": causal, "phase": phase}
            | in_fresh_process(measure, side, causal, phase, *rest)
            for side in _LOOK
        ]

    def _tables(self, run: Run, rows: list[dict[str, Any]], memory: list[dict[str, Any]]) -> None:
        def number(value: float | None, form: str = ".3g") -> str:
            return "–" if value is None else format(value, form)

        works = [[str(row["length"]), _name(row["causal"], row["phase"])] for row in rows]
        run.table(
            f"Seconds, medians of up to {self.repeats}; {self.heads} heads, d = {self.dim}",
            ["T", "", *_LOOK],
            [
                [*work, *(number(row["median"].get(name)) for name in _LOOK)]
                for work, row in zip(works, rows, strict=True)
            ],
        )
        peers = list(_LOOK)[1:]
        run.table(
            "Seconds of others in those of attnkernel, and its operations a second",
            ["T", "", *peers, "Gflop/s"],
            [
                [
                    *work,
                    *(number(_ratio(row, name, OURS), ".2f") for name in peers),
                    f"{self._operations(row) / row['median'][OURS] / 1e9:.0f}",
                ]
                for work, row in zip(works, rows, strict=True)
            ],
        )
        if memory:
            run.table(
                f"Memory at T = {self.memory_length}, MiB: peak of a fresh process over idle",
                ["", *_LOOK],
                [
                    [_name(*work), *(number(_growth(memory, name, *work), ".0f") for name in _LOOK)]
                    for work in dict.fromkeys((row["causal"], row["phase"]) for row in memory)
                ],
            )

    def _operations(self, row: dict[str, Any]) -> float:
        """Operations of the products of matrices; of a causal mask, for the allowed pairs."""
        pairs = row["length"] * (row["length"] + 1) / 2 if row["causal"] else row["length"] ** 2
        per_pair = (4 if row["phase"] == FORWARD else 14) * self.dim
        return float(self.heads * pairs * per_pair)

    def _targets(
        self, rows: list[dict[str, Any]], memory: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        def ratios(name: str, causal: tuple[bool, ...], length: int | None = None) -> dict:
            return {
                _where(row): ratio
                for row in rows
                if row["causal"] in causal and length in (None, row["length"])
                if (ratio := _ratio(row, name, OURS)) is not None
            }

        saved = {
            _name(row["causal"], row["phase"]): row["growth_bytes"] / MIB / ours
            for row in memory
            if row["side"] == JAX_NN and row["growth_bytes"] is not None
            if (ours := _growth(memory, OURS, row["causal"], row["phase"]))
        }
        times = {(row["length"], row["phase"], row["causal"]): row["median"][OURS] for row in rows}
        causal_part = {
            f"T = {length}, {phase}": times[length, phase, True] / spent
            for (length, phase, causal), spent in times.items()
            if not causal
        }
        both = (False, True)
        return [
            target("times as fast as jax.nn, T = 4096", 4.0, ratios(JAX_NN, both, 4096)),
            target(f"times less memory than jax.nn, T = {self.memory_length}", 10.0, saved),
            target("times as fast as PyTorch, causal", 1.0, ratios(TORCH, (True,))),
            target("times as fast as PyTorch, full", 0.8, ratios(TORCH, (False,))),
            target("causal, in times of full", 0.6, causal_part, at_most=True),
        ]

    def _draw(self, run: Run, rows: list[dict[str, Any]], memory: list[dict[str, Any]]) -> None:
        works = list(dict.fromkeys((row["causal"], row["phase"]) for row in rows))
        figure, axes = panels(len(works))
        lengths = sorted(set(self.length))
        arrays: dict[str, Any] = {"length": lengths}
        for ax, (causal, phase) in zip(axes, works, strict=True):
            for name, look in _LOOK.items():
                found = {
                    row["length"]: row["median"].get(name, np.nan)
                    for row in rows
                    if (row["causal"], row["phase"]) == (causal, phase)
                }
                seconds = [found[length] for length in lengths]
                arrays[f"{name}, {_name(causal, phase)}"] = seconds
                if np.isfinite(seconds).any():
                    ax.plot(lengths, seconds, label=name, **look)
            ax.set(xscale="log", yscale="log", title=_name(causal, phase))
            ax.set_xticks(lengths, [_short(length) for length in lengths])
            ax.minorticks_off()
        label_outer(axes, "tokens T", "seconds")
        legend(figure, axes)
        run.figure("bench_attention", figure, **arrays)
        if memory:
            self._draw_memory(run, memory)

    def _draw_memory(self, run: Run, memory: list[dict[str, Any]]) -> None:
        works = list(dict.fromkeys((row["causal"], row["phase"]) for row in memory))
        figure = Figure(figsize=(5.6, 3.4))
        ax = figure.subplots()
        names = [name for name in _LOOK if any(_growth(memory, name, *work) for work in works)]
        height = 0.8 / len(names)
        arrays = {}
        for i, name in enumerate(names):
            places = np.arange(len(works)) + (i - (len(names) - 1) / 2) * height
            grown = [_growth(memory, name, *work) or np.nan for work in works]
            bars = ax.barh(places, grown, 0.9 * height, label=name, color=_LOOK[name]["color"])
            ax.bar_label(bars, fmt="%.0f", padding=2, fontsize="small")
            arrays[name] = grown
        ax.set_yticks(np.arange(len(works)), [_name(*work) for work in works])
        ax.invert_yaxis()
        ax.margins(x=0.12)
        ax.set_xscale("log")
        ax.set_xlim(left=1.0)
        ax.set(xlabel=f"MiB over an idle process, T = {self.memory_length}")
        figure.legend(loc="outside lower center", ncols=len(names))
        run.figure("bench_attention_memory", figure, **arrays)


def measure(
    side: str,
    causal: bool,
    phase: str,
    sizes: tuple[int, int, int, int],
    precision: str,
    most_gib: float,
) -> dict[str, Any]:
    """Bytes that one call of a side takes over the idle process, its compilation included."""
    with jax.enable_x64(precision == "float64"):
        arrays = _arrays(*sizes)
        try:
            if side == TORCH:
                call = _torch(arrays, causal, phase)
                idle = peak_bytes()
            else:
                jax.block_until_ready(jax.jit(jnp.sin)(jnp.ones(8)))  # the device is awake
                idle = peak_bytes()
                function = _work(JAX_SIDES[side], causal, phase)
                call = compiled(function, *arrays, most_bytes=most_gib * GIB)[0]
        except Unavailable as reason:
            return {"growth_bytes": None, "absent": str(reason)}
        timed(call)
        return {"growth_bytes": peak_bytes() - idle, "absent": None}


def _arrays(heads: int, length: int, dim: int, seed: int) -> list[Array]:
    """q, k, v and a cotangent; NumPy leaves no larger peak than they take."""
    rng, dtype = np.random.default_rng(seed), jnp.zeros(()).dtype
    draws = [rng.standard_normal((heads, length, dim), dtype) for _ in range(4)]
    return [jax.block_until_ready(jnp.asarray(draw)) for draw in draws]


def _work(attention: Callable[..., Array], causal: bool, phase: str) -> Callable[..., Any]:
    def forward(q: Heads, k: Heads, v: Heads) -> Heads:
        return attention(q, k, v, causal)

    def work(q: Heads, k: Heads, v: Heads, cotangent: Heads) -> Any:
        if phase == FORWARD:
            return forward(q, k, v)
        out, pullback = jax.vjp(forward, q, k, v)
        return out, *pullback(cotangent)

    return work


def _torch(arrays: list[Array], causal: bool, phase: str) -> Contender:
    torch = optional_import("torch")
    # batches come first
    q, k, v, cotangent = (torch.tensor(np.asarray(array))[None] for array in arrays)
    attention = torch.nn.functional.scaled_dot_product_attention

    def forward() -> np.ndarray:
        with torch.no_grad():
            return attention(q, k, v, is_causal=causal).numpy()

    def backward() -> tuple[np.ndarray, ...]:
        leaves = [leaf.requires_grad_() for leaf in (q.detach(), k.detach(), v.detach())]
        out = attention(*leaves, is_causal=causal)
        out.backward(cotangent)
        return out.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves)

    return forward if phase == FORWARD else backward


def _name(causal: bool, phase: str) -> str:
    return f"{'causal' if causal else 'full'} {phase}"


def _short(length: int) -> str:
    return str(length) if length % 1024 else f"{length // 1024}k"


def _where(row: dict[str, Any]) -> str:
    return f"T = {row['length']}, {_name(row['causal'], row['phase'])}"


def _ratio(row: dict[str, Any], name: str, to: str) -> float | None:
    """Seconds of one side in those of another; None where there are none."""
    return row["median"][name] / row["median"][to] if name in row["median"] else None


def _growth(memory: list[dict[str, Any]], side: str, causal: bool, phase: str) -> float | None:
    """MiB."""
    for row in memory:
        if (row["side"], row["causal"], row["phase"]) == (side, causal, phase):
            return None if row["growth_bytes"] is None else row["growth_bytes"] / MIB
    return None
