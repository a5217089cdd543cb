"""The output of a run: what it prints on the terminal is kept in `output.log` too.

The log has lines also where the terminal shows a moving bar, and with `--quiet`, which leaves the
terminal empty. It has no colours. What other programs print past Python is not in it.
"""

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


@contextlib.contextmanager
def show_progress(
    console: Console, what: str, total: int, *, after: float = 0.0
) -> Iterator[Callable[[int, str], None]]:
    """Yields a function that shows how many of the total are done, and a state such as the loss;
    into a pipe, only `after` so many seconds."""
    if console.is_terminal and not console.quiet:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}  {task.fields[state]}", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=total, state="")
            yield lambda done, state: bar.update(task, completed=done, state=state)
        return
    printed, begun = 0, time.monotonic()

    def tick(done: int, state: str) -> None:
        nonlocal printed
        is_due = done - printed >= total / 10 or done >= total
        if is_due and time.monotonic() - begun >= after:
            console.print(f"{what}: {done}/{total}  {state}")
            printed = done

    yield tick


MAX_WIDTH = 10_000  # columns of a table in a pipe or in the log, and of one that does not fit


PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
WHOLE_LINES: dict[str, Any] = {"soft_wrap": True, "width": MAX_WIDTH}


def terminal(*, quiet: bool) -> Console:
    """Returns the standard output; into a pipe it prints whole lines."""
    whole = {} if sys.stdout.isatty() else WHOLE_LINES
    return Console(file=sys.stdout, quiet=quiet, **whole, **PLAIN)


class OutputLog:
    """A terminal, and the log of a run."""

    def __init__(self, path: Path, *, quiet: bool):
        self.terminal = terminal(quiet=quiet)
        self._log = _Log(path.open("a", encoding="utf-8", errors="replace", buffering=1))
        self._transcript = Console(
            file=cast(Any, self._log),
            color_system=None,
            force_terminal=False,
            force_jupyter=False,
            **WHOLE_LINES,
            **PLAIN,
        )

    def print(self, what: Any) -> None:
        """Prints text or a table; a table is as wide as its numbers, so that none is cut."""
        for console in (self.terminal, self._transcript):
            if isinstance(what, Table):
                for column in what.columns:  # numbers are whole, where words are wrapped
                    column.no_wrap = not any(" " in str(cell) for cell in column.cells)
                options = console.options.update(max_width=MAX_WIDTH)
                needed = Measurement.get(console, options, what).minimum
                what.width = needed if needed > console.width else None
            console.print(what, crop=False)

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int, str], None]]:
        """Shows progress; yields `tick(done, state)`, whose `state` is words such as the loss."""
        with (
            show_progress(self.terminal, what, total) as shown,
            show_progress(self._transcript, what, total) as written,
            self.streams(),  # the bar has put streams of its own in their place
        ):

            def tick(done: int, state: str) -> None:
                shown(done, state)
                written(done, state)

            yield tick

    @contextlib.contextmanager
    def streams(self) -> Iterator[None]:
        """Keeps what other code prints to the standard output and error in the block, too."""
        with contextlib.ExitStack() as stack:
            for stream, redirect in (
                (sys.stdout, contextlib.redirect_stdout),
                (sys.stderr, contextlib.redirect_stderr),
            ):
                if not isinstance(stream, _Tee):
                    stack.enter_context(redirect(cast(Any, _Tee(stream, self._log))))
            yield

    def close(self) -> None:
        """Ends the log; what is printed later is shown on the terminal alone."""
        self._log.close()


class _Log(io.TextIOBase):
    """The file of the log. A full disk, which ends the run at its next number, ends only the log
    here: the message of that end must still reach the terminal.
    """

    def __init__(self, file: TextIO):
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed
            self._file.write(text)
        return len(text)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class _Tee:
    """A stream whose text goes to a log too."""

    def __init__(self, stream: Any, log: _Log):
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        self._log.write(text)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
