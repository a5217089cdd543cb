"""Seconds and reliability of leave-one-out bandwidth selection, against other libraries.

All contenders minimise the same criterion (local constant, Gaussian kernel, one bandwidth per
dimension), each with its defaults, interleaved in one process. One independent evaluator compares
their criteria. Small samples with ties and outliers then count invalid bandwidths.
"""

import itertools
import time
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np
import pydantic
from jaxtyping import PRNGKeyArray
from matplotlib.figure import Figure

import attnkernel as ak

from ..panels import legend
from ..parts import Name, Positive
from ..run import Run
from ..study import Keys, Study
from ..watch import SILENT, Watch
from .selection_contenders import PEERS, criterion, is_installed
from .small_samples import SAMPLE_SIZES, Select, count_all
from .tables import table_of_targets, target

Count = Annotated[int, pydantic.Field(ge=3, le=100_000)]
OURS = "attnkernel"
ONCE = "statsmodels"  # compiles nothing: one run is enough
TURN_SECONDS = 0.5  # of a contender in each round, or one run


class Results(NamedTuple):
    """A row for each data set, and counts over the small samples."""

    rows: list[dict[str, Any]]
    small_samples: list[dict[str, Any]]


class BenchSelection(Study):
    """Seconds, bandwidths and criteria for growing n; counts over small samples."""

    study: Literal["bench_selection"]
    name: Name = "bench_selection"
    precision: Literal["float32", "float64"] = "float64"
    n: Annotated[list[Count], pydantic.Field(min_length=1)] = [250, 500, 1000, 2000, 4000]
    dims: Annotated[
        list[Annotated[int, pydantic.Field(ge=1, le=8)]], pydantic.Field(min_length=1)
    ] = [1, 2]
    starts: Annotated[int, pydantic.Field(ge=1, le=1000)] = 10
    repeats: Annotated[int, pydantic.Field(ge=1, le=100)] = pydantic.Field(
        default=3, description="warm rounds of each contender, of half a second or one run"
    )
    peer_seconds: Positive = pydantic.Field(
        default=90.0,
        description="another library is not run where n² extrapolates to more, nor beyond",
    )
    samples: Annotated[int, pydantic.Field(ge=0, le=100_000)] = pydantic.Field(
        default=500, description="random small samples"
    )
    sample_seconds: Positive = pydantic.Field(
        default=30.0, description="another library is given as many samples as this allows"
    )
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> Results:
        contenders: dict[str, Select] = {OURS: self._ours}
        contenders |= {name: make() for name, make in PEERS.items() if is_installed(name)}
        keys = Keys(key)
        rows: list[dict[str, Any]] = []
        cases = list(itertools.product(self.dims, sorted(self.n)))
        with watch.progress("selection", len(cases)) as tick:
            for dim, n in cases:
                x, y = _data(keys.next(), n, dim)
                row = self._race(contenders, x, y, [r for r in rows if r["dim"] == dim])
                rows.append(row)
                watch.metrics([row])
                tick(len(rows), f"n = {n}, d = {dim}: {row['contenders'][OURS]['warm']:.3f} s")
        if not self.samples:
            return Results(rows, [])
        rng = np.random.default_rng(np.asarray(jax.random.key_data(keys.next())))
        small = count_all(watch, contenders, OURS, self.samples, rng, self.sample_seconds)
        return Results(rows, small)

    def _ours(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        model = ak.KernelRegression(ak.Gaussian(np.full(x.shape[1], 0.3)))
        fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=self.starts)
        return np.asarray(fit.model.kernel.lengthscale)

    def _race(
        self,
        contenders: dict[str, Select],
        x: np.ndarray,
        y: np.ndarray,
        before: list[dict[str, Any]],
    ) -> dict[str, Any]:
        """One data set: first runs (programs are compiled), then warm rounds."""
        n, seconds, found = len(x), {}, {}
        for name, select in contenders.items():
            past = _past(before, name)
            if name != OURS and past:
                last, took = past[-1]
                if len(past) < len(before) or took * (n / last) ** 2 > self.peer_seconds:
                    continue
            spent, found[name] = _time(select, x, y)
            seconds[name] = [spent]
        for _ in range(self.repeats):
            for name, taken in seconds.items():
                again = name == OURS or len(taken) == 1 or sum(taken) <= self.peer_seconds
                if name == ONCE or not again:
                    continue
                turn = [_time(contenders[name], x, y)[0]]
                while (
                    sum(turn) < TURN_SECONDS
                ):  # repeat a quick one, or it is timed with cold caches
                    turn.append(_time(contenders[name], x, y)[0])
                taken += turn
        measured = {
            name: {
                "bandwidth": found[name],
                "criterion": criterion(x, y, found[name]),
                "cold": took[0],
                # the only time of a contender that is not run again
                "warm": float(np.median(took[1:] or took)),
                "warm_runs": len(took) - 1,
            }
            for name, took in seconds.items()
        }
        ours = measured[OURS]
        for name in measured.keys() - {OURS}:
            measured[name]["times_slower"] = measured[name]["warm"] / ours["warm"]
            measured[name]["our_criterion_over_its"] = (
                ours["criterion"] / measured[name]["criterion"] - 1.0
            )
        extrapolated = {}
        for name in contenders.keys() - measured.keys():
            past = _past(before, name)
            if len(past) >= 2:
                sizes, took = np.log(np.transpose(past[-3:]))
                power, factor = np.polyfit(sizes, took, 1)
                extrapolated[name] = {
                    "power_of_n": power,
                    "seconds": float(np.exp(factor) * n**power),
                    "from_n": [size for size, _ in past[-3:]],
                }
        return {"n": n, "dim": x.shape[1], "contenders": measured, "not_run": extrapolated}

    def report(self, results: Results, run: Run) -> None:
        rows, small = results
        for name in PEERS:
            if not is_installed(name):
                run.note([f"{name} is not installed: its rows are missing."])
        self._draw(run, rows)
        table = []
        for row in rows:
            for name, found in row["contenders"].items():
                excess = found.get("our_criterion_over_its")
                table.append(
                    [
                        f"{row['n']}",
                        f"{row['dim']}",
                        name,
                        " ".join(f"{h:.4g}" for h in found["bandwidth"]),
                        f"{found['criterion']:.6g}",
                        "" if excess is None else f"{excess:+.0e}",
                        "" if name == ONCE else f"{found['cold']:.1f}",
                        f"{found['warm']:.3g}",
                        f"{found['times_slower']:.1f}" if "times_slower" in found else "",
                    ]
                )
            for name, guess in row["not_run"].items():
                ratio = guess["seconds"] / row["contenders"][OURS]["warm"]
                power = f"not run, ~n^{guess['power_of_n']:.2f}"
                times = [f"~{guess['seconds']:.0f}", f"~{ratio:.0f}"]
                table.append([f"{row['n']}", f"{row['dim']}", name, power, "", "", "", *times])
        run.table(
            f"Leave-one-out bandwidth; seconds, medians of up to {self.repeats} warm turns (where "
            f"nothing is compiled, of one run; ~: extrapolated from smaller n)",
            ["n", "d", "", "bandwidth", "criterion", "ours/it-1", "cold", "warm", "×ours"],
            table,
        )
        if small:
            kinds = [k for k in small[0] if k not in ("contender", "seconds")]
            run.table(
                f"{self.samples} samples of {SAMPLE_SIZES[0]} to {SAMPLE_SIZES[-1]} points",
                ["", *kinds, "seconds"],
                [
                    [s["contender"], *(str(s[k]) for k in kinds), f"{s['seconds']:.1f}"]
                    for s in small
                ],
            )
        most = max(self.n)
        targets = [
            target(
                f"{name}, seconds over ours at n = {most}",
                needed,
                {
                    f"d = {row['dim']}": row["contenders"][name]["times_slower"]
                    for row in rows
                    if row["n"] == most and name in row["contenders"]
                },
            )
            for name, needed in (("statsmodels", 100.0), ("kerneljax", 20.0))
        ]
        table_of_targets(run, targets)
        run.summary({"rows": rows, "small_samples": small, "targets": targets})

    def _draw(self, run: Run, rows: list[dict[str, Any]]) -> None:
        figure = Figure(figsize=(3.6 * len(self.dims) + 1.0, 3.4))
        axes = figure.subplots(1, len(self.dims), sharey=True, squeeze=False)[0]
        looks = dict(zip((OURS, *PEERS), (("o", "C0"), ("s", "C1"), ("^", "C2")), strict=True))
        arrays: dict[str, Any] = {}
        for ax, dim in zip(axes, self.dims, strict=True):
            of_dim = [row for row in rows if row["dim"] == dim]
            for name, (marker, color) in looks.items():
                run_at = [
                    (r["n"], r["contenders"][name]["warm"])
                    for r in of_dim
                    if name in r["contenders"]
                ]
                if not run_at:
                    continue
                guesses = [
                    (r["n"], r["not_run"][name]["seconds"]) for r in of_dim if name in r["not_run"]
                ]
                line = {"marker": marker, "color": color, "markersize": 5}
                ax.plot(*np.transpose(run_at), **line, label=name)
                arrays[f"{name}_d{dim}"] = np.array(run_at)
                if guesses:
                    ax.plot(
                        *np.transpose([run_at[-1], *guesses]),
                        **line,
                        linestyle=":",
                        markerfacecolor="none",
                        markevery=slice(1, None),
                        label=f"{name}, extrapolated",
                    )
                    arrays[f"{name}_d{dim}_extrapolated"] = np.array(guesses)
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_xticks(sorted(self.n), [str(n) for n in sorted(self.n)])
            ax.minorticks_off()
            ax.set(xlabel="rows n", title=f"d = {dim}")
        axes[0].set(ylabel="seconds for one bandwidth, warm")
        legend(figure, axes)
        run.figure("bench_selection", figure, **arrays)


def _past(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """(n, warm seconds) of a contender, in the rows where it ran."""
    ran = [row for row in rows if name in row["contenders"]]
    return [(row["n"], row["contenders"][name]["warm"]) for row in ran]


def _data(key: Any, n: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """x uniform on the unit cube, y a sum of sines and noise of standard deviation 0.3."""
    inputs, noise = jax.random.split(key)
    x = np.asarray(jax.random.uniform(inputs, (n, dim)), np.float64)
    y = np.sin(2.0 * np.pi * x).sum(axis=1) + 0.3 * np.asarray(jax.random.normal(noise, (n,)))
    return x, y


def _time(select: Select, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    started = time.perf_counter()
    bandwidth = select(x, y)
    return time.perf_counter() - started, bandwidth
