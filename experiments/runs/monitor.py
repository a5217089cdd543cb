"""Hooks of a computation: progress, metrics and checkpoints. The base class discards them."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

import attnkernel as ak

Tick = Callable[[int, str], None]


class Monitor:
    """Discards progress, metrics and checkpoints: `study.compute(key)` without a run directory.

    A `Run` keeps them. Members of a sweep that are computed in one traced program use this class.
    """

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Adds the seconds of the block to the times of the run."""
        yield

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Iterator[Tick]:
        """Yields a function `tick(done, state)` that shows how many of `total` are done."""
        yield lambda done, state: None

    @contextlib.contextmanager
    def fit(
        self,
        name: str,
        steps: int,
        *,
        record: Callable[[Any], Any],
        log: Callable[[int, dict[str, Any]], str],
        chunk: int = 100,
        resumable: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Yields the arguments of `ak.fit` by which the fit is followed: none if none is kept.

        **Arguments:** `record`: the numbers of a model that the history keeps. `log(done,
        history)`: writes the metrics of a chunk, and returns the words of the progress display.
        `resumable`: whether the fit resumes from checkpoints, `chunk` steps apart.
        """
        checkpoints = self.checkpoints(name)
        if checkpoints is None:
            yield {}
            return
        with self.progress(name, steps) as tick, self.timed(name):

            def callback(done: int, history: dict[str, Any]) -> None:
                tick(done, log(done, history))

            kept = {"checkpoints": checkpoints, "chunk": chunk} if resumable else {}
            yield {"record": record, "callback": callback, **kept}

    def metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds lines to the metrics."""

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

    def print(self, what: Any) -> None:
        """Prints text or a table; here it is discarded."""

    def note(self, sentences: Sequence[str]) -> None:
        """Keeps sentences that a reader of the results must know; here they are discarded."""

    def checkpoints(self, name: str) -> ak.fitting.Checkpoints | None:
        """The checkpoints of a training or loop; None where nothing is kept."""
        return None

    def save(self, name: str, model: Any) -> None:
        """Saves a model under a name, for `ak.load`."""

    def each(self, name: str, number: int, compute: Callable[[int], Any]) -> Iterator[Any]:
        """Yields `compute(0)` to `compute(number - 1)`; a resumed run computes what it lacks.

        `compute` returns arrays, numbers and strings, in lists, tuples and dictionaries.
        """
        yield from map(compute, range(number))

    def collect(
        self,
        what: str,
        items: Sequence[Any],
        compute: Callable[[Any], Any],
        label: Callable[[Any], str] = lambda result: "",
    ) -> list[Any]:
        """The result of each item, as of `each`, with a display of the progress; `label`: of a
        result.
        """
        rows, name = [], what.replace(" ", "_")
        with self.progress(what, len(items)) as tick, self.timed(what):
            for row in self.each(name, len(items), lambda i: compute(items[i])):
                rows.append(row)
                tick(len(rows), label(row))
        return rows

    def simulate(
        self, cases: Mapping[Any, tuple[Callable[[Array], Any], Array]], size: int
    ) -> dict[Any, Any]:
        """The arrays of many data sets, by case: a function of `size` keys, and all of its keys.

        The last batch of a case is filled up, so that one program serves all; what fills it is cut
        off.
        """
        done, total, found = 0, sum(len(keys) for _, keys in cases.values()), {}
        with self.progress("data sets", total) as tick, self.timed("data sets"):
            for case, (function, keys) in cases.items():

                def batch(i: int, function: Any = function, keys: Array = keys) -> Any:
                    rows = np.arange(i * size, (i + 1) * size) % len(keys)
                    left = len(keys) - i * size
                    return jax.tree.map(lambda leaf: np.asarray(leaf)[:left], function(keys[rows]))

                words, parts = ", ".join(map(str, case)) or "fits", []
                name = re.sub(r"\W+", "_", words)
                for part in self.each(name, -(-len(keys) // size), batch):
                    parts.append(part)
                    tick(done + min(len(parts) * size, len(keys)), words)
                done += len(keys)
                found[case] = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return found


NO_MONITOR = Monitor()
