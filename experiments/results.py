"""A run directory: everything that a run leaves behind, and how the user sees it go on.

| file | what |
|---|---|
| `config.yaml` | the resolved config: running it again gives the same numbers |
| `meta.json` | versions, device, precision, seed, git state, command, times |
| `status.json` | `running`, `done`, `failed` or `interrupted`, and why; of a run that is done the
                  SHA-256 of its files, by which one that was damaged is known |
| `metrics.jsonl` | one line per step and fit |
| `summary.json` | the numbers of the figures and tables |
| `figures/` | each as `.png` and `.pdf`, with the plotted arrays beside it as `.npz` |
| `checkpoints/` | where a run that was stopped goes on: see `attnkernel.Checkpoints` |

Times go to `meta.json` only: all other files are byte-identical when a run is repeated, and when it
was stopped and resumed. A resumed run makes all its files again, from what its checkpoints hold.
"""

import contextlib
import errno
import functools
import hashlib
import itertools
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import attnkernel as ak
from attnkernel._core.saving import settle, versions, write_whole

from .config import dump
from .kernels import own_kernel

try:
    import fcntl
except ImportError:  # where there is none, two processes are not kept apart
    fcntl = None

# what numbers follow from, of meta.json
_OF_NUMBERS = (
    "config",
    "seed",
    "precision",
    "versions",
    "git",
    "devices",
    "platform",
    "kernels",
    "data",
)
_PACKAGES = ("attnkernel", "jax", "jaxlib", "equinox", "optax", "numpy", "matplotlib")


class OutputError(Exception):
    """The output directory exists, or cannot be written."""


class Run:
    """One run: its directory, its numbers, and its lines on the terminal."""

    def __init__(
        self,
        directory: Path,
        config: Any,
        *,
        quiet: bool = False,
        resume: bool = False,
        numbered: bool = False,
    ):
        """Claims the directory, complete with config, meta and status from its first moment.

        **Arguments:** `resume`: go on with the run that is there, of the same config. `numbered`:
        where the directory exists, claim the first that does not of `NAME_2`, `NAME_3`, ...

        **Raises:** `OutputError` if it exists or cannot be written; to resume, if it is at work.
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
        self._written = ["config.yaml", "metrics.jsonl"]
        self._of = digest_of(config)
        try:
            self._again() if resume else self._claim(config, numbered)
            directory = self.directory
            self._metrics = (directory / "metrics.jsonl").open("w", encoding="utf-8")
        except (FileExistsError, NotADirectoryError):
            raise OutputError(
                f"{directory} cannot be written: something above it is a file"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"{directory} cannot be written: {reason}") from None

    def _claim(self, config: Any, numbered: bool) -> None:
        """Makes the directory, in one moment."""
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.directory.parent, prefix=".run-") as draft:
            made = Path(draft) / "run"
            made.mkdir()
            write_whole(made / "config.yaml", dump(config).encode())
            _write_json(made / "meta.json", self._meta)
            _write_json(made / "status.json", {"state": "running", "reason": None})
            self._lock = _locked(made)
            for place in _numbered(self.directory) if numbered else [self.directory]:
                if not os.path.lexists(place) and _renamed(made, place):
                    self.directory = place
                    break
            else:
                os.close(self._lock)
                raise OutputError(
                    f"{self.directory} exists already; name another with --out, or remove it. "
                    f"To go on with a run: {resume_command(self.directory)}"
                )
        settle(self.directory.parent)

    def _again(self) -> None:
        """Takes over the directory of a run that was stopped, and notes how it was found."""
        self._lock = _locked(self.directory)
        for draft in self.directory.rglob(".*.part"):  # of a file that was never finished
            draft.unlink()
        before = read_json(self.directory / "meta.json")
        how = {"at": _now(), "found": read_json(self.directory / "status.json")}
        changed = {
            name: [before.get(name), now]
            for name, now in self._meta.items()
            if name in _OF_NUMBERS and (name in before or name in ("kernels", "data"))
            if before.get(name) != now
        }
        asked = {name: self._meta[name] for name in ("seed", "precision", "config")}
        self._meta = {**self._meta, **before, **asked}
        resumed = before.get("resumed")
        resumed = resumed if isinstance(resumed, list) else []
        self._meta["resumed"] = [*resumed, {**how, "changed": changed}]
        _write_json(self.directory / "meta.json", self._meta)
        _write_json(self.directory / "status.json", {"state": "running", "reason": None})
        (self.directory / "error.log").unlink(missing_ok=True)
        if changed:
            print(
                f"since this run began, {', '.join(changed)} changed (see meta.json): its numbers "
                f"may differ from those of a run in one go",
                file=sys.stderr,
            )

    def file(self, name: str) -> Path:
        """The path of a further file of the run; its folder is made."""
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        return path

    def checkpoints(self, name: str) -> ak.Checkpoints:
        """Where a part of this run, a training or a loop, leaves what it would go on with."""
        return ak.Checkpoints(
            self.directory / "checkpoints" / name, of=f"{self._of} {name}", report=self._on_damage
        )

    def _on_damage(self, sentence: str) -> None:
        self._meta.setdefault("damaged", []).append(sentence)
        print(sentence, file=sys.stderr)

    def each(self, name: str, number: int, compute: Callable[[int], Any]) -> Iterator[Any]:
        """What `compute` makes of 0, 1, ..., `number` - 1: of a resumed run, only what it lacked.

        It makes arrays, numbers and strings, in lists, tuples and dictionaries.
        """
        checkpoints = self.checkpoints(name)
        kept = checkpoints.load()
        found = [] if kept is None else kept.found
        yield from found
        for i in range(len(found), number):
            found.append(compute(i))
            checkpoints.save(i + 1, None, found, last=i + 1 == number)
            yield found[-1]

    def batches(
        self, name: str, number: int, size: int, compute: Callable[[np.ndarray], Any]
    ) -> Iterator[tuple[int, Any]]:
        """What `compute` makes of the first `number` whole numbers, `size` at a time, kept as by
        `each`; and how many are done. The last are filled up, so that one program serves all."""

        def one(i: int) -> Any:
            rows, left = np.arange(i * size, (i + 1) * size) % number, number - i * size
            return jax.tree.map(lambda part: np.asarray(part)[:left], compute(rows))

        for i, found in enumerate(self.each(name, -(-number // size), one), 1):
            yield min(i * size, number), found

    def metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds lines to `metrics.jsonl`; no end of this process takes them back."""
        self._metrics.writelines(json.dumps(plain(row)) + "\n" for row in rows)
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
        self._written.append("summary.json")

    def note(self, sentences: Sequence[str]) -> None:
        """Keeps sentences that a reader of the results must know, and prints them."""
        for sentence in sentences:
            self._notes.append(sentence)
            self.console.print(f"note: {sentence}")

    def figure(self, name: str, figure: Figure, **arrays: Any) -> None:
        """Saves a figure as PNG and PDF, and the arrays that it shows."""
        with self.timed("figures"):
            save_figure(self.directory / "figures", name, figure, arrays)

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
        """Writes how the run ended. Of one that is done, only the last checkpoints stay."""
        self._metrics.close()  # may raise, where the disk is full
        ended: dict[str, Any] = {"state": state, "reason": reason}
        if state == "done":  # once all that it vouches for is on the disk
            files = sorted(
                path
                for path in (*self.directory.glob("*"), *self.directory.glob("figures/*"))
                if path.is_file() and path.name not in ("meta.json", "status.json")
            )
            for name in self._written:
                if self.directory / name not in files:
                    raise OutputError(
                        f"{self.directory / name} is gone: it was removed while the run was at work"
                    )
            for path in (*files, self.directory / "figures"):
                if path.exists():
                    settle(path)
            ended["files"] = {
                path.relative_to(self.directory).as_posix(): _digest(path) for path in files
            }
            for name in {path.name[:-15] for path in self.directory.glob("checkpoints/*.ckpt")}:
                self.checkpoints(name).keep(1)
        self._meta["seconds"] = {**self._timings, "total": time.time() - self._started}
        self._meta["ended"] = _now()
        _write_json(self.directory / "meta.json", self._meta)
        _write_json(self.directory / "status.json", ended)
        os.close(self._lock)


def save_figure(folder: Path, name: str, figure: Figure, arrays: Mapping[str, Any]) -> Path:
    """Saves a figure as PNG and PDF, and the arrays that it shows; returns the first."""
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / f"{name}.png")
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
    shown: dict[str, Any] = {key: np.asarray(value) for key, value in arrays.items()}
    np.savez(folder / f"{name}.npz", **shown)
    return folder / f"{name}.png"


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
    places = _numbered(Path("results") / name / time.strftime("%Y-%m-%d_%H-%M-%S"))
    return next(place for place in places if not place.exists())


def _numbered(directory: Path) -> Iterator[Path]:
    """The directory, then `NAME_2`, `NAME_3`, ..."""
    yield directory
    for number in itertools.count(2):
        yield directory.with_name(f"{directory.name}_{number}")


def _renamed(made: Path, place: Path) -> bool:
    """Whether the name was still free."""
    try:
        made.rename(place)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    return True


def resume_command(directory: Path) -> str:
    """The words to type."""
    return f"python -m experiments resume {shlex.quote(os.fspath(directory))}"


def _meta(config: Any) -> dict[str, Any]:
    return {
        "command": sys.argv,
        "started": _now(),
        "config": hashlib.sha256(dump(config).encode()).hexdigest(),
        "seed": config.seed,
        "precision": config.precision,
        **({"kernels": kernels} if (kernels := own_kernel(config)) else {}),
        **({"data": data} if (data := _own_data(config)) else {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": [str(device) for device in jax.devices()],
        "versions": versions(_PACKAGES),
        "git": _git(),
    }


def digest_of(config: Any) -> str:
    """Of all that its numbers are of: the config, the file of a kernel, the file of its data."""
    own = [str(part) for part in (own_kernel(config), _own_data(config)) if part]
    return hashlib.sha256("".join([dump(config), *own]).encode()).hexdigest()


def _own_data(config: Any) -> dict[str, str]:
    """The file of data that a config names, and a digest of it."""
    path = getattr(getattr(config, "data", None), "path", None)
    if path is None:
        return {}
    try:
        found = os.stat(path)
    except OSError:
        return {path: "of no file"}
    return {path: _digest_of_file(path, found.st_mtime_ns, found.st_size)}


@functools.lru_cache
def _digest_of_file(path: str, changed: int, size: int) -> str:
    return _digest(Path(path))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def plain(value: Any) -> Any:
    """Numbers as JSON has them: arrays as lists, what is not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file whole or not at all."""
    write_whole(path, (json.dumps(plain(content), indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """What a JSON file says; nothing where it is not there or is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def status_of(directory: Path) -> dict[str, Any]:
    """How a run stands: its `status.json`, and what that cannot say itself.

    `stopped`: at work by its status, but of no process. `damaged`: done, but a file is not as it
    was then, or the summary cannot be read. `unknown`: without a status.
    """
    status = read_json(directory / "status.json")
    state, files = status.get("state"), status.get("files")
    if not isinstance(state, str):
        return status | {"state": "unknown", "reason": "status.json is missing or damaged"}
    if state == "running" and not _is_at_work(directory):
        return status | {"state": "stopped", "reason": "its process is gone"}
    if state == "done":
        if not isinstance(files, dict) and not read_json(directory / "summary.json"):
            return status | {"state": "damaged", "reason": "summary.json cannot be read"}
        for name, digest in files.items() if isinstance(files, dict) else ():
            path = directory / str(name)
            if not path.is_file() or _digest(path) != digest:
                return status | {"state": "damaged", "reason": f"{name} is not as it was written"}
    return status


def _is_at_work(directory: Path) -> bool:
    """Whether a process holds the run; where that cannot be told, yes."""
    if fcntl is None:
        return True
    try:
        os.close(_locked(directory))
    except (OutputError, OSError):
        return True
    return False


def _locked(directory: Path) -> int:
    """The directory as a file, locked until that is closed or this process ends in whatever way.

    **Raises:** `OutputError` where another process has it.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OutputError(f"{directory} is at work: its run has not ended") from None
    except OSError:
        pass  # a file system without locks does not keep two processes apart
    return handle
