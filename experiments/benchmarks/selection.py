"""Seconds and reliability of leave-one-out bandwidth selection, against other libraries.

All contenders minimise the same criterion (local constant, Gaussian kernel, one bandwidth per
dimension), each with its defaults, interleaved in one process. One independent evaluator compares
their criteria. Small samples with ties and outliers then count invalid bandwidths.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty, Positive
from ..runs import Monitor, Run, as_cell
from ..studies import Keys
from .benchmark import Benchmark, Results
from .driver import Case, available
from .regressors import Regressor, hessband, kerneljax, statsmodels
from .reports import ratios, target

Select = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from x and y to bandwidths
SAMPLE_SIZES = (3, 8, 30)
SAMPLE_SECONDS = 30.0  # of each other library for the small samples
SAMPLE_KINDS = ("smooth", "ties", "outliers", "nearly constant y", "noise")


def small_sample(
    rng: np.random.Generator, n: int, dim: int, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """x of shape (n, dim) and y of shape (n,), of the kind that `number` selects."""
    x, noise = rng.uniform(size=(n, dim)), rng.normal(size=n)
    kind = SAMPLE_KINDS[number // (2 * len(SAMPLE_SIZES)) % len(SAMPLE_KINDS)]
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
    """How many results are no bandwidths, and how many lie outside the bounds of `fit`; None: an
    error.

    Other libraries have no bounds: theirs are counted outside for comparison only.
    """

    def verdict(x: np.ndarray, bandwidth: np.ndarray | None) -> str:
        if bandwidth is None:
            return "errors"
        if not np.all(np.isfinite(bandwidth)):
            return "not finite"
        if np.any(bandwidth <= 0):
            return "not positive"
        low, high = ak.Gaussian(np.ones(x.shape[1])).search_box(jnp.asarray(x))
        is_below = bandwidth < low.lengthscale * (1 - 1e-9)
        is_above = bandwidth > high.lengthscale * (1 + 1e-9)
        return "outside" if np.any(is_below | is_above) else "inside"

    found = [verdict(x, bandwidth) for (x, _), bandwidth in zip(samples, results, strict=False)]
    kinds = ("errors", "not finite", "not positive", "outside")
    return {"contender": name, "run": len(results), **{kind: found.count(kind) for kind in kinds}}


Count = Annotated[int, Field(ge=3, le=100_000)]
OURS, HESSBAND = "attnkernel", "hessband"
PEERS: dict[str, Callable[[], Regressor]] = {
    "kerneljax": functools.partial(kerneljax, 0),
    "statsmodels": functools.partial(statsmodels, "lc"),
    HESSBAND: hessband,
}


class BenchSelection(Benchmark):
    """Seconds, bandwidths and criteria for growing n; counts over small samples."""

    study: Literal["bench_selection"]
    precision: Literal["float32", "float64"] = "float64"
    n: NonEmpty[Count] = [250, 500, 1000, 2000, 4000]
    dims: NonEmpty[Annotated[int, Field(ge=1, le=8)]] = [1, 2]
    starts: int = Field(default=10, ge=1, le=1000)
    repeats: int = Field(default=3, ge=1, le=1000)
    max_run_seconds: Positive = 90.0
    samples: int = Field(default=500, ge=0, le=100_000, description="random small samples")
    compared: ClassVar = (OURS, "kerneljax", "statsmodels", HESSBAND)
    axes: ClassVar = ("dims", "n")
    along: ClassVar = "n"
    x_label: ClassVar = "rows n"
    panel_title: ClassVar = "d = {dim}"
    unit: ClassVar = "seconds for one bandwidth, warm"
    round_seconds: ClassVar = 0.5  # repeat a quick one, or it is timed with cold caches

    def places(self) -> list[tuple[int, int, int]]:
        return [(*place, i) for i, place in enumerate(super().places(), 1)]

    def make_case(self, key: PRNGKeyArray, dim: int, n: int, number: int) -> Case:
        """Returns the `Case` that times the selection of bandwidths by every contender, on n
        simulated points in `dim` dimensions, drawn by the key of this number.
        """
        x, y = _simulate_data(Keys(key).stack(number)[-1], n, dim)

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            """The same evaluator for all: how far above our criterion are those of the others."""
            found = {name: criterion(x, y, bandwidth) for name, bandwidth in results.items()}
            bandwidths = {name: bandwidth.tolist() for name, bandwidth in results.items()}
            above = {name: value / found[OURS] - 1.0 for name, value in found.items()}
            return {"bandwidth": bandwidths, "criterion": found, "criterion_above_ours": above}

        contenders = {
            name: lambda name=name: functools.partial(self.selector(name), x, y)
            for name in self.compared
            if dim == 1 or name != HESSBAND  # which takes one column
        }
        return Case({"n": n, "dim": dim}, f"n = {n}, d = {dim}", contenders, check)

    def selector(self, name: str) -> Select:
        """What selects the bandwidths of a contender. **Raises:** `Unavailable`."""
        if name != OURS:
            fit = PEERS[name]()
            return lambda x, y: np.asarray(fit(x, y).bandwidth)

        def select(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            model = ak.KernelRegression(ak.Gaussian(np.full(x.shape[1], 0.3)))
            fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=self.starts)
            return np.asarray(fit.model.kernel.lengthscale)

        return select

    def more(self, key: PRNGKeyArray, monitor: Monitor) -> dict[str, Any]:
        """Counts of invalid bandwidths; contenders but ours stop after `SAMPLE_SECONDS`."""
        if not self.samples:
            return {"small_samples": []}
        # the samples have one or two columns
        names = [name for name in self.compared if name != HESSBAND]
        makers = {name: functools.partial(self.selector, name) for name in names}
        contenders = list(available(makers)[0].items())
        rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 0))))
        # six shapes, so that six programs are compiled
        shapes = itertools.cycle(itertools.product(SAMPLE_SIZES, (1, 2)))
        samples = [small_sample(rng, *next(shapes), i) for i in range(self.samples)]

        def measure(contender: tuple[str, Select]) -> dict[str, Any]:
            name, select = contender
            limit = np.inf if name == OURS else SAMPLE_SECONDS
            started, spent, results = time.perf_counter(), 0.0, []
            for x, y in samples:
                if spent > limit:
                    break
                try:
                    results.append(select(x, y))
                except Exception:  # whatever is raised is counted, and does not end the run
                    results.append(None)
                spent = time.perf_counter() - started
            return count(name, samples, results) | {"seconds": round(spent, 1)}

        label = "{contender}: {run} samples, {seconds} s".format_map
        return {"small_samples": monitor.collect("small samples", contenders, measure, label)}

    def columns(self, row: Mapping[str, Any]) -> dict[str, str]:
        above = row["criterion_above_ours"]
        return {
            "bandwidth": as_cell(row["bandwidth"][OURS]),
            "criterion": as_cell(row["criterion"][OURS], 6),
            "others above": as_cell([above[name] for name in above if name != OURS], 1),
            "first": as_cell(row["first"][OURS], 3),
        }

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        n = max(self.n)
        for name, needed in (("statsmodels", 100.0), ("kerneljax", 20.0), (HESSBAND, 20.0)):
            found = ratios(results.table, name, OURS, n=n)
            yield target(f"{name}, seconds over ours at n = {n}", needed, found)

    def print_tables(self, results: Results, run: Run) -> None:
        super().print_tables(results, run)
        if small := results.more["small_samples"]:
            title = f"{self.samples} samples of {SAMPLE_SIZES[0]} to {SAMPLE_SIZES[-1]} points"
            run.table_of(title, small)


def criterion(x: np.ndarray, y: np.ndarray, bandwidth: np.ndarray) -> float:
    """The leave-one-out criterion of a bandwidth, in NumPy and float64, 256 rows at a time."""
    u, total = x / bandwidth, 0.0
    for first in range(0, len(x), 256):
        rows = np.arange(first, min(first + 256, len(x)))
        logs = -0.5 * np.sum((u[rows, None, :] - u[None, :, :]) ** 2, axis=2)
        logs[np.arange(len(rows)), rows] = -np.inf
        weights = np.exp(logs - np.max(logs, axis=1, keepdims=True))
        total += float(np.sum((weights @ y / np.sum(weights, axis=1) - y[rows]) ** 2))
    return total / len(x)


def _simulate_data(key: Any, n: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulates x, shape (n, dim), uniform on the unit cube, and y = Σ_a sin(2π x_a) + noise of sd
    0.3.
    """
    inputs, noise = jax.random.split(key)
    x = np.asarray(jax.random.uniform(inputs, (n, dim)), np.float64)
    y = np.sin(2.0 * np.pi * x).sum(axis=1) + 0.3 * np.asarray(jax.random.normal(noise, (n,)))
    return x, y
