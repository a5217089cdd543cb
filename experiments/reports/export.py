"""Copies runs into the formats of other tools: TensorBoard, MLflow and CSV. Nothing is read back.

| of a run | TensorBoard | MLflow | CSV |
|---|---|---|---|
| `metrics.jsonl` | scalars by step | metrics by step | `metrics.csv` |
| the numbers of `summary.json` | scalars `summary/...` | metrics | `summary.csv` |
| `config.yaml` | text, hyperparameters | parameters | `config.csv` |
| `figures/*.png` | images | artifacts | |
"""

import contextlib
import datetime
import importlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runs import OutputError, flat, is_number, output_errors, write_csv
from ..runs.files import rename_if_free
from ..runs.reproduce import read_picture
from .compare import Result

_BATCH = {"metrics": 1000, "params": 100}  # the most that MLflow takes at a time
_MAX_PARAM = 6000  # characters


def _require(package: str, target: str) -> Any:
    """Returns a module; `OutputError` with what to install if it is not there."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise OutputError(
            f'--to {target} needs {package}: pip install "attnkernel[export]"'
        ) from None


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yields a draft of a folder, which gets its name when the block ends, and is removed if it
    fails; `OutputError` if the folder exists."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as draft:
        made = Path(draft) / folder.name
        made.mkdir()
        is_free = not os.path.lexists(folder)
        if is_free:
            yield made
        if not is_free or not rename_if_free(made, folder):
            raise OutputError(
                f"{folder} exists already: it was exported before; remove it, or take another --out"
            )


def _tag(name: str) -> str:
    """Returns a name with the letters that TensorBoard and MLflow both take."""
    return re.sub(r"[^\w./-]", "_", name)


def _text(value: Any) -> str:
    """Returns a value as one text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def to_tensorboard(record: "Record", folder: Path) -> str:
    """Writes event files to FOLDER/NAME."""
    writer_class = _require("tensorboardX", "tensorboard").SummaryWriter
    own = folder / record.name
    last = max((points[-1][0] for points in record.series.values()), default=0)
    with (
        _new_folder(own) as draft,
        writer_class(logdir=os.fspath(draft), write_to_disk=True) as writer,
    ):
        for name, points in record.series.items():
            for step, value in points:
                writer.add_scalar(_tag(name), value, global_step=step, walltime=record.started)
        config = (record.directory / "config.yaml").read_text(encoding="utf-8")
        block = "\n".join(f"    {line}" for line in config.splitlines())
        writer.add_text("config", block, global_step=0, walltime=record.started)
        at_end = {"global_step": last, "walltime": record.ended}
        for name, value in record.numbers.items():
            writer.add_scalar(_tag(f"summary/{name}"), value, **at_end)
        for figure in record.figures:
            pixels = read_picture(figure)[..., :3]
            writer.add_image(_tag(f"figures/{figure.stem}"), pixels, **at_end, dataformats="HWC")
    return f"{own}: tensorboard --logdir {shlex.quote(os.fspath(folder))}"


def to_mlflow(record: "Record", folder: Path) -> str:
    """Logs a run in the experiment of its study, in the local store FOLDER: a file of SQLite, since
    MLflow refuses stores of plain files by default, and a folder of artifacts.
    """
    mlflow, *_ = (_require(package, "mlflow") for package in ("mlflow", "sqlalchemy", "alembic"))
    entities = importlib.import_module("mlflow.entities")
    folder.mkdir(parents=True, exist_ok=True)
    store = (folder / "mlflow.db", (folder / "artifacts").resolve().as_uri())
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{store[0].resolve()}")
    known = client.get_experiment_by_name(record.study)
    create = client.create_experiment
    experiment = known.experiment_id if known else create(record.study, artifact_location=store[1])
    digest = f"{record.meta.get('config')} {record.meta.get('started')}"
    if client.search_runs([experiment], filter_string=f"tags.attnkernel = '{digest}'"):
        raise OutputError(f"{record.directory} is in {folder} already, in {record.study}")
    wanted = ("python", "platform", "precision", "git.commit")
    meta = flat(record.meta)
    words = {name: _text(meta[name]) for name in wanted if meta.get(name)}
    words |= {k: str(v) for k, v in meta.items() if k.startswith("versions.")}
    words["state"] = record.status["state"]
    started, ended = (round(1000 * time) for time in (record.started, record.ended))
    made = client.create_run(experiment, start_time=started, tags=words, run_name=record.name)
    run = made.info.run_id
    metrics = [
        entities.Metric(_tag(name), value, started, step)
        for name, points in record.series.items()
        for step, value in points
    ]
    metrics += [entities.Metric(_tag(k), v, ended, 0) for k, v in record.numbers.items()]
    config = {_tag(name): _text(value)[:_MAX_PARAM] for name, value in record.config.items()}
    params = [entities.Param(name, text) for name, text in config.items()]
    for what, items in (("metrics", metrics), ("params", params)):
        for first in range(0, len(items), _BATCH[what]):
            client.log_batch(run, **{what: items[first : first + _BATCH[what]]})
    for name in ("config.yaml", "summary.json", "output.log", "report.html"):
        if (record.directory / name).is_file():
            client.log_artifact(run, os.fspath(record.directory / name))
    for figure in record.figures:
        client.log_artifact(run, os.fspath(figure), "figures")
    client.set_tag(run, "attnkernel", digest)  # an export that ended before is not there
    status = "FINISHED" if record.status["state"] == "done" else "FAILED"
    client.set_terminated(run, status=status, end_time=ended)
    uri = shlex.quote(f"sqlite:///{os.fspath(store[0])}")
    return f"{record.name} in {record.study}: mlflow ui --backend-store-uri {uri}"


def to_csv(record: "Record", folder: Path) -> str:
    """Writes `config.csv`, `metrics.csv` and `summary.csv` to FOLDER/NAME."""
    own = folder / record.name
    columns = list(dict.fromkeys(["step", "member", *(k for row in record.lines for k in row)]))
    lines = [list(map(row.get, columns)) for row in record.lines]
    with _new_folder(own) as draft:
        write_csv(draft / "metrics.csv", columns, lines)
        for name, values in (("config", record.config), ("summary", flat(record.summary))):
            rows = [[key, _text(value)] for key, value in values.items()]
            write_csv(draft / f"{name}.csv", ["name", "value"], rows)
    return f"{own}: config.csv, metrics.csv, summary.csv"


class Record(Result):
    """What is exported of a run; one that did not end well has what is there, and its state.

    **Raises:** `OutputError`, `ConfigError`.
    """

    def __init__(self, run: Path):
        super().__init__(run)
        if self.status["state"] == "damaged":
            raise OutputError(f"{run} is damaged: {self.status['reason']}")
        self.name = "/".join(run.resolve().parts[-2:])
        self.study = str(self.config.get("study"))
        self.lines: list[dict[str, Any]] = []  # of the metrics: step, member, numbers
        self.series: dict[str, list[tuple[int, float]]] = {}  # of each number and member
        for step, member, values in self.rows():
            numbers = flat(values)  # those of a list by name and place
            self.lines.append({"step": step, "member": member, **numbers})
            for name, value in numbers.items():
                if is_number(value):
                    points = self.series.setdefault(f"{name}/{member}", [])
                    points.append((int(step), float(value)))
        self.started = _seconds(self.meta.get("started"))
        self.ended = _seconds(self.meta.get("ended"), self.started)
        self.figures = sorted(run.glob("figures/*.png"))


WRITERS: Mapping[str, Callable[[Record, Path], str]] = {
    "tensorboard": to_tensorboard,
    "mlflow": to_mlflow,
    "csv": to_csv,
}


def export(runs: Sequence[Path], target: str, out: Path | None) -> list[str]:
    """Exports runs to one of `WRITERS`, into the folder `out` (default: `results/TARGET`). Returns
    what was written and how to look at it, a line for each run.

    **Raises:** `OutputError` for what is no run or is damaged, for a package that is not installed,
    and for an export that is there.
    """
    folder = Path("results") / target if out is None else out
    records = [Record(run) for run in runs]
    names = [record.name for record in records]
    if twice := [name for name in names if names.count(name) > 1]:
        raise OutputError(f"two of these runs are named {twice[0]}: export them to two folders")
    with output_errors(folder):
        return [WRITERS[target](record, folder) for record in records]


def _seconds(time: Any, default: float = 0.0) -> float:
    """Returns an ISO time as seconds since 1970, or `default` if `time` is not one."""
    try:
        return datetime.datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError):
        return default
