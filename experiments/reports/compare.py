"""Runs side by side: the fields that differ, the results, and their metrics in one figure."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from rich.console import Console

from attnkernel.plot import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, literal

from ..config import ConfigError, read
from ..runs import files
from .figures import subplots
from .number_labels import in_words, labels

MAX_ROWS = 40  # of a table
MAX_PANELS = 6
INDEX_COLUMNS = ("run", "study", "state", "seed", "started", "seconds")
_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
_LINES = ("-", "--", "-.", ":")


class Result:
    """The config, status, summary and metrics of a run directory."""

    def __init__(self, directory: Path):
        files.require_run(directory)
        self.directory = directory
        self.config = files.flat(read(directory / "config.yaml").values)
        self.status = files.status_of(directory)
        self.meta = files.read_json(directory / "meta.json")
        self.summary = files.read_json(directory / "summary.json")
        self.numbers = files.numbers_of(self.summary)

    def rows(self) -> Iterator[tuple[float, str, dict[str, Any]]]:
        """Metrics by line: the step, the member of the run, as "hold_out 7", and its values."""
        path = self.directory / "metrics.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue  # damaged, as the last line of a run that was killed
            if not isinstance(row, dict) or len(row) < 2 or not files.is_number(row.get("step")):
                continue
            (who, member), *values = ((k, v) for k, v in row.items() if k != "step")
            yield row["step"], f"{who} {member}", dict(values)

    def paths(self) -> dict[tuple[str, str], np.ndarray]:
        """Metrics by step, shape (steps, 2): of each number and each member of the run."""
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for step, member, values in self.rows():
            for name, value in values.items():
                if files.is_number(value):
                    found.setdefault((name, member), []).append((step, value))
        return {key: np.array(rows, float) for key, rows in found.items()}


def compare(runs: Sequence[Path], out: Path, console: Console) -> None:
    """Prints tables of what differs, and writes `compare.json` and a figure into a new directory.

    **Raises:** `OutputError` for what is no run, and for a directory that exists or cannot be
    written; `ConfigError` for a run whose config cannot be read.
    """
    results = [Result(run) for run in runs]
    names = _shortest_distinct_names(runs)
    asked = _values_by_field([result.config for result in results], differing=True)
    numbers = _values_by_field([result.numbers for result in results], differing=False)
    words = labels(numbers, [result.summary for result in results])
    state = [result.status["state"] for result in results]
    with files.output_errors(out):
        out.mkdir(parents=True)
    shown = {words[name]: values for name, values in list(numbers.items())[:MAX_ROWS]}
    fields = {"state": state, **asked}
    for title, rows in (("Fields of the configs that differ", fields), ("Results", shown)):
        cells = [[name, *(files.as_cell(one, 6) for one in of)] for name, of in rows.items()]
        console.print(files.plain_table(title, ["", *names], cells))
    if len(numbers) > MAX_ROWS:
        rest = len(numbers) - MAX_ROWS
        console.print(f"and {rest} more numbers in {out / 'compare.json'}")
    content = {"runs": list(map(str, runs)), "state": state, "config": asked, "numbers": numbers}
    with files.output_errors(out):
        files.write_json(out / "compare.json", content)
        drawn = _draw_metrics(names, [result.paths() for result in results], out)
    missing = "no figure: no metric by step that two runs share"
    console.print(f"figure  {drawn}" if drawn else missing)
    console.print(f"numbers {out / 'compare.json'}")


def _shortest_distinct_names(runs: Sequence[Path]) -> list[str]:
    """Returns a name for each run directory: the last parts of its path, as many for all as tell
    them apart.
    """
    parts = [run.resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{i + 1}: {run.name}" for i, run in enumerate(runs)]


def _values_by_field(runs: Sequence[Mapping[str, Any]], *, differing: bool) -> dict[str, list[Any]]:
    """Returns, by field name, its value in each of `runs` (mappings from field names to values;
    None if missing). `differing`: only of fields that differ.
    """
    names = dict.fromkeys(name for run in runs for name in run)
    rows = {name: [run.get(name) for run in runs] for name in names}
    return {k: v for k, v in rows.items() if not differing or any(one != v[0] for one in v)}


def _draw_metrics(
    names: Sequence[str], paths: Sequence[Mapping[tuple[str, str], np.ndarray]], out: Path
) -> Path | None:
    """Draws a panel for each metric that two runs share, against the step; returns the path of the
    figure below `out`, or None without such a metric. `names`: labels of the runs; `paths`: of each
    run, by metric and series, columns step and value.
    """
    metrics = dict.fromkeys(metric for found in paths for metric, _ in found)
    least = min(2, len(paths))
    shared = [m for m in metrics if sum(any(m == k for k, _ in f) for f in paths) >= least]
    if not shared:
        return None
    shared = shared[:MAX_PANELS]
    series = list(dict.fromkeys(who for found in paths for _, who in found))
    size = (6.4, 0.9 + 2.4 * len(shared))
    figure, axes = subplots(len(shared), squeeze=False, sharex=True, figsize=size)
    arrays = {}
    for ax, metric in zip(axes.flat, shared, strict=True):
        for i, found in enumerate(paths):
            for (key, who), rows in found.items():
                if key != metric:
                    continue
                style = _LINES[series.index(who) % len(_LINES)]
                ax.plot(*rows.T, style, color=_COLORS[i % len(_COLORS)], linewidth=1.1)
                arrays[f"{metric}/{i}/{who}"] = rows
        values = np.concatenate(
            [rows[:, 1] for key, rows in arrays.items() if key.startswith(f"{metric}/")]
        )
        if np.all(values > 0) and np.max(values) > 30 * np.min(values):
            ax.set_yscale("log")
        ax.set_ylabel(literal(in_words(metric)))
    figure.axes[-1].set_xlabel("step")
    entries = [
        Line2D([], [], color=_COLORS[i % len(_COLORS)], label=literal(name))
        for i, name in enumerate(names)
    ]
    for i, who in enumerate(series[:12] if len(series) > 1 else []):
        member, _, value = who.partition(" ")  # of "hold_out 7"
        look: dict[str, Any] = {"color": GREY, "linestyle": _LINES[i % len(_LINES)]}
        entries.append(Line2D([], [], **look, label=literal(f"{in_words(member)} {value}")))
    figure.legend(handles=entries, loc="outside lower center", ncols=3)
    return files.save_figure(out / "figures", "compare", figure, arrays)


def index(folder: Path, console: Console) -> None:
    """Writes `index.csv`, one line for each run in a folder and below, and prints a short table.

    **Raises:** `OutputError` where there is no such folder, or it cannot be written.
    """
    if not folder.is_dir():
        raise files.OutputError(f"{folder} is no folder of runs")
    first = ["run", "study", "name", "state", "reason", "seed", "started", "seconds", "commit"]
    rows = []
    for status in sorted(folder.rglob("status.json")):
        if not (status.parent / "config.yaml").is_file():
            continue
        try:
            result = Result(status.parent)
        except (ConfigError, OSError) as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        meta = result.meta
        row = {
            "run": str(status.parent.relative_to(folder)),
            **{key: result.config.get(key) for key in ("study", "name", "seed")},
            **{key: result.status.get(key) for key in ("state", "reason")},
            "started": meta.get("started"),
            "seconds": files.flat(meta).get("seconds.total"),
            "commit": files.flat(meta).get("git.commit"),
        }
        rows.append(row | result.numbers)
    columns = list(dict.fromkeys([*first, *(key for row in rows for key in row)]))
    lines = [list(map(row.get, columns)) for row in rows]
    with files.output_errors(folder):
        files.write_csv(folder / "index.csv", columns, lines)
    cells = [[files.as_cell(row[name], 6) for name in INDEX_COLUMNS] for row in rows[-MAX_ROWS:]]
    console.print(files.plain_table(None, INDEX_COLUMNS, cells))
    console.print(f"{folder / 'index.csv'}: {len(rows)} runs")
