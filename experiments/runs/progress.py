"""The progress display of a run: a bar on a terminal, about ten plain lines elsewhere."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def show_progress(console: Console, what: str, total: int) -> Iterator["Ticker"]:
    """Yields a `Ticker`."""
    if not console.is_terminal or console.quiet:
        yield Ticker(console, what, total, None)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}  {task.fields[state]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        yield Ticker(console, what, total, bar)


class Ticker:
    """Shows how many of a total are done."""

    def __init__(self, console: Console, what: str, total: int, bar: Progress | None):
        self._console, self._what, self._total, self._bar = console, what, total, bar
        self._task = bar.add_task(what, total=total, state="") if bar else None
        self._printed = 0

    def __call__(self, done: int, state: str) -> None:
        """Shows that `done` of the total are done, and `state`, such as the loss."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, state=state)
        elif done - self._printed >= self._total / 10 or done >= self._total:
            self._console.print(f"{self._what}: {done}/{self._total}  {state}")
            self._printed = done
