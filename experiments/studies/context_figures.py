"""Figures of the study of the temperature of attention in context."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

import attnkernel as ak

from ..reports import legend
from ..runs import Run
from .context_errors import IN_N, IN_TAU, Case, in_closed_form

FIXED, HOLD_OUT, LEAVE_ONE_OUT = "fixed", "hold-out", "leave-one-out"
OF_CASE, OF_PROMPT = "best of the case", "best of the prompt"
ARRAYS = {
    FIXED: "fixed",
    IN_N: "first_order_in_n",
    HOLD_OUT: "hold_out",
    LEAVE_ONE_OUT: "leave_one_out",
    OF_CASE: "best_of_case",
}


def draw_errors(
    run: Run,
    results: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    cases: dict[str, Case],
    grid: Float[np.ndarray, " temperatures"],
) -> None:
    """The error at each temperature, of softmax and to first order, at the middle length."""
    lengths = sorted({row["n"] for row in rows})
    n = lengths[len(lengths) // 2]
    shown = ("as suited", "more noise", "wider inputs", "wider queries")
    figure = Figure(figsize=(10.4, 3.4))
    axes = figure.subplots(1, len(shown), sharey=True)
    arrays = {}
    for ax, case in zip(axes, shown, strict=True):
        found, row = (
            next(one for one in of if (one["n"], one["case"]) == (n, case))
            for of in (results, rows)
        )
        closed = in_closed_form(cases[case], n, grid)
        softmax = found["prompts"].softmax.mean(0)
        simulated = found["prompts"].first_order.mean(0)
        ax.plot(grid, softmax, color=ak.plot.ORANGE, label="softmax")
        ax.plot(grid, closed[IN_TAU], "--", color=ak.plot.BLUE, label=IN_TAU)
        ax.plot(
            grid[::4], simulated[::4], "o", color=ak.plot.BLUE, markersize=3,
            label=f"{IN_TAU}, simulated",
        )  # fmt: skip
        ax.plot(grid, closed[IN_N], ":", color=ak.plot.PURPLE, label=IN_N)
        low, high = row["chosen"][LEAVE_ONE_OUT][1:]
        ax.axvspan(low, high, color=ak.plot.GREEN, alpha=0.25, linewidth=0)
        ax.plot([], [], color=ak.plot.GREEN, alpha=0.25, linewidth=7,
                label="middle half of leave-one-out's choices")  # fmt: skip
        ax.set(xscale="log", yscale="log", xlabel="temperature τ", title=case)
        ax.set_xticks(ticks := [0.3, 1, 3, 10, 30], [f"{tick:g}" for tick in ticks])
        ax.set_yticks(ticks := [0.2, 0.3, 0.5, 1, 2, 4], [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set_ylim(0.25, 4.0)
        key = case.replace(" ", "_")
        arrays |= {key: softmax, f"{key}_first_order": simulated}
        arrays |= {f"{key}_in_tau": closed[IN_TAU], f"{key}_in_n": closed[IN_N]}
    axes[0].set_ylabel(f"squared error ÷ variance, {n} rows")
    legend(figure, [axes[0]])
    run.figure("errors", figure, temperature=grid, **arrays)


def draw_choices(run: Run, rows: list[dict[str, Any]]) -> None:
    """The error of each choice over that of the best of the prompt, a panel for each length."""
    lengths = sorted({row["n"] for row in rows})
    names = list(dict.fromkeys(row["case"] for row in rows))
    figure = Figure(figsize=(1.8 + 2.9 * len(lengths), 3.8))
    axes = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
    looks = {
        FIXED: ("s", ak.plot.BLUE),
        IN_N: ("^", ak.plot.PURPLE),
        HOLD_OUT: ("v", ak.plot.ink()),
        LEAVE_ONE_OUT: ("o", ak.plot.ORANGE),
        OF_CASE: ("D", ak.plot.GREEN),
    }
    arrays = {}
    for ax, n in zip(axes, lengths, strict=True):
        here = {row["case"]: row["error"] for row in rows if row["n"] == n}
        for place, (choice, (marker, color)) in enumerate(looks.items()):
            ratios = [here[c][choice]["mean"] / here[c][OF_PROMPT]["mean"] for c in names]
            at = np.arange(len(names)) + 0.13 * (place - 2)
            ax.plot(ratios, at, marker, color=color, markersize=5, label=choice)
            arrays[f"{ARRAYS[choice]}_{n}"] = np.array(ratios)
        ax.axvline(1.0, color=ak.plot.ink(), linewidth=0.8)
        ax.set(title=f"{n} rows", xlabel="error ÷ best of each prompt")
    axes[0].set_yticks(np.arange(len(names)), names)
    axes[0].invert_yaxis()
    legend(figure, [axes[0]])
    run.figure("choices", figure, **arrays)
