"""Seconds of hold-out and head trainings, against the Python loop of Czyż (2024).

The loop calls a jitted step. Rows are drawn and gathered outside it, in shapes that change with the
hold-out; heads are a list; each training makes and compiles its own step.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import pydantic
from jaxtyping import Array, PRNGKeyArray
from matplotlib.figure import Figure

import attnkernel as ak

from ..config_source import FieldError
from ..parts import Heteroskedastic, Model, Name, Training
from ..run import Run
from ..studies.heads import Heads, stack
from ..study import Keys, Study
from ..watch import SILENT, Watch
from .driver import interleaved, medians
from .training_loop import LEARNING_RATE, SINK_MASS, train_step_by_step

Count = Annotated[int, pydantic.Field(ge=1)]


class Results(NamedTuple):
    """A row for each piece of work, and the seconds of whole commands."""

    rows: list[dict[str, Any]]
    commands: dict[str, float]


class BenchTraining(Study):
    """Cold (with compilation) and warm times of both contenders, and whether they agree."""

    study: Literal["bench_training"]
    name: Name = "bench_training"
    data: Heteroskedastic
    hold_out: Annotated[list[Count], pydantic.Field(min_length=1)] = [1, 10, 75, 120]
    hold_out_steps: Annotated[int, pydantic.Field(ge=1)] = 100
    heads: Annotated[list[Count], pydantic.Field(min_length=1)] = [1, 2, 4, 8]
    head_steps: Annotated[int, pydantic.Field(ge=1)] = 1000
    repeats: Annotated[int, pydantic.Field(ge=1, le=100)] = 3
    is_benchmark: ClassVar[bool] = True

    def check(self) -> None:
        if max(self.hold_out) >= self.data.n:
            raise FieldError(("hold_out",), f"expected less than data.n = {self.data.n}")

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> Results:
        keys = Keys(key)
        data = self.data.load(keys.next())
        works = {
            "hold-out fits": self._hold_outs(data, keys.stack(len(self.hold_out))),
            "head fits": self._heads(data, keys.stack(len(self.heads))),
        }
        rows = []
        with watch.progress("benchmark", 2 * len(works) * self.repeats) as tick:
            for name, (ours, loop) in works.items():
                rows.append(self._row(name, ours, loop, tick, 2 * len(rows) * self.repeats))
        return Results(rows, _commands(self.repeats))

    def _row(self, work: str, ours: Callable, loop: Callable, tick: Any, done: int) -> Any:
        """Cold and warm seconds of both contenders for one piece of work."""
        kept: dict[tuple[int, int], Callable] = {}
        cold = {"ours, cold": ours, "loop, cold": lambda: loop({})}
        warm = {
            "ours, warm": ours,
            "loop, warm": lambda: loop({}),  # it compiles anew all the same
            "loop, steps kept": lambda: loop(kept),
        }
        row: dict[str, Any] = {"work": work}
        seconds: dict[str, list[float]] = {}
        for phase, contenders in (("cold", cold), ("warm", warm)):
            before = done + (phase == "warm") * self.repeats
            spent, results = interleaved(
                contenders,
                self.repeats,
                cold=phase == "cold",
                each_round=lambda n, before=before, phase=phase: tick(
                    before + n, f"{work}, {phase}"
                ),
            )
            seconds |= spent
            for what, result in results.items():
                numbers = [np.atleast_1d(np.asarray(one)).tolist() for one in result]
                row[f"numbers of {what.partition(',')[0]}"] = numbers
        median = medians(seconds)
        return {
            **row,
            "seconds": seconds,
            "median": median,
            "speedup cold": median["loop, cold"] / median["ours, cold"],
            "speedup warm": median["loop, warm"] / median["ours, warm"],
            "largest deviation": _deviation(row["numbers of ours"], row["numbers of loop"]),
        }

    def report(self, results: Results, run: Run) -> None:
        rows, commands = results
        total = {what: sum(row["median"][what] for row in rows) for what in rows[0]["median"]}
        whole = {
            "cold": total["loop, cold"] / total["ours, cold"],
            "warm": total["loop, warm"] / total["ours, warm"],
            "warm, if the loop kept its compiled steps": total["loop, steps kept"]
            / total["ours, warm"],
        }
        self._draw(run, rows)
        run.table(
            f"Medians of {self.repeats}, in seconds",
            ["work", *rows[0]["median"], "largest deviation"],
            [
                [
                    row["work"],
                    *(f"{value:.3f}" for value in row["median"].values()),
                    ", ".join(f"{value:.1e}" for value in row["largest deviation"]),
                ]
                for row in rows
            ],
        )
        run.table(
            "", ["all trainings: times faster", ""], [[k, f"{v:.1f}"] for k, v in whole.items()]
        )
        run.table("", ["command", "median seconds"], [[k, f"{v:.2f}"] for k, v in commands.items()])
        run.summary({"works": rows, "speedup of all trainings": whole, "commands": commands})

    def _hold_outs(self, data: ak.data.Dataset, keys: Array) -> tuple[Callable, Callable]:
        model = ak.KernelRegression(_gaussian(1.0), rule=ak.Softmax(sink_mass=ak.fixed(SINK_MASS)))
        optimizer = optax.adam(LEARNING_RATE)

        def ours() -> list[Array]:
            result = ak.fit_many(
                model,
                data.x,
                data.y,
                objective=ak.HoldOut(jnp.array(self.hold_out), at_most=max(self.hold_out)),
                in_axes=(None, None, 0),
                optimizer=optimizer,
                steps=self.hold_out_steps,
                key=keys,
            )
            return list(result.model.kernel.lengthscale * jnp.sqrt(2.0))

        def loop(kept: dict[tuple[int, int], Callable]) -> list[Array]:
            return [
                train_step_by_step(
                    {"log_lengthscales": [jnp.zeros(())], "weights": None},
                    data.x[:, 0],
                    data.y,
                    hold_out=size,
                    steps=self.hold_out_steps,
                    key=key,
                    kept=kept,
                )
                for size, key in zip(self.hold_out, keys, strict=True)
            ]

        return ours, loop

    def _heads(self, data: ak.data.Dataset, keys: Array) -> tuple[Callable, Callable]:
        study = Heads(
            study="heads",
            data=self.data,
            heads=self.heads,
            model=Model(convention="unhalved"),
            training=Training(steps=self.head_steps),
        )
        starts = stack([study.start(heads) for heads in self.heads])
        optimizer = optax.adam(LEARNING_RATE)

        def ours() -> list[Array]:
            result = ak.fit_many(
                starts,
                data.x,
                data.y,
                objective=ak.HoldOut(1),
                in_axes=(0, None, None),
                optimizer=optimizer,
                steps=self.head_steps,
                key=keys,
            )
            return list(result.model.model.kernel.stack.lengthscale * jnp.sqrt(2.0))

        def loop(kept: dict[tuple[int, int], Callable]) -> list[Array]:
            found = []
            for heads, key in zip(self.heads, keys, strict=True):
                start = {
                    "log_lengthscales": list(jnp.log(jnp.linspace(0.1, 3.0, heads))),
                    "weights": jnp.full(heads, 1.0 / heads),
                }
                found.append(
                    train_step_by_step(
                        start,
                        data.x[:, 0],
                        data.y,
                        hold_out=1,
                        steps=self.head_steps,
                        key=key,
                        kept=kept,
                    )
                )
            return found

        return ours, loop

    def _draw(self, run: Run, rows: Sequence[dict[str, Any]]) -> None:
        figure = Figure(figsize=(6.4, 3.0))
        ax = figure.subplots()
        names = list(rows[0]["median"])
        # numbers above the marks of one work and below those of the other, which may be as long
        for row, marker, up in zip(rows, "os", (7, -15), strict=False):
            values = list(row["median"].values())
            ax.plot(values, np.arange(len(names)), marker, markersize=7, label=row["work"])
            for place, value in enumerate(values):
                ax.annotate(
                    f"{value:.2g} s",
                    (value, place),
                    (0, up),
                    textcoords="offset points",
                    ha="center",
                    fontsize="small",
                )
        ax.grid(axis="y", linewidth=0.4)
        ax.set_yticks(np.arange(len(names)), names)
        ax.invert_yaxis()
        ax.set_xscale("log")
        ax.margins(x=0.1, y=0.15)
        ax.set(xlabel="seconds (median)")
        figure.legend(loc="outside lower center", ncols=2)
        run.figure(
            "bench_training", figure, **{r["work"]: list(r["median"].values()) for r in rows}
        )


def _gaussian(unhalved: float) -> ak.Gaussian:
    return ak.Gaussian(ak.kernels.convert_lengthscale(unhalved, source="unhalved"))


def _deviation(ours: list[list[float]], loop: list[list[float]]) -> list[float]:
    """The largest relative difference of the lengthscales, training by training."""
    return [
        float(np.max(np.abs(np.array(a[: len(b)]) / np.array(b) - 1.0)))
        for a, b in zip(ours, loop, strict=True)
    ]


def _commands(repeats: int) -> dict[str, float]:
    """Whole commands from the shell, interleaved: imports, and the first one of the README."""
    root = Path(__file__).parents[2]
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            out = str(Path(folder) / str(repeat))
            run = ["-m", "experiments", "run", "configs/holdout.yaml", "--quiet", "--out", out]
            for arguments in (
                ["-c", "import jax, equinox, optax"],
                ["-c", "import attnkernel"],
                run,
            ):
                started = time.perf_counter()
                subprocess.run([sys.executable, *arguments], cwd=root, check=True)
                name = " ".join(arguments[:4])
                seconds.setdefault(name, []).append(time.perf_counter() - started)
    return medians(seconds)
