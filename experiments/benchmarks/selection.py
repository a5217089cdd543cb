"""How fast the leave-one-out bandwidth is found, against other libraries, and how surely.

All sides minimise the same criterion (local constant, Gaussian kernel, one bandwidth per
dimension), each with its defaults, in one process and in turn. What they found is judged by one
evaluator that belongs to none of them. Then small samples of every unpleasant kind: is what comes
back a bandwidth at all?
"""

import importlib.util
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from matplotlib.figure import Figure

import attnkernel as ak

from ..panels import legend
from ..parts import Name, Positive
from ..run import Run
from ..study import Study
from .driver import table_of_targets, target

Contender = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from x and y to bandwidths
Count = Annotated[int, pydantic.Field(ge=3, le=100_000)]
OURS = "attnkernel"
ONCE = "statsmodels"  # compiles nothing: one run says all
_TURN = 0.5  # seconds that a side has at each turn, or one run


class BenchSelection(Study):
    """Seconds, bandwidths and criterion of all sides for growing n; counts over small samples."""

    study: Literal["bench_selection"]
    name: Name = "bench_selection"
    precision: Literal["float32", "float64"] = "float64"
    n: Annotated[list[Count], pydantic.Field(min_length=1)] = [250, 500, 1000, 2000, 4000]
    dims: Annotated[
        list[Annotated[int, pydantic.Field(ge=1, le=8)]], pydantic.Field(min_length=1)
    ] = [1, 2]
    starts: Annotated[int, pydantic.Field(ge=1, le=1000)] = 10
    repeats: Annotated[int, pydantic.Field(ge=1, le=100)] = pydantic.Field(
        default=3, description="turns of each side when warm, of half a second or one run"
    )
    peer_seconds: Positive = pydantic.Field(
        default=90.0,
        description="another library is not run where n² foretells more, nor again beyond it",
    )
    samples: Annotated[int, pydantic.Field(ge=0, le=100_000)] = pydantic.Field(
        default=500, description="random small samples"
    )
    sample_seconds: Positive = pydantic.Field(
        default=30.0, description="another library is given as many samples as this allows"
    )
    is_benchmark: ClassVar[bool] = True

    def run(self, run: Run) -> None:
        sides: dict[str, Contender] = {OURS: self._ours}
        for name, make in PEERS.items():
            if importlib.util.find_spec(name) is None:
                run.note([f"{name} is not installed: nothing here is said of it."])
            else:
                sides[name] = make()
        keys = self.keys()
        rows: list[dict[str, Any]] = []
        cases = list(itertools.product(self.dims, sorted(self.n)))
        with run.progress("selection", len(cases)) as tick:
            for dim, n in cases:
                x, y = _data(keys.next(), n, dim)
                row = self._race(sides, x, y, [r for r in rows if r["dim"] == dim])
                rows.append(row)
                run.metrics([row])
                tick(len(rows), f"n = {n}, d = {dim}: {row['sides'][OURS]['warm']:.3f} s")
        small = self._small_samples(run, sides, keys.next()) if self.samples else []
        self._report(run, rows, small)

    def _ours(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        model = ak.KernelRegression(ak.Gaussian(np.full(x.shape[1], 0.3)))
        fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=self.starts)
        return np.asarray(fit.model.kernel.lengthscale)

    def _race(
        self,
        sides: dict[str, Contender],
        x: np.ndarray,
        y: np.ndarray,
        before: list[dict[str, Any]],
    ) -> dict[str, Any]:
        """One data set: first runs (programs are compiled), then warm ones, all sides in turn."""
        n, seconds, found = len(x), {}, {}
        for name, side in sides.items():
            past = [(r["n"], r["sides"][name]["warm"]) for r in before if name in r["sides"]]
            if name != OURS and past:
                last, took = past[-1]
                if len(past) < len(before) or took * (n / last) ** 2 > self.peer_seconds:
                    continue
            spent, found[name] = _time(side, x, y)
            seconds[name] = [spent]
        for _ in range(self.repeats):
            for name, taken in seconds.items():
                again = name == OURS or len(taken) == 1 or sum(taken) <= self.peer_seconds
                if name == ONCE or not again:
                    continue
                turn = [_time(sides[name], x, y)[0]]
                while sum(turn) < _TURN:  # a quick one again, or it is timed with cold caches
                    turn.append(_time(sides[name], x, y)[0])
                taken += turn
        measured = {
            name: {
                "bandwidth": found[name],
                "criterion": criterion(x, y, found[name]),
                "cold": took[0],
                # of a side that is not run again, the only time there is
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
        for name in sides.keys() - measured.keys():
            past = [(r["n"], r["sides"][name]["warm"]) for r in before if name in r["sides"]]
            if len(past) >= 2:
                sizes, took = np.log(np.transpose(past[-3:]))
                power, factor = np.polyfit(sizes, took, 1)
                extrapolated[name] = {
                    "power_of_n": power,
                    "seconds": float(np.exp(factor) * n**power),
                    "from_n": [size for size, _ in past[-3:]],
                }
        return {"n": n, "dim": x.shape[1], "sides": measured, "not_run": extrapolated}

    def _small_samples(
        self, run: Run, sides: dict[str, Contender], key: Any
    ) -> list[dict[str, Any]]:
        """Counts of what is no bandwidth; few shapes, so that few programs are compiled."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        shapes: list[tuple[int, int]] = list(itertools.product(_SIZES, (1, 2)))
        samples = [small_sample(rng, *shapes[i % len(shapes)], i) for i in range(self.samples)]
        tables = []
        with run.progress("small samples", len(sides)) as tick:
            for done, (name, side) in enumerate(sides.items()):
                started = time.perf_counter()
                results = self._one_by_one(side, samples)
                spent = time.perf_counter() - started
                tables.append(count(name, samples, results) | {"seconds": spent})
                tick(done + 1, f"{name}: {len(results)} samples, {spent:.1f} s")
        return tables

    def _one_by_one(
        self, side: Contender, samples: list[tuple[np.ndarray, np.ndarray]]
    ) -> list[np.ndarray | None]:
        """Of all samples, or as many as a library has time for; None where it raised an error."""
        results: list[np.ndarray | None] = []
        started = time.perf_counter()
        for x, y in samples:
            if side != self._ours and time.perf_counter() - started > self.sample_seconds:
                break
            try:
                results.append(side(x, y))
            except Exception:  # whatever is raised is counted, and is no end of the run
                results.append(None)
        return results

    def _report(self, run: Run, rows: list[dict[str, Any]], small: list[dict[str, Any]]) -> None:
        self._draw(run, rows)
        table = []
        for row in rows:
            for name, side in row["sides"].items():
                excess = side.get("our_criterion_over_its")
                table.append(
                    [
                        f"{row['n']}",
                        f"{row['dim']}",
                        name,
                        " ".join(f"{h:.4g}" for h in side["bandwidth"]),
                        f"{side['criterion']:.6g}",
                        "" if excess is None else f"{excess:+.0e}",
                        "" if name == ONCE else f"{side['cold']:.1f}",
                        f"{side['warm']:.3g}",
                        f"{side['times_slower']:.1f}" if "times_slower" in side else "",
                    ]
                )
            for name, guess in row["not_run"].items():
                ratio = guess["seconds"] / row["sides"][OURS]["warm"]
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
            kinds = [k for k in small[0] if k not in ("side", "seconds")]
            run.table(
                f"{self.samples} random samples of {_SIZES[0]} to {_SIZES[-1]} points",
                ["", *kinds, "seconds"],
                [[s["side"], *(str(s[k]) for k in kinds), f"{s['seconds']:.1f}"] for s in small],
            )
        most = max(self.n)
        targets = [
            target(
                f"{name}, seconds over ours at n = {most}",
                needed,
                {
                    f"d = {row['dim']}": row["sides"][name]["times_slower"]
                    for row in rows
                    if row["n"] == most and name in row["sides"]
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
                run_at = [(r["n"], r["sides"][name]["warm"]) for r in of_dim if name in r["sides"]]
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


def criterion(x: np.ndarray, y: np.ndarray, bandwidth: np.ndarray) -> float:
    """The leave-one-out criterion of a bandwidth, in NumPy and float64, a few rows at a time."""
    u, total = x / bandwidth, 0.0
    for first in range(0, len(x), 256):
        rows = np.arange(first, min(first + 256, len(x)))
        logs = -0.5 * np.sum((u[rows, None, :] - u[None, :, :]) ** 2, axis=2)
        logs[np.arange(len(rows)), rows] = -np.inf
        weights = np.exp(logs - np.max(logs, axis=1, keepdims=True))
        total += float(np.sum((weights @ y / np.sum(weights, axis=1) - y[rows]) ** 2))
    return total / len(x)


_SIZES = (3, 8, 30)
_KINDS = ("smooth", "ties", "outliers", "nearly constant y", "noise")


def small_sample(
    rng: np.random.Generator, n: int, dim: int, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """x of shape (n, dim) and y of shape (n,), of the kind that its number says."""
    x, noise = rng.uniform(size=(n, dim)), rng.normal(size=n)
    kind = _KINDS[number // (2 * len(_SIZES)) % len(_KINDS)]
    y = np.sin(2.0 * np.pi * x).sum(axis=1) + 0.3 * noise
    if kind == "ties":
        x = np.round(3.0 * x)
        x[0], x[1] = 0.0, 1.0  # not all of them
        y = np.sign(y)
        y[:2] = 0.0, 1.0
    elif kind == "outliers":
        x[0], y[-1] = 1e4, -1e6
    elif kind == "nearly constant y":
        y = 1.0 + 1e-12 * noise
    elif kind == "noise":
        y = noise
    return x, y


def count(
    name: str, samples: list[tuple[np.ndarray, np.ndarray]], results: list[np.ndarray | None]
) -> dict[str, Any]:
    """How many results are no bandwidths, and how many lie outside the bounds of `fit`.

    Other libraries have no bounds: theirs are counted outside for comparison only.
    """
    numbers = {"run": len(results), "errors": 0, "not finite": 0, "not positive": 0, "outside": 0}
    for (x, _), bandwidth in zip(samples, results, strict=False):
        if bandwidth is None:
            numbers["errors"] += 1
        elif not np.all(np.isfinite(bandwidth)):
            numbers["not finite"] += 1
        elif np.any(bandwidth <= 0):
            numbers["not positive"] += 1
        else:
            low, high = ak.Gaussian(np.ones(x.shape[1])).search_box(jnp.asarray(x))
            within = (low.lengthscale * (1 - 1e-9) <= bandwidth) & (
                bandwidth <= high.lengthscale * (1 + 1e-9)
            )
            numbers["outside"] += int(not np.all(within))
    return {"side": name, **numbers}


def _data(key: Any, n: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """x uniform on the unit cube, y a sum of sines and noise of standard deviation 0.3."""
    inputs, noise = jax.random.split(key)
    x = np.asarray(jax.random.uniform(inputs, (n, dim)), np.float64)
    y = np.sin(2.0 * np.pi * x).sum(axis=1) + 0.3 * np.asarray(jax.random.normal(noise, (n,)))
    return x, y


def _time(side: Contender, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    started = time.perf_counter()
    bandwidth = side(x, y)
    return time.perf_counter() - started, bandwidth


def _kerneljax() -> Contender:
    import kerneljax as kj  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    criterion = kj.RegressionCriterion(method="cv_ls", degree=0)

    def side(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        found = kj.select_bandwidth(jnp.asarray(x), criterion, y=jnp.asarray(y))
        return np.asarray(found.bandwidth.h)

    return side


def _statsmodels() -> Contender:
    from statsmodels.nonparametric.kernel_regression import KernelReg  # noqa: PLC0415

    def side(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(KernelReg(y, x, "c" * x.shape[1], reg_type="lc", bw="cv_ls").bw)

    return side


PEERS: dict[str, Callable[[], Contender]] = {"kerneljax": _kerneljax, "statsmodels": _statsmodels}
