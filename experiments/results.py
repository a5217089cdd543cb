"""A run directory: everything that a run leaves behind, and how the user sees it go on.

| file | what |
|---|---|
| `config.yaml` | the resolved config: running it again gives the same numbers |
| `meta.json` | versions, device, precision, seed, git state, command, times |
| `status.json` | `running`, `done`, `failed` or `interrupted`, and why |
| `metrics.jsonl` | one line per step and fit |
| `summary.json` | the numbers of the figures and tables |
| `figures/` | each as `.png` and `.pdf`, with the plotted arrays beside it as `.npz` |

Times go to `meta.json` only: all other files are byte-identical when a run is repeated.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .config import dump

_PACKAGES = ("attnkernel", "jax", "jaxlib", "equinox", "optax", "numpy", "matplotlib")


class OutputError(Exception):
    """The output directory exists, or cannot be written."""


class Run:
    """One run: its directory, its numbers, and its lines on the terminal."""

    def __init__(self, directory: Path, config: Any, *, quiet: bool = False):
        """Claims the directory, complete with config, meta and status from its first moment.

        **Raises:** `OutputError` if it exists or cannot be written.
        """
        self.directory = directory
        self.console = Console(
            quiet=quiet,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=not sys.stdout.isatty(),
        )
        self._started = time.time()
        self._meta = _meta(config)
        self._timings: dict[str, float] = {}
        self._notes: list[str] = []
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(directory):
                raise OutputError(
                    f"{directory} exists already; name another with --out, or remove it"
                )
            with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".run-") as draft:
                made = Path(draft) / "run"
                made.mkdir()
                (made / "config.yaml").write_text(dump(config), encoding="utf-8")
                _write_json(made / "meta.json", self._meta)
                _write_json(made / "status.json", {"state": "running", "reason": None})
                made.rename(directory)
        except (FileExistsError, NotADirectoryError):
            raise OutputError(
                f"{directory} cannot be written: something above it is a file"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"{directory} cannot be written: {reason}") from None
        self._metrics = (directory / "metrics.jsonl").open("w", encoding="utf-8")

    def metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds lines to `metrics.jsonl`, on disk when this returns."""
        self._metrics.writelines(json.dumps(_plain(row)) + "\n" for row in rows)
        self._metrics.flush()

    def step_metrics(self, done: int, member: str, names: Sequence[Any], **columns: Any) -> None:
        """Adds the lines of a chunk of steps that ends at `done`.

        `columns[what][i][step]` belongs to the i-th of `names`, which is a `member`.
        """
        steps = len(next(iter(columns.values()))[0])
        self.metrics(
            [
                {
                    "step": done - steps + step + 1,
                    member: name,
                    **{what: column[i][step] for what, column in columns.items()},
                }
                for step in range(steps)
                for i, name in enumerate(names)
            ]
        )

    def summary(self, numbers: Mapping[str, Any]) -> None:
        """Writes `summary.json`, with the notes of the run."""
        _write_json(self.directory / "summary.json", {**numbers, "notes": self._notes})

    def note(self, sentences: Sequence[str]) -> None:
        """Keeps sentences that a reader of the results must know, and prints them."""
        for sentence in sentences:
            self._notes.append(sentence)
            self.console.print(f"note: {sentence}")

    def figure(self, name: str, figure: Figure, **arrays: Any) -> None:
        """Saves a figure as PNG and PDF, and the arrays that it shows."""
        folder = self.directory / "figures"
        folder.mkdir(exist_ok=True)
        with self.timed("figures"):
            figure.savefig(folder / f"{name}.png")
            figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
        plain: dict[str, Any] = {key: np.asarray(value) for key, value in arrays.items()}
        np.savez(folder / f"{name}.npz", **plain)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Prints a table."""
        table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Adds the seconds of the block to `meta.json`."""
        started = time.perf_counter()
        yield
        self._timings[what] = self._timings.get(what, 0.0) + time.perf_counter() - started

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Iterator["Ticker"]:
        """A progress display: a bar on a terminal, about ten plain lines elsewhere."""
        if self.console.is_terminal and not self.console.quiet:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}  {task.fields[state]}", markup=False),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self.console) as bar:
                yield Ticker(self.console, what, total, bar)
        else:
            yield Ticker(self.console, what, total, None)

    def close(self, state: str, reason: str | None = None) -> None:
        """Writes how the run ended."""
        self._metrics.close()
        self._meta["seconds"] = {**self._timings, "total": time.time() - self._started}
        self._meta["ended"] = _now()
        _write_json(self.directory / "meta.json", self._meta)
        _write_json(self.directory / "status.json", {"state": state, "reason": reason})


class Ticker:
    """Says how far something is."""

    def __init__(self, console: Console, what: str, total: int, bar: Progress | None):
        self._console, self._what, self._total, self._bar = console, what, total, bar
        self._task = bar.add_task(what, total=total, state="") if bar else None
        self._printed = 0

    def __call__(self, done: int, state: str) -> None:
        """`done` of the total are done; `state` says the current loss."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, state=state)
        elif done - self._printed >= self._total / 10 or done >= self._total:
            self._console.print(f"{self._what}: {done}/{self._total}  {state}")
            self._printed = done


def default_directory(name: str) -> Path:
    """`results/NAME/TIME`, one that does not exist yet."""
    stem = Path("results") / name / time.strftime("%Y-%m-%d_%H-%M-%S")
    directory, number = stem, 2
    while directory.exists():
        directory, number = stem.with_name(f"{stem.name}_{number}"), number + 1
    return directory


def _meta(config: Any) -> dict[str, Any]:
    return {
        "command": sys.argv,
        "started": _now(),
        "seed": config.seed,
        "precision": config.precision,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": [str(device) for device in jax.devices()],
        "versions": {package: _version(package) for package in _PACKAGES},
        "git": _git(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """The commit of the code that runs, and whether it was changed; None outside a checkout."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _plain(value: Any) -> Any:
    """Numbers as JSON has them: arrays as lists, what is not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file whole or not at all."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(_plain(content), indent=2) + "\n", encoding="utf-8")
    draft.replace(path)
