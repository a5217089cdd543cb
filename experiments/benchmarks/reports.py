"""Reports of benchmarks: ratios, unavailable contenders, targets and values by row."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..reports import draw_dots, save_with_legend, subplots
from ..runs import Run, as_cell


def note_unavailable(run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    """Notes on contenders that did not run in some of the cases: by row, the reason of each."""
    labels: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for contender in row["unavailable"].items():
            labels.setdefault(contender, []).append(row["label"])
    for (name, reason), at in labels.items():
        places = "all cases" if len(at) == len(rows) else "; ".join(at)
        run.note([f"no {name} ({reason}) at {places}"])


def ratio(values: Mapping[str, float], name: str, reference: str) -> float | None:
    """The value of a contender over that of the reference; None where one is missing."""
    return values[name] / values[reference] if {name, reference} <= values.keys() else None


def ratios(
    rows: Iterable[Mapping[str, Any]], name: str, reference: str, **where: Any
) -> dict[str, float]:
    """By label of the row, the ratios of seconds that exist, for a target; `where`: fields of the
    rows that count.
    """
    chosen = [row for row in rows if where.items() <= row.items()]
    found = {row["label"]: ratio(row["median"], name, reference) for row in chosen}
    return {label: value for label, value in found.items() if value is not None}


def draw_rows(run: Run, name: str, rows: Sequence[Any], values: Any, x_label: str) -> None:
    """A figure on a logarithmic axis: by label of the row, the values of each contender, which are
    `values(row)`.
    """
    names = dict.fromkeys(contender for row in rows for contender in values(row))
    drawn = {name: [values(row).get(name, np.nan) for row in rows] for name in names}
    figure, ax = subplots(figsize=(6.4, 1.6 + 0.35 * len(rows)))
    draw_dots(ax, [row["label"] for row in rows], drawn)
    ax.set(xscale="log", xlabel=x_label)
    save_with_legend(run, name, figure, [ax], columns=3)


def target(
    what: str, needed: float, values: Mapping[str, float], *, at_most: bool = False
) -> dict[str, Any]:
    """A target, and the measured value that is furthest from it, by place."""
    row: dict[str, Any] = {"target": what, "at_most" if at_most else "at_least": needed}
    if not values:
        return row | {"worst": None, "at": None, "reached": None}
    at = (max if at_most else min)(values, key=lambda where: values[where])
    reached = values[at] <= needed if at_most else values[at] >= needed
    return row | {"worst": values[at], "at": at, "reached": reached, "values": dict(values)}


def table_of_targets(run: Run, targets: Sequence[Mapping[str, Any]]) -> None:
    """Prints the targets, if there are any."""
    if not targets:
        return
    words = {True: "reached", False: "missed", None: "not measured"}
    columns = {
        "target": "{target}",
        "": lambda row: f"≤ {row['at_most']:g}" if "at_most" in row else f"≥ {row['at_least']:g}",
        "worst": lambda row: as_cell(row["worst"], 3),
        "at": lambda row: row["at"] or "",
        " ": lambda row: words[row["reached"]],
    }
    run.table_of("", targets, columns)
