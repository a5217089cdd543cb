"""How fast the trainings of the hold-out and the head fits are, against the way of the 2024 post.

There: a Python loop over steps around a jitted step; the rows are drawn and gathered outside it, in
shapes that change with the hold-out; heads are a list; each training makes and compiles its own
step. Both sides run in one process, in turn.
"""

import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pydantic
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.figure import Figure

import attnkernel as ak

from ..config import FieldError
from ..parts import Heteroskedastic, Model, Name, Training
from ..run import Run
from ..studies.heads import Heads, stack
from ..study import Study, load
from .driver import interleaved, medians

_SINK = 1e-16
Count = Annotated[int, pydantic.Field(ge=1)]
_RATE = 0.2


class BenchTraining(Study):
    """Cold (compilation included) and warm times of both sides, and that they agree."""

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

    def run(self, run: Run) -> None:
        keys = self.keys()
        data = load(self.data, keys.next())
        works = {
            "hold-out fits": self._hold_outs(data, keys.stack(len(self.hold_out))),
            "head fits": self._heads(data, keys.stack(len(self.heads))),
        }
        rows = []
        with run.progress("benchmark", 2 * len(works) * self.repeats) as tick:
            for name, (ours, post) in works.items():
                row: dict[str, Any] = {"work": name}
                seconds: dict[str, list[float]] = {}
                kept: dict[tuple[int, int], Callable] = {}
                cold = {"ours, cold": ours, "post, cold": lambda post=post: post({})}
                warm = {
                    "ours, warm": ours,
                    "post, warm": lambda post=post: post({}),  # it compiles anew all the same
                    "post, steps kept": functools.partial(post, kept),
                }
                for phase, sides in (("cold", cold), ("warm", warm)):
                    done = (2 * len(rows) + (phase == "warm")) * self.repeats
                    spent, results = interleaved(
                        sides,
                        self.repeats,
                        cold=phase == "cold",
                        each_round=lambda r, done=done, what=f"{name}, {phase}": tick(
                            done + r, what
                        ),
                    )
                    seconds |= spent
                    for what, result in results.items():
                        numbers = [np.atleast_1d(np.asarray(one)).tolist() for one in result]
                        row[f"numbers of {what.partition(',')[0]}"] = numbers
                row["seconds"] = seconds
                row["median"] = median = medians(seconds)
                row["speedup cold"] = median["post, cold"] / median["ours, cold"]
                row["speedup warm"] = median["post, warm"] / median["ours, warm"]
                row["largest deviation"] = _deviation(
                    row["numbers of ours"], row["numbers of post"]
                )
                rows.append(row)
        total = {what: sum(row["median"][what] for row in rows) for what in rows[0]["median"]}
        whole = {
            "cold": total["post, cold"] / total["ours, cold"],
            "warm": total["post, warm"] / total["ours, warm"],
            "warm, if the post kept its compiled steps": total["post, steps kept"]
            / total["ours, warm"],
        }
        commands = _commands(self.repeats)
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
        model = ak.KernelRegression(_gaussian(1.0), rule=ak.Softmax(sink_mass=_SINK))
        optimizer = optax.adam(_RATE)

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

        def post(kept: dict[tuple[int, int], Callable]) -> list[Array]:
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

        return ours, post

    def _heads(self, data: ak.data.Dataset, keys: Array) -> tuple[Callable, Callable]:
        study = Heads(
            study="heads",
            data=self.data,
            heads=self.heads,
            model=Model(convention="unhalved"),
            training=Training(steps=self.head_steps),
        )
        starts = stack([study.start(heads) for heads in self.heads])
        optimizer = optax.adam(_RATE)

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
            return list(result.model.model.kernel.lengthscale * jnp.sqrt(2.0))

        def post(kept: dict[tuple[int, int], Callable]) -> list[Array]:
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

        return ours, post

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


def train_step_by_step(
    params: dict[str, Any],
    x: Float[Array, " n"],
    y: Float[Array, " n"],
    *,
    hold_out: int,
    steps: int,
    key: PRNGKeyArray,
    kept: dict[tuple[int, int], Callable],
) -> Float[Array, " heads"]:
    """Masked hold-out as the post writes it; `kept` keeps compiled steps, by problem.

    `params` are a list `log_lengthscales`, and `weights` (None: one head, of weight 1). Returns
    the lengthscales, unhalved.
    """
    optimizer = optax.adam(_RATE)

    def head(log_lengthscale: Array, q: Array, k: Array, v: Array) -> Array:
        weights = jnp.exp(-(((q[:, None] - k[None, :]) / jnp.exp(log_lengthscale)) ** 2))
        weights = weights / (jnp.sum(weights, axis=1, keepdims=True) + _SINK)
        return jnp.sum(weights * v[None, :], axis=1)

    @jax.jit
    def step(params: Any, state: Any, q: Array, truth: Array, k: Array, v: Array) -> Any:
        def loss(params: Any) -> Array:
            heads = jnp.stack([head(log, q, k, v) for log in params["log_lengthscales"]])
            combined = heads[0] if params["weights"] is None else params["weights"] @ heads
            return jnp.mean((combined - truth) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    kept_step = kept.setdefault((hold_out, len(params["log_lengthscales"])), step)
    state = optimizer.init(params)
    losses = []
    for _ in range(steps):
        key, subkey = jax.random.split(key)
        order = jax.random.permutation(subkey, jnp.arange(len(x)))
        test, train = order[:hold_out], order[hold_out:]
        params, state, value = kept_step(params, state, x[test], y[test], x[train], y[train])
        losses.append(value)
    return jnp.exp(jnp.stack(params["log_lengthscales"]))


def _gaussian(unhalved: float) -> ak.Gaussian:
    return ak.Gaussian(ak.kernels.convert_lengthscale(unhalved, source="unhalved"))


def _deviation(ours: list[list[float]], post: list[list[float]]) -> list[float]:
    """The largest relative difference of the lengthscales, training by training."""
    return [
        float(np.max(np.abs(np.array(a[: len(b)]) / np.array(b) - 1.0)))
        for a, b in zip(ours, post, strict=True)
    ]


def _commands(repeats: int) -> dict[str, float]:
    """Whole commands from the shell, in turn: importing, and the first command of the README."""
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
