"""A sweep as one program against a process for each of its members: seconds, and the same numbers.

Both are whole commands, from the start of Python to the last file, nothing compiled before. One
member in each round is a process; the time of all is extrapolated from these.
"""

import csv
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import Field

from .. import PACKAGE
from ..config import HoldOutSize, Positive, Training
from .benchmark import Benchmark, Results
from .driver import Case
from .fresh_process import run_process
from .reports import target

SWEEP, ONE, EACH = "one program", "one member", "a process each (extrapolated)"


class BenchSweep(Benchmark):
    """Masked hold-out of the simulated data: many seeds and sizes."""

    study: Literal["bench_sweep"]
    precision: Literal["float32", "float64"] = "float64"
    n: int = Field(default=150, ge=3, le=100_000)
    training: Training = Training()
    hold_out: list[HoldOutSize] = Field(default=[1, 10, 75, 120], min_length=1)
    seeds: int = Field(default=100, ge=2, le=25_000)
    max_seconds: Positive = 600.0
    compared: ClassVar = (SWEEP, ONE, EACH)

    def make_case(self, key: PRNGKeyArray, *place: Any) -> Case:
        """Returns the `Case` that times the command of a sweep, and that of one of its runs."""
        members = self.seeds * len(self.hold_out)
        temporary = tempfile.TemporaryDirectory()
        folder = Path(temporary.name)
        fields: dict[str, Any] = {"study": "holdout", "precision": self.precision}
        fields |= {"data": {"source": "heteroskedastic", "n": self.n}, "hold_out": [1]}
        fields["training"] = self.training.model_dump(mode="json")
        (folder / "c.yaml").write_text(json.dumps(fields), encoding="utf-8")
        sweeps, singles = itertools.count(), itertools.count()
        chosen = np.linspace(0, members - 1, self.repeats).round().astype(int)
        directories = []

        def sweep() -> None:
            sizes = ",".join(f"[{size}]" for size in self.hold_out)
            axes = (f"seed=0..{self.seeds - 1}", f"hold_out={sizes}")
            _run_experiments(folder, "sweep", "c.yaml", *axes, "--out", f"sweep_{next(sweeps)}")

        def single() -> None:
            number = next(singles)
            seed, size = divmod(int(chosen[number]), len(self.hold_out))
            asked = (f"seed={seed}", f"hold_out=[{self.hold_out[size]}]")
            _run_experiments(folder, "run", "c.yaml", *asked, "--out", f"single_{number}")
            directories.append((seed, str([self.hold_out[size]]), folder / f"single_{number}"))

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            with temporary:
                table = folder / "sweep_0" / "members.csv"
                return {"deviation": _largest_deviation(table, directories)}

        contenders = {SWEEP: lambda: sweep, ONE: lambda: single}
        return Case({"members": members}, f"{members} members", contenders, check, cold=True)

    def values(self, row: Mapping[str, Any]) -> dict[str, float]:
        """The medians, and the seconds of a process for each member, extrapolated from one."""
        return {**row["median"], EACH: row["members"] * row["median"][ONE]}

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        (row,) = results.table
        label, values = row["label"], self.values(row)
        each, one = values[EACH] / values[SWEEP], values[SWEEP] / values[ONE]
        deviation = {label: 1e6 * row["deviation"]}
        yield target("times as fast as a process for each", 100.0, {label: each})
        yield target("times as long as one member", 3.0, {label: one}, at_most=True)
        yield target("relative deviation, millionths", 1.0, deviation, at_most=True)


def _run_experiments(folder: Path, *arguments: str) -> None:
    """Runs `python -m experiments ARGUMENTS` in `folder`; raises `RuntimeError` if it fails."""
    root = str(Path(__file__).parents[__name__.count(".")])
    places = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": places}
    command = [sys.executable, "-m", PACKAGE, *arguments, "--quiet"]
    run_process(command, " ".join(arguments), cwd=folder, env=env)


def _largest_deviation(table: Path, directories: list[tuple[int, str, Path]]) -> float:
    """Returns the largest relative difference between the numbers of a sweep, which are those of
    `compute`, and those of the same runs one by one. `table`: `members.csv` of the sweep;
    `directories`: seed, hold-out and directory of each run.
    """
    with table.open(encoding="utf-8") as file:
        rows = {(int(row["seed"]), row["hold_out"]): row for row in csv.DictReader(file)}
    worst = 0.0
    for seed, size, directory in directories:
        (fit,) = json.loads((directory / "summary.json").read_text(encoding="utf-8"))["fits"]
        for name in fit.keys() & {column.removeprefix("fits.0.") for column in rows[seed, size]}:
            together, value = float(rows[seed, size][f"fits.0.{name}"]), fit[name]
            worst = max(worst, abs(together - value) / abs(value))
    return worst
