"""Copies runs into the formats of other tools: TensorBoard, MLflow and CSV. Nothing is read back.

| of a run | TensorBoard | MLflow | CSV |
|---|---|---|---|
| `metrics.jsonl` | scalars by step | metrics by step | `metrics.csv` |
| the numbers of `summary.json` | scalars `summary/...` | metrics | `summary.csv` |
| `config.yaml` | text, hyperparameters | parameters | `config.csv` |
| `figures/*.png` | images | artifacts | |
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..runs import OutputError, flat, is_number
from . import export_formats
from .compare import Result


class Record(NamedTuple):
    """What is exported of a run."""

    name: str  # the last two parts of its directory
    study: str
    directory: Path
    state: str
    config: dict[str, Any]  # by dotted field
    rows: list[dict[str, Any]]  # of the metrics: step, member, numbers
    series: dict[str, list[tuple[int, float]]]  # of each number and member: steps and values
    summary: dict[str, Any]  # by dotted name, words too
    started: float  # seconds since 1970
    ended: float
    meta: dict[str, Any]  # by dotted name

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the summary."""
        return {name: float(value) for name, value in self.summary.items() if is_number(value)}

    @property
    def figures(self) -> list[Path]:
        """The figures as PNG."""
        return sorted(self.directory.glob("figures/*.png"))


WRITERS: Mapping[str, Callable[[Any, Path], str]] = {
    "tensorboard": export_formats.to_tensorboard,
    "mlflow": export_formats.to_mlflow,
    "csv": export_formats.to_csv,
}


def export(runs: Sequence[Path], target: str, out: Path | None) -> list[str]:
    """Exports runs to one of `WRITERS`, into the folder `out` (default: `results/TARGET`). Returns
    what was written and how to look at it, a line for each run.

    **Raises:** `OutputError` for what is no run or is damaged, for a package that is not installed,
    and for an export that is there.
    """
    folder = Path("results") / target if out is None else out
    records = [read_record(run) for run in runs]
    names = [record.name for record in records]
    if twice := [name for name in names if names.count(name) > 1]:
        raise OutputError(f"two of these runs are named {twice[0]}: export them to two folders")
    try:
        return [WRITERS[target](record, folder) for record in records]
    except OSError as error:
        where = error.filename or folder
        raise OutputError(f"{where} cannot be written: {error.strerror or error}") from None


def read_record(run: Path) -> Record:
    """Reads a run; one that did not end well has what is there, and its state.

    **Raises:** `OutputError`, `ConfigError`.
    """
    result = Result(run)
    state = result.status["state"]
    if state == "damaged":
        raise OutputError(f"{run} is damaged: {result.status['reason']}")
    rows, series = [], {}
    for step, member, values in result.rows():
        numbers = flat(values)  # those of a list by name and place
        rows.append({"step": step, "member": member, **numbers})
        for name, value in numbers.items():
            if is_number(value):
                series.setdefault(f"{name}/{member}", []).append((int(step), float(value)))
    meta = result.meta
    started = _seconds(meta.get("started"))
    return Record(
        "/".join(run.resolve().parts[-2:]),
        str(result.config.get("study")),
        run,
        state,
        result.config,
        rows,
        series,
        flat(result.summary),
        started,
        _seconds(meta.get("ended"), started),
        flat(meta),
    )


def _seconds(time: Any, default: float = 0.0) -> float:
    """Returns an ISO time as seconds since 1970, or `default` if `time` is not one."""
    try:
        return datetime.datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError):
        return default
