"""The report of a sweep: a line per member, means and intervals over seeds, and their figure."""

import itertools
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column

from attnkernel.plot import BLUE, SKY, literal

from ..reports import labels, legend, subplots
from ..reports.predictions import half_width
from ..runs import numbers_of, plain_table, save_figure, write_csv, write_json
from .members import Member, words


def report(
    out: Path,
    members: Sequence[Member],
    mine: Sequence[Member],
    axes: dict[str, list[str]],
    found: dict[str, dict[str, Any]],
    console: Console,
    rounds: Sequence[Mapping[str, Any]] | None = None,
) -> int:
    """Tables, figure and files of all members that are there; the exit code of this shard.

    `rounds`: the records of successive halving.
    """
    known = {member.id: found.get(member.id, {"state": "missing"}) for member in members}
    state = [one.get("state") for one in known.values()]
    numbers = {name: numbers_of(one.get("summary") or {}) for name, one in known.items()}
    names = list(dict.fromkeys(itertools.chain.from_iterable(numbers.values())))
    lines, together = [], defaultdict(list)
    for member in members:
        ending = [known[member.id].get(field) for field in ENDING]
        own = numbers[member.id]
        # no text in the column of a field: as in the config
        lines.append([*map(member.asked.get, axes), member.id, *ending, *map(own.get, names)])
        if ending[0] == "done":
            together[tuple((k, v) for k, v in member.asked.items() if k != "seed")].append(own)
    write_csv(out / "members.csv", [*axes, "id", *ENDING, *names], lines)
    groups = [
        {"asked": dict(asked), "members": len(runs), "numbers": _summarise_runs(runs)}
        for asked, runs in together.items()
    ]
    content = {
        "members": len(members),
        "states": {name: state.count(name) for name in dict.fromkeys(state)},
        "axes": axes,
        "groups": groups,
        **({} if rounds is None else {"rounds": rounds}),
    }
    write_json(out / "summary.json", content)
    shown = _names_of_varying_numbers(groups)
    summaries = [found[m.id].get("summary") or {} for m in members if m.id in found]
    text_of = labels(names, summaries)
    columns = [Column(overflow="fold"), "members", *(text_of[name] for name in shown)]
    cells = [
        [words(group["asked"]) or "all", str(group["members"])]
        + [_format_mean(group["numbers"].get(name)) for name in shown]
        for group in groups[:MAX_ROWS]
    ]
    console.print(plain_table("Mean, and its 95 % interval over seeds", columns, cells))
    if len(groups) > MAX_ROWS:
        console.print(f"and {len(groups) - MAX_ROWS} more lines in {out / 'summary.json'}")
    if shown:
        label_of = {name: text_of[name] for name in shown}
        console.print(f"figure  {_draw_sweep(out, groups, list(together.values()), label_of)}")
    console.print(f"numbers {out / 'summary.json'}")
    bad = [m for m in mine if found.get(m.id, {}).get("state") != "done"]
    for member in bad:
        reason = found.get(member.id, {}).get("reason") or "see its error.log"
        print(f"not done: {words(member.asked)}: {reason}", file=sys.stderr)
    return 1 if bad else 0


ENDING = ("state", "reason")
MAX_ROWS = 30


def _summarise_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the mean, sd and 95 % interval of every number of runs that differ in their seeds."""
    numbers = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(runs)):
        values = np.array([one[name] for one in runs if name in one], float)
        mean, n = values.mean(), len(values)
        numbers[name] = {"mean": mean, "sd": None, "n": n}
        if n > 1:
            half = half_width(values)
            ends = {"lower": mean - half, "upper": mean + half}
            numbers[name] |= {"sd": values.std(ddof=1), **ends}
    return numbers


def _names_of_varying_numbers(groups: Sequence[Any], limit: int = 4) -> list[str]:
    """Returns the names of the first `limit` numbers that vary with the seed; if none does, of
    those that differ between groups.
    """
    names = dict.fromkeys(name for group in groups for name in group["numbers"])
    means = {n: {g["numbers"][n]["mean"] for g in groups if n in g["numbers"]} for n in names}
    spread = {n: any(g["numbers"].get(n, {}).get("sd") for g in groups) for n in names}
    varied = [name for name in names if spread[name]]
    return (varied or [name for name in names if len(means[name]) > 1])[:limit]


def _format_mean(summary: dict[str, Any] | None) -> str:
    """Returns "mean ± half the width of its 95 % interval", or the mean alone if that is unknown;
    an empty text for None.
    """
    if summary is None:
        return ""
    half = summary["upper"] - summary["mean"] if "upper" in summary else None
    return f"{summary['mean']:.4g}" + ("" if half is None else f" ± {half:.2g}")


def _draw_sweep(
    out: Path, groups: Sequence[Any], runs: Sequence[Any], label_of: Mapping[str, str]
) -> Path:
    """Draws a panel for each number in `label_of` (name to label): runs as ticks, means over seeds
    with their 95 % intervals. Returns the path of the figure.

    `runs`: the numbers of the runs of each group.
    """
    rows_of = [words(group["asked"]) or "all" for group in groups]
    left = max(1.4, 0.09 * max(map(len, rows_of)))  # inches
    size = (left + 2.4 * len(label_of), 1.3 + 0.32 * min(len(groups), 60))
    figure, (axes,) = subplots(1, len(label_of), squeeze=False, sharey=True, figsize=size)
    arrays = {}
    for ax, (name, label) in zip(axes, label_of.items(), strict=True):
        points = [
            (numbers[name], i)
            for i, group in enumerate(runs)
            for numbers in group
            if name in numbers
        ]
        ax.plot(*np.array(points).T, "|", color=SKY, markersize=7, label="members")
        drawn = np.array(
            [
                (i, n["mean"], n.get("lower", n["mean"]), n.get("upper", n["mean"]))
                for i, group in enumerate(groups)
                if (n := group["numbers"].get(name))
            ]
        )
        at, mean, lower, upper = drawn.T
        look = {"fmt": "o", "color": BLUE, "capsize": 3, "markersize": 4}
        ends = (mean - lower, upper - mean)
        ax.errorbar(mean, at, xerr=ends, **look, label="mean, 95 % interval")
        ax.set_xlabel(literal(label))
        ax.margins(y=0.5 / (len(groups) + 1))
        arrays |= {f"{name}/points": points, f"{name}/means": drawn[:, 1:]}
    axes[0].set_yticks(range(len(groups)), [literal(text) for text in rows_of])
    axes[0].invert_yaxis()
    legend(figure, axes[:1])
    return save_figure(out / "figures", "sweep", figure, arrays)
