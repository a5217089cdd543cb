"""The memory of one call of attention: the peak of a fresh process over what it takes idle."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from ..run import Run
from ..watch import Watch
from .attention_contenders import TORCH, draw_arrays, in_words, make
from .driver import GIB, MIB, Unavailable, in_fresh_process, peak_bytes, timed


def memory_of_each(
    watch: Watch,
    contenders: Sequence[str],
    works: Sequence[tuple[bool, str]],
    sizes: tuple[int, int, int, int],
    precision: str,
    max_gib: float,
) -> list[dict[str, Any]]:
    """A row for each contender and piece of work; `sizes`: heads, length, dimension, seed."""
    rows = []
    with watch.progress("memory", len(works)) as tick:
        for done, (causal, phase) in enumerate(works, 1):
            for name in contenders:
                row = {"contender": name, "length": sizes[1], "causal": causal, "phase": phase}
                found = in_fresh_process(
                    measure_growth, name, causal, phase, sizes, precision, max_gib
                )
                rows.append(row | found)
            tick(done, phase)
    return rows


def measure_growth(
    name: str,
    causal: bool,
    phase: str,
    sizes: tuple[int, int, int, int],
    precision: str,
    max_gib: float,
) -> dict[str, Any]:
    """Bytes that one call takes over the idle process, its compilation included."""
    with jax.enable_x64(precision == "float64"):
        arrays = draw_arrays(*sizes)
        jax.block_until_ready(jax.jit(jnp.sin)(jnp.ones(8)))  # the device is initialised
        try:
            if name == TORCH:
                call = make(name, causal, phase, arrays, np.inf)
                idle = peak_bytes()
            else:
                idle = peak_bytes()
                call = make(name, causal, phase, arrays, max_gib * GIB)
        except Unavailable as reason:
            return {"growth_bytes": None, "unavailable": str(reason)}
        timed(call)
        return {"growth_bytes": peak_bytes() - idle, "unavailable": None}


def growth(
    memory: Sequence[Mapping[str, Any]], name: str, causal: bool, phase: str
) -> float | None:
    """MiB of a contender; None where it was not measured."""
    for row in memory:
        if (row["contender"], row["causal"], row["phase"]) == (name, causal, phase):
            return None if row["growth_bytes"] is None else row["growth_bytes"] / MIB
    return None


def draw_memory(
    run: Run,
    memory: Sequence[Mapping[str, Any]],
    looks: Mapping[str, Mapping[str, Any]],
    works: Sequence[tuple[bool, str]],
) -> None:
    figure = Figure(figsize=(5.6, 3.4))
    ax = figure.subplots()
    names = [name for name in looks if any(growth(memory, name, *work) for work in works)]
    height, arrays = 0.8 / len(names), {}
    for i, name in enumerate(names):
        places = np.arange(len(works)) + (i - (len(names) - 1) / 2) * height
        grown = [growth(memory, name, *work) or np.nan for work in works]
        bars = ax.barh(places, grown, 0.9 * height, label=name, color=looks[name]["color"])
        ax.bar_label(bars, fmt="%.0f", padding=2, fontsize="small")
        arrays[name] = grown
    ax.set_yticks(np.arange(len(works)), [in_words(*work) for work in works])
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xscale("log")
    ax.set_xlim(left=1.0)
    ax.set(xlabel=f"MiB over an idle process, T = {memory[0]['length']}")
    figure.legend(loc="outside lower center", ncols=len(names))
    run.figure("bench_attention_memory", figure, **arrays)
