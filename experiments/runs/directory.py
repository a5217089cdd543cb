"""A run directory: all that a run leaves behind, and how the user sees it go on.

| file | content |
|---|---|
| `config.yaml` | the resolved config: running it again gives the same numbers |
| `meta.json` | versions, device, precision, seed, git state, command, times |
| `status.json` | `running`, `done`, `failed` or `interrupted`, and the reason; when done, the
                  SHA-256 of its files, by which damage is found |
| `metrics.jsonl` | one line per step and fit |
| `summary.json` | the numbers of the figures and tables |
| `report.html` | of a regression: figures and tables in one file for a browser |
| `predictions.csv` | of a regression with `data.predict`: its rows, and their predictions |
| `output.log` | what the run printed, with `--quiet` too |
| `sources.patch` | what the sources differ in from the commit of `meta.json`, if they do |
| `kernels.py` | the file of the user's kernel, if the config names one |
| `figures/` | each as `.png` and `.pdf`, with the plotted arrays beside it as `.npz` |
| `checkpoints/` | where a run that was stopped goes on: see `attnkernel.fitting.Checkpoints` |

Times go to `meta.json` only: all other files are byte-identical when a run is repeated, and when it
was stopped and resumed; but then `output.log` has the lines of each part. A resumed run writes all
other files again, from its checkpoints.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnkernel as ak
from attnkernel._core.saving import fsync, write_atomically

from ..config import dump, source_of_kernel
from . import files
from .monitor import Monitor, Tick
from .output_log import OutputLog
from .provenance import TIMES, digest_of, digest_of_file, meta_of, now, read_sources

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Column = str | Callable[[Mapping[str, Any]], str]  # of a table: a format of a row, or a function


class Run(Monitor):
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

        **Raises:** `OutputError` if it exists or cannot be written; to resume, if it is running.
        """
        self.directory = directory
        self.stop_requested = False  # by Ctrl-C: `progress` raises it after the current chunk
        self._started = time.time()
        self._sources = read_sources()
        self._meta = meta_of(config, self._sources.record)
        self._timings: dict[str, float] = {}
        self.notes: list[str] = []  # sentences that were kept so far
        self._written = ["config.yaml", "metrics.jsonl"]
        self._digest = digest_of(config)
        try:
            self._claim_stopped_run(config) if resume else self._claim_directory(config, numbered)
            directory = self.directory
            self._metrics = (directory / "metrics.jsonl").open("w", encoding="utf-8")
            self._output = OutputLog(directory / "output.log", quiet=quiet)
        except (FileExistsError, NotADirectoryError):
            raise files.OutputError(
                f"{directory} cannot be written: something above it is a file"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise files.OutputError(f"{directory} cannot be written: {reason}") from None

    def _claim_directory(self, config: Any, numbered: bool) -> None:
        """Makes the locked run directory, with config, metadata and status, by one rename. If it
        exists, raises `OutputError`, or with `numbered` takes NAME_2, NAME_3, ... instead.
        """
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.directory.parent, prefix=".run-") as draft:
            made = Path(draft) / "run"
            made.mkdir()
            write_atomically(made / "config.yaml", dump(config).encode())
            if self._sources.patch:
                write_atomically(made / "sources.patch", self._sources.patch)
            if kernel := source_of_kernel(config):
                write_atomically(made / "kernels.py", kernel)
            files.write_json(made / "meta.json", self._meta)
            files.write_json(made / "status.json", {"state": "running", "reason": None})
            self._lock = files.locked(made)
            for place in files.numbered_places(self.directory) if numbered else [self.directory]:
                if not os.path.lexists(place) and files.rename_if_free(made, place):
                    self.directory = place
                    break
            else:
                os.close(self._lock)
                raise files.OutputError(
                    f"{self.directory} exists already; name another with --out, or remove it. "
                    f"To go on with a run: {files.resume_command(self.directory)}"
                )
        fsync(self.directory.parent)

    def _claim_stopped_run(self, config: Any) -> None:
        """Locks the directory of a stopped run, and records its previous status and what has
        changed since in `meta.json`.
        """
        self._lock = files.locked(self.directory)
        for draft in self.directory.rglob(".*.part"):  # of a file that was never finished
            draft.unlink()
        before = files.read_json(self.directory / "meta.json")
        how = {"at": now(), "found": files.read_json(self.directory / "status.json")}
        changed = {
            name: [before.get(name), now]
            for name, now in self._meta.items()
            if name not in ("python", *TIMES) and (name in before or name in ("kernels", "data"))
            if before.get(name) != now
        }
        asked = {name: self._meta[name] for name in ("seed", "precision", "config")}
        self._meta = {**self._meta, **before, **asked}
        resumed = before.get("resumed")
        resumed = resumed if isinstance(resumed, list) else []
        self._meta["resumed"] = [*resumed, {**how, "changed": changed}]
        if "git" in changed and self._sources.patch:
            name = f"sources_{len(self._meta['resumed']) + 1}.patch"
            write_atomically(self.directory / name, self._sources.patch)
        if "kernels" in changed and (kernel := source_of_kernel(config)):
            write_atomically(self.directory / "kernels.py", kernel)
        files.write_json(self.directory / "meta.json", self._meta)
        files.write_json(self.directory / "status.json", {"state": "running", "reason": None})
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

    def checkpoints(self, name: str) -> ak.fitting.Checkpoints:
        """The checkpoints of a training or loop of this run, in `checkpoints/NAME-*.ckpt`."""
        return ak.fitting.Checkpoints(
            self.directory / "checkpoints" / name,
            of=f"{self._digest} {name}",
            report=self._record_damage,
        )

    def _record_damage(self, sentence: str) -> None:
        """Adds a sentence about a damaged file to `meta.json`, written as the run ends, and prints
        it.
        """
        self._meta.setdefault("damaged", []).append(sentence)
        print(sentence, file=sys.stderr)

    def each(self, name: str, number: int, compute: Callable[[int], Any]) -> Iterator[Any]:
        checkpoints = self.checkpoints(name)
        kept = checkpoints.load()
        found = [] if kept is None else kept.history
        yield from found
        for i in range(len(found), number):
            found.append(compute(i))
            checkpoints.save(i + 1, None, found, last=i + 1 == number)
            yield found[-1]

    def metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds lines to `metrics.jsonl`; no end of this process takes them back."""
        self._metrics.writelines(json.dumps(files.plain(row)) + "\n" for row in rows)
        self._metrics.flush()

    def summary(self, numbers: Mapping[str, Any]) -> None:
        """Writes `summary.json`, with the notes of the run."""
        files.write_json(self.directory / "summary.json", {**numbers, "notes": self.notes})
        self._written.append("summary.json")

    def note(self, sentences: Sequence[str]) -> None:
        """Keeps sentences that a reader of the results must know, and prints them."""
        for sentence in sentences:
            self.notes.append(sentence)
            self.print(f"note: {sentence}")

    def figure(self, name: str, figure: "Figure", **arrays: Any) -> None:
        """Saves a figure as PNG and PDF, and the arrays that it shows: default, those of
        `files.plotted_arrays`.
        """
        with self.timed("figures"):
            files.save_figure(self.directory / "figures", name, figure, arrays)

    def print(self, what: Any) -> None:
        """Prints text or a table, and writes it to `output.log`."""
        self._output.print(what)

    @contextlib.contextmanager
    def keeps_output(self) -> Iterator[None]:
        """What other code prints in the block goes to `output.log`, too, which ends with it."""
        with self._output.streams():
            yield
        self._output.close()

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Prints a table."""
        self.print(files.plain_table(title, columns, rows))

    def table_of(
        self,
        title: str,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str] | Mapping[str, Column] = (),
    ) -> None:
        """Prints rows of numbers; `columns`: names of fields, as in the summary, by default all; or
        by header, a format of a row such as `{loss:.3f}`, or a function of a row.
        """
        if not isinstance(columns, Mapping):
            columns = columns or list(dict.fromkeys(name for row in rows for name in row))
            columns = {
                name.replace("_", " "): lambda row, name=name: files.as_cell(row.get(name))
                for name in columns
            }

        def cell(column: Column, row: Mapping[str, Any]) -> str:
            return column.format(**row) if isinstance(column, str) else column(row)

        cells = [[cell(column, row) for column in columns.values()] for row in rows]
        self.table(title, list(columns), cells)

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._timings[what] = self._timings.get(what, 0.0) + time.perf_counter() - started

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Iterator[Tick]:
        with self._output.progress(what, total) as ticker:

            def tick(done: int, state: str) -> None:
                ticker(done, state)
                if self.stop_requested:
                    raise KeyboardInterrupt

            yield tick

    def save(self, name: str, model: Any) -> None:
        ak.save(self.file(f"checkpoints/{name}"), model)

    def close(self, state: str, reason: str | None = None) -> None:
        """Writes how the run ended. Of one that is done, only the last checkpoints stay."""
        self._metrics.close()  # may raise, where the disk is full
        ended: dict[str, Any] = {"state": state, "reason": reason}
        if state == "done":  # once all files with a checksum are on the disk
            written = sorted(
                path
                for path in (*self.directory.glob("*"), *self.directory.glob("figures/*"))
                if path.is_file() and not files.is_record(path.name)
            )
            for name in self._written:
                if self.directory / name not in written:
                    raise files.OutputError(
                        f"{self.directory / name} is gone: it was removed while the run was at work"
                    )
            for path in (*written, self.directory / "figures"):
                if path.exists():
                    fsync(path)
            ended["files"] = {
                path.relative_to(self.directory).as_posix(): digest_of_file(path)
                for path in written
            }
            for name in {path.name[:-15] for path in self.directory.glob("checkpoints/*.ckpt")}:
                self.checkpoints(name).remove_all_but(1)
        spent = {**self._timings, "total": time.time() - self._started}
        earlier = self._meta.get("seconds")  # of the parts of a resumed run that ended
        for name, value in (earlier if isinstance(earlier, dict) else {}).items():
            if isinstance(value, float):
                spent[name] = spent.get(name, 0.0) + value
        self._meta["seconds"] = spent
        self._meta["ended"] = now()
        files.write_json(self.directory / "meta.json", self._meta)
        files.write_json(self.directory / "status.json", ended)
        os.close(self._lock)
