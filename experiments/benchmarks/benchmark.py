"""The base of all benchmarks: cases and contenders in; tables, targets, figures, a summary out."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import Field

from ..config import Positive
from ..reports import label_outer, looks_of, panels, save_with_legend, ticks_at
from ..runs import NO_MONITOR, Monitor, Run, as_cell
from ..studies import Study
from .driver import Case, measure
from .reports import draw_rows, note_unavailable, ratio, table_of_targets

LIMITS = ("max_seconds", "max_run_seconds", "round_seconds")
MAX_TICKS = 6  # up to this number of sizes, each has a tick


class Results(NamedTuple):
    """A row for each case, further entries of the summary, and what only figures show."""

    table: list[dict[str, Any]]
    more: dict[str, Any]


class Benchmark(Study):
    """A subclass states the `axes` of its cases, `make_case`, what is `compared`, and `targets`.

    The first contender that is compared is ours: the times of the others are divided by its own.
    """

    repeats: int = Field(default=5, ge=1, le=1000)
    max_seconds: Positive = Field(
        default=20.0, description="no further round of a contender starts after these"
    )
    max_run_seconds: Positive = Field(
        default=120.0,
        description="a contender is not run where smaller sizes extrapolate to more, and not "
        "again where its first run took more",
    )
    max_memory_gib: Positive = Field(default=6.0, description="of a contender, else left out")
    is_benchmark: ClassVar[bool] = True
    # whose combinations are the cases: fields, of which numbers ascend, or values
    axes: ClassVar[Sequence[str | Sequence[Any]]] = ()
    compared: ClassVar[Sequence[str]] = ()  # the contenders in tables and figures
    along: ClassVar[str | None] = None  # the field along the horizontal axis
    x_label: ClassVar[str] = ""
    panel_title: ClassVar[str] = ""  # of the fields of a row
    unit: ClassVar[str] = "seconds"
    round_seconds: ClassVar[float] = 0.0
    # from the key of the study and a place; called once the case before is measured
    make_case: ClassVar[Callable[..., Case]]

    def places(self) -> Iterable[tuple[Any, ...]]:
        """The arguments of `make_case` for each case, after the key; the last changes first."""
        values = [getattr(self, axis) if isinstance(axis, str) else axis for axis in self.axes]
        return itertools.product(*(sorted(set(v)) if type(v[0]) is int else v for v in values))

    def more(self, key: PRNGKeyArray, monitor: Monitor) -> dict[str, Any]:
        """Further entries of the summary."""
        return {}

    def targets(self, results: Results) -> Iterable[dict[str, Any]]:
        """What should be reached, and whether it is: see `reports.target`."""
        return ()

    def values(self, row: Mapping[str, Any]) -> Mapping[str, float]:
        """The numbers of a row that are tabulated and drawn, by contender, in `unit`."""
        return row["median"]

    def columns(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Further cells of a row."""
        return {}

    def panel(self, row: Mapping[str, Any]) -> str:
        """The title of the panel in which a row is drawn."""
        return self.panel_title.format(**row)

    def finding(self, row: Mapping[str, Any]) -> str:
        """How the fastest other contender compares with ours, for the title of a panel."""
        ours, *others = self.compared
        ran = {name: row["median"][name] for name in others if name in row["median"]}
        if ours not in row["median"] or not ran:
            return ""
        fastest = min(ran, key=lambda name: ran[name])
        return f"{fastest}: {ran[fastest] / row['median'][ours]:.2g} × the time of {ours}"

    def run(self, run: Run) -> None:
        with warnings.catch_warnings(action="ignore"):  # of contenders, about their own fits
            super().run(run)

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        cases = [functools.partial(self.make_case, key, *place) for place in self.places()]
        limits = {name: getattr(self, name) for name in LIMITS}
        rows = measure(monitor, cases, self.repeats, along=self.along, **limits)
        return Results(rows, self.more(key, monitor))

    def report(self, results: Results, run: Run) -> None:
        note_unavailable(run, results.table)
        self.print_tables(results, run)
        targets = list(self.targets(results))
        table_of_targets(run, targets)
        self.draw(results, run)
        run.summary({"table": results.table, **results.more, "targets": targets})

    def print_tables(self, results: Results, run: Run) -> None:
        """Prints, for each case, the value of every contender and its ratio to ours."""
        rows, ours = results.table, self.compared[0]
        names = [name for name in self.compared if any(name in self.values(row) for row in rows)]

        def cell(row: Mapping[str, Any], name: str) -> str:
            values = self.values(row)
            over = "" if name == ours else f" ({as_cell(ratio(values, name, ours), 3) or '–'})"
            return as_cell(values[name], 3) + over if name in values else "–"

        cells = [
            {"": row["label"], **{name: cell(row, name) for name in names}, **self.columns(row)}
            for row in rows
        ]
        run.table_of(f"{self.unit}, medians of up to {self.repeats} (× {ours})", cells)

    def draw(self, results: Results, run: Run) -> None:
        """Draws a line for each contender in a panel for each `panel`; without `along`, a marker
        in each row.
        """
        rows, name = results.table, self.model_dump(include={"study"})["study"]
        if self.along is None:
            draw_rows(run, name, rows, self.values, self.unit)
        else:
            self._draw_lines(run, name, rows, self.along)

    def _draw_lines(self, run: Run, name: str, rows: list[dict[str, Any]], along: str) -> None:
        """Draws a line for each contender on logarithmic axes, in a panel for each kind of row.

        The title of a panel is followed by the finding of its last row.
        """
        titles = list(dict.fromkeys(map(self.panel, rows)))
        sizes = sorted({row[along] for row in rows})
        figure, axes = panels(len(titles))
        for ax, title in zip(axes, titles, strict=True):
            of_panel = [row for row in rows if self.panel(row) == title]
            of_panel.sort(key=lambda row: row[along])
            for contender, look in looks_of(self.compared).items():
                line = [(row[along], self.values(row).get(contender, np.nan)) for row in of_panel]
                if np.isfinite([value for _, value in line]).any():
                    ax.plot(*zip(*line, strict=True), label=contender, **look)
            ax.set(xscale="log", yscale="log")
            ax.set_title(f"{title}\n{self.finding(of_panel[-1])}".strip())
            if len(sizes) <= MAX_TICKS:
                ticks_at(ax.xaxis, sizes)
        label_outer(axes, self.x_label, self.unit)
        save_with_legend(run, name, figure, axes, columns=min(4, len(self.compared)))
