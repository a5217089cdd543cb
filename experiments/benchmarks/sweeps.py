"""A sweep as one program against a process for each of its members: seconds, and the same numbers.

Both are whole commands, from the start of Python to the last file, nothing compiled before. A few
processes are run; the time of all is extrapolated from theirs.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pydantic
from jaxtyping import PRNGKeyArray
from matplotlib.figure import Figure

from attnkernel.plot import BLUE, GREY, ORANGE, ink

from ..parts import HoldOutSize, Name, Training
from ..run import Run
from ..study import Study
from ..watch import SILENT, Watch
from .tables import table_of_targets, target


class Results(NamedTuple):
    """Seconds of whole sweeps and of single members, and how far their numbers are apart."""

    sweeps: list[float]
    singles: list[float]
    deviation: float


class BenchSweep(Study):
    """Masked hold-out of the simulated data: many seeds and sizes."""

    study: Literal["bench_sweep"]
    name: Name = "bench_sweep"
    precision: Literal["float32", "float64"] = "float64"
    n: Annotated[int, pydantic.Field(ge=3, le=100_000)] = 150
    training: Training = Training()
    hold_out: Annotated[list[HoldOutSize], pydantic.Field(min_length=1)] = [1, 10, 75, 120]
    seeds: Annotated[int, pydantic.Field(ge=2, le=25_000)] = 100
    singles: Annotated[int, pydantic.Field(ge=1)] = pydantic.Field(
        default=8, description="members that are also run in a process of their own"
    )
    repeats: Annotated[int, pydantic.Field(ge=1, le=100)] = 3
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> Results:
        members = self.seeds * len(self.hold_out)
        chosen = np.linspace(0, members - 1, min(self.singles, members)).round().astype(int)
        sweeps, singles, directories = [], [], []
        total = self.repeats + len(chosen)
        with (
            tempfile.TemporaryDirectory() as folder,
            watch.progress("commands", total) as tick,
        ):
            self._config(Path(folder))
            # interleaved, so that a disturbance falls on both
            for turn in range(max(self.repeats, len(chosen))):
                if turn < self.repeats:
                    sweeps.append(_command(Path(folder), *self._sweep(turn)))
                if turn < len(chosen):
                    seed, size = divmod(int(chosen[turn]), len(self.hold_out))
                    asked = (f"seed={seed}", f"hold_out=[{self.hold_out[size]}]")
                    single = f"single_{turn}"
                    singles.append(_command(Path(folder), "run", "c.yaml", *asked, "--out", single))
                    directories.append((seed, str([self.hold_out[size]]), Path(folder) / single))
                tick(len(sweeps) + len(singles), f"{sweeps[-1]:.1f} s all, {singles[-1]:.1f} s one")
            deviation = _deviation(Path(folder) / "sweep_0" / "members.csv", directories)
        return Results(sweeps, singles, deviation)

    def _config(self, folder: Path) -> None:
        """The config of a member, as `c.yaml`."""
        fields: dict[str, Any] = {"study": "holdout", "precision": self.precision}
        fields |= {"data": {"source": "heteroskedastic", "n": self.n}, "hold_out": [1]}
        fields["training"] = self.training.model_dump(mode="json")
        (folder / "c.yaml").write_text(json.dumps(fields), encoding="utf-8")

    def _sweep(self, turn: int) -> list[str]:
        sizes = ",".join(f"[{size}]" for size in self.hold_out)
        axes = [f"seed=0..{self.seeds - 1}", f"hold_out={sizes}"]
        return ["sweep", "c.yaml", *axes, "--out", f"sweep_{turn}"]

    def report(self, results: Results, run: Run) -> None:
        sweeps, singles, deviation = results
        members = self.seeds * len(self.hold_out)
        whole, single = float(np.median(sweeps)), float(np.median(singles))
        every = f"{members} members"
        run.table(
            f"{self.seeds} seeds, {len(self.hold_out)} sizes: whole commands, median",
            ["", "seconds"],
            [
                [f"one program for {every}", f"{whole:.1f}"],
                ["a process for one member", f"{single:.1f}"],
                [f"a process for each of {every} (extrapolated)", f"{members * single:.0f}"],
            ],
        )
        targets = [
            target("times as fast as a process for each", 100.0, {every: members * single / whole}),
            target("times as long as one member", 3.0, {every: whole / single}, at_most=True),
            target("relative deviation, millionths", 1.0, {every: 1e6 * deviation}, at_most=True),
        ]
        table_of_targets(run, targets)
        figure = Figure(figsize=(5.6, 1.9))
        ax = figure.subplots()
        labels = ["one member", f"{members}, one program", f"{members} processes"]
        spent = [single, whole, members * single]
        for label, seconds, color, face in zip(
            labels, spent, (ink(), BLUE, ORANGE), (ink(), BLUE, "none"), strict=True
        ):
            ax.plot(seconds, label, "o", color=color, markerfacecolor=face, markersize=7)
            ax.annotate(f"{seconds:.0f}", (seconds, label), (8, -3), textcoords="offset points")
        ax.set(xscale="log", xlabel="seconds of the whole command (hollow: extrapolated)")
        ax.margins(x=0.15, y=0.25)
        ax.grid(axis="y", linewidth=0.4, color=(GREY, 0.4))
        ax.invert_yaxis()
        run.figure("bench_sweep", figure, seconds=spent, sweeps=sweeps, singles=singles)
        run.summary(
            {
                "members": members,
                "seconds": {"sweep": sweeps, "single": singles},
                "largest_relative_deviation": deviation,
                "targets": targets,
            }
        )


def _command(folder: Path, *arguments: str) -> float:
    """Seconds of `python -m experiments ...`, with nothing compiled before."""
    env = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
    root = str(Path(__file__).parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "experiments", *arguments, "--quiet"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr.strip()}")
    return time.perf_counter() - began


def _deviation(table: Path, directories: list[tuple[int, str, Path]]) -> float:
    """The largest relative difference of a number of a member from that of its own process."""
    with table.open(encoding="utf-8") as file:
        rows = {(int(row["seed"]), row["hold_out"]): row for row in csv.DictReader(file)}
    worst = 0.0
    for seed, size, directory in directories:
        (fit,) = json.loads((directory / "summary.json").read_text(encoding="utf-8"))["fits"]
        for name, value in fit.items():
            together = float(rows[seed, size][f"fits.0.{name}"])
            worst = max(worst, abs(together - value) / abs(value))
    return worst
