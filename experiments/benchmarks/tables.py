"""Reports of benchmarks: tables of seconds and ratios, missing contenders, targets, figures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..run import Run


def note_unavailable(run: Run, found: Sequence[tuple[str, str, str]]) -> None:
    """Notes on contenders that did not run: the name of each, where, and why."""
    where: dict[tuple[str, str], list[str]] = {}
    for name, place, reason in found:
        where.setdefault((name, reason), []).append(place)
    run.note([f"no {name} ({reason}) at {'; '.join(at)}" for (name, reason), at in where.items()])


def note_unavailable_rows(run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    """The same for the rows of `measure`."""
    note_unavailable(
        run,
        [
            (name, row["where"], reason)
            for row in rows
            for name, reason in row["unavailable"].items()
        ],
    )


def number(value: float | None, form: str = ".3g") -> str:
    """A cell: the number, or a dash."""
    return "–" if value is None or np.isnan(value) else format(value, form)


def ratio(row: Mapping[str, Any], name: str, reference: str) -> float | None:
    """The median of a contender in those of the reference; None where there is none."""
    found = row["median"].get(name)
    return None if found is None else found / row["median"][reference]


def ratios(
    rows: Sequence[Mapping[str, Any]], name: str, reference: str, keep: Callable[[Any], bool]
) -> dict[str, float]:
    """By case, the ratios of the rows that `keep` selects, for a target."""
    found = {row["where"]: ratio(row, name, reference) for row in rows if keep(row)}
    return {where: value for where, value in found.items() if value is not None}


def series(
    rows: Sequence[Mapping[str, Any]], along: str, name: str, value: Callable[[Any], Any]
) -> tuple[list[Any], list[float]]:
    """A line of a figure: the places along an axis, and the values; NaN where there is none."""
    found = [value(row).get(name) for row in rows]
    return [row[along] for row in rows], [np.nan if v is None else v for v in found]


def draw_series(
    ax: Axes,
    rows: Sequence[Mapping[str, Any]],
    along: str,
    looks: Mapping[str, Mapping[str, Any]],
    value: Callable[[Any], Any] = lambda row: row["median"],
) -> dict[str, list[float]]:
    """A line for each contender on logarithmic axes; returns what was drawn, by contender."""
    drawn = {}
    for name, look in looks.items():
        places, values = series(rows, along, name, value)
        drawn[name] = values
        if np.isfinite(values).any():
            ax.plot(places, values, label=name, **look)
    ax.set(xscale="log", yscale="log")
    return drawn


def set_ticks(ax: Axes, places: Sequence[int], labels: Sequence[str] | None = None) -> None:
    """Ticks at the measured sizes alone."""
    ax.set_xticks(places, list(map(str, places)) if labels is None else labels)
    ax.minorticks_off()


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
