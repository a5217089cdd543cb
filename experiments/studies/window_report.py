"""Tables, predictions and the figure of the study of windows that attention learns."""

from typing import Any

import numpy as np

import attnkernel as ak

from ..reports import facets, label_outer, save_with_legend
from ..reports.predictions import Claims
from ..runs import Run

EXPECTED = {"n": -0.2, "noise": 0.4, "lengthscale": 0.8}  # powers of the best window


def exponents(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The powers of n, σ and L in a window over all kinds of task, by least squares."""
    logs = {part: np.log([row[part] for row in rows]) for part in EXPECTED}
    terms = np.column_stack([np.ones(len(rows)), *logs.values()])
    found = np.linalg.lstsq(terms, np.log([row["windows"][name] for row in rows]), rcond=None)[0]
    powers = dict(zip(EXPECTED, map(float, found[1:]), strict=True))
    return {"kind": "powers", "name": f"{name}, order {rows[0]['order']}", **powers}


CLAIMS: Claims = {
    "the powers of the learned window are within 0.15 of −0.2, 0.4 and 0.8": (
        lambda row: row["kind"] == "powers" and row["of"] == "learned",
        lambda row: all(abs(row[part] - power) < 0.15 for part, power in EXPECTED.items()),
    ),
    "the learned window is within 15 % of the best of its kind of task": (
        lambda row: row["kind"] == "window",
        lambda row: abs(np.log(row["windows"]["learned"] / row["windows"]["best"])) < np.log(1.15),
    ),
    "32 rows: leave-one-out has at least 10 % more error than the learned window": (
        lambda row: row["kind"] == "window" and row["n"] == 32,
        lambda row: row["ratio"] > 1.1,
    ),
    "288 rows: leave-one-out has at most 5 % more error than the learned window": (
        lambda row: row["kind"] == "window" and row["n"] == 288,
        lambda row: row["ratio"] < 1.05,
    ),
    "order 1: the plug-in rule has less error than leave-one-out": (
        lambda row: row["kind"] == "window" and row["order"] == 1,
        lambda row: row["error"]["plug_in"]["mean"] < row["error"]["leave_one_out"]["mean"],
    ),
    "two inputs: the learned window is five times as long across the direction as along it": (
        lambda row: row["kind"] == "direction",
        lambda row: row["across"] > 5 * row["along"],
    ),
    "two inputs: the learned direction is within 5 degrees": (
        lambda row: row["kind"] == "direction",
        lambda row: row["angle"] < 5,
    ),
    "noise that grows: the learned window grows with its power 0.4, within 0.15": (
        lambda row: row["kind"] == "warp",
        lambda row: abs(row["power"] - 0.4) < 0.15,
    ),
}


def draw_windows(run: Run, rows: list[dict[str, Any]]) -> None:
    """Windows against the length of the context, a panel for each order and noise."""
    orders = sorted({row["order"] for row in rows})
    noises = sorted({row["noise"] for row in rows})
    figure, axes = facets(orders, noises, width=2.9, height=2.8, sharey=True)
    colors = (ak.plot.BLUE, ak.plot.ORANGE, ak.plot.GREEN, ak.plot.PURPLE, ak.plot.ink())
    lines = ("-", "--", ":", "-.")
    for (order, noise), ax in axes.items():
        here = [row for row in rows if (row["order"], row["noise"]) == (order, noise)]
        for place, lengthscale in enumerate(sorted({row["lengthscale"] for row in here})):
            of_kind = [row for row in here if row["lengthscale"] == lengthscale]
            n = [row["n"] for row in of_kind]
            learned, best, left_out = (
                np.array([row["windows"][name] for row in of_kind])
                for name in ("learned", "best", "leave_one_out")
            )
            ends = np.array([[row["low"], row["high"]] for row in of_kind]).T
            color, line = colors[place % len(colors)], lines[place % len(lines)]
            kind = f"L = {lengthscale:g}"
            look: dict[str, Any] = {"marker": "o", "linestyle": line, "color": color}
            ax.plot(n, learned, **look, label=f"learned, {kind}")
            ax.plot(n, best, "x", color=color, markersize=8, label=f"_best, {kind}")
            shifted = np.array(n) * 1.04 ** (place + 1)
            ax.errorbar(
                shifted, left_out, np.abs(ends - left_out), fmt="s", color=color,
                markersize=3, linewidth=0.8, label=f"_leave-one-out, {kind}",
            )  # fmt: skip
        ax.set(xscale="log", yscale="log", title=f"order {order}, σ = {noise:g}")
    grey, n = ak.plot.ink(), sorted({row["n"] for row in rows})
    ax = figure.axes[0]
    ax.plot([], [], "x", color=grey, label="best of its kind")
    ax.plot([], [], "s", color=grey, markersize=3, label="leave-one-out, middle half")
    ax.set_xticks(n, n)
    ax.minorticks_off()
    label_outer(axes.values(), "rows of the context", "window ℓ")
    save_with_legend(run, "windows", figure, [ax])
