"""Reports of benchmarks: ratios, unavailable contenders, targets and bars."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..reports import legend, subplots
from ..runs import Run


def note_unavailable(run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    """Notes on contenders that did not run in some of the cases: by row, the reason of each."""
    labels: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for contender in row["unavailable"].items():
            labels.setdefault(contender, []).append(row["label"])
    for (name, reason), at in labels.items():
        places = "all cases" if len(at) == len(rows) else "; ".join(at)
        run.note([f"no {name} ({reason}) at {places}"])


def number(value: float | None) -> str:
    """A cell: the number to three digits, or a dash."""
    return "–" if value is None or np.isnan(value) else format(value, ".3g")


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


def draw_bars(run: Run, name: str, bars: Mapping[str, Mapping[str, float]], x_label: str) -> None:
    """A figure on a logarithmic axis: by contender, a bar for each label that has a value."""
    labels = list(dict.fromkeys(label for of_label in bars.values() for label in of_label))
    height = 0.8 / len(bars)
    figure, ax = subplots(figsize=(6.4, 1.2 + 0.5 * len(labels) * max(1.0, len(bars) / 3)))
    for i, (contender, of_label) in enumerate(bars.items()):
        places = np.arange(len(labels)) + (i - (len(bars) - 1) / 2) * height
        values = [of_label.get(label, np.nan) for label in labels]
        drawn = ax.barh(places, values, 0.9 * height, label=contender)
        ax.bar_label(drawn, [number(value) for value in values], padding=2, fontsize="small")
    ax.set_yticks(np.arange(len(labels)), labels)
    ax.invert_yaxis()
    ax.margins(x=0.15)
    ax.set(xscale="log", xlabel=x_label)
    if len(bars) > 1:
        legend(figure, [ax])
    run.figure(name, figure, **{key: list(of_label.values()) for key, of_label in bars.items()})


def target(
    what: str, needed: float, values: Mapping[str, float], *, at_most: bool = False
) -> dict[str, Any]:
    """A target, and the measured value that is furthest from it, by place."""
    row: dict[str, Any] = {"target": what, "at_most" if at_most else "at_least": needed}
    if not values:
        return row | {"worst": None, "at": None, "reached": None}
    at = (max if at_most else min)(values, key=lambda where: values[where])
    worst = values[at]
    return row | {
        "worst": worst,
        "at": at,
        "reached": worst <= needed if at_most else worst >= needed,
        "values": dict(values),
    }


def table_of_targets(run: Run, targets: Sequence[Mapping[str, Any]]) -> None:
    """Prints the targets, if there are any."""
    if not targets:
        return
    words = {True: "reached", False: "missed", None: "not measured"}
    run.table(
        "",
        ["target", "", "worst", "at", ""],
        [
            [
                row["target"],
                f"≤ {row['at_most']:g}" if "at_most" in row else f"≥ {row['at_least']:g}",
                "" if row["worst"] is None else f"{row['worst']:.2f}",
                row["at"] or "",
                words[row["reached"]],
            ]
            for row in targets
        ],
    )
