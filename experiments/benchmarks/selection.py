"""Seconds and reliability of leave-one-out bandwidth selection, against other libraries.

All contenders minimise the same criterion (local constant, Gaussian kernel, one bandwidth per
dimension), each with its defaults, interleaved in one process. One independent evaluator compares
their criteria. Small samples with ties and outliers then count invalid bandwidths.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Name, Positive
from ..runs import Monitor, Run
from ..studies import Keys
from .benchmark import Benchmark, Results
from .driver import Case, available
from .regressor import Regressor
from .regressors import hessband, kerneljax, statsmodels
from .reports import number, ratios, target
from .small_samples import SAMPLE_SIZES, Select, count_all

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
    name: Name = "bench_selection"
    precision: Literal["float32", "float64"] = "float64"
    n: list[Count] = Field(default=[250, 500, 1000, 2000, 4000], min_length=1)
    dims: list[Annotated[int, Field(ge=1, le=8)]] = Field(default=[1, 2], min_length=1)
    starts: int = Field(default=10, ge=1, le=1000)
    repeats: int = Field(default=3, ge=1, le=1000)
    max_run_seconds: Positive = 90.0
    samples: int = Field(default=500, ge=0, le=100_000, description="random small samples")
    sample_seconds: Positive = Field(
        default=30.0, description="another library is given as many samples as this allows"
    )
    looks: ClassVar = {
        OURS: {"color": ak.plot.BLUE, "marker": "o"},
        "kerneljax": {"color": ak.plot.ORANGE, "marker": "s"},
        "statsmodels": {"color": ak.plot.GREEN, "marker": "^"},
        HESSBAND: {"color": ak.plot.PURPLE, "marker": "v"},
    }
    along: ClassVar = "n"
    x_label: ClassVar = "rows n"
    unit: ClassVar = "seconds for one bandwidth, warm"
    round_seconds: ClassVar = 0.5  # repeat a quick one, or it is timed with cold caches

    def cases(self, key: PRNGKeyArray) -> list[Callable[[], Case]]:
        places = list(itertools.product(sorted(set(self.dims)), sorted(set(self.n))))
        keys = Keys(key).stack(len(places))
        return [
            functools.partial(self._make_case, *place, key)
            for place, key in zip(places, keys, strict=True)
        ]

    def _make_case(self, dim: int, n: int, key: PRNGKeyArray) -> Case:
        """Returns the `Case` that times the selection of bandwidths by every contender, on n
        simulated points in `dim` dimensions.
        """
        x, y = _simulate_data(key, n, dim)

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            """The same evaluator for all: how far above our criterion are those of the others."""
            found = {name: criterion(x, y, bandwidth) for name, bandwidth in results.items()}
            bandwidths = {name: bandwidth.tolist() for name, bandwidth in results.items()}
            above = {name: value / found[OURS] - 1.0 for name, value in found.items()}
            return {"bandwidth": bandwidths, "criterion": found, "criterion_above_ours": above}

        contenders = {
            name: lambda name=name: functools.partial(self.selector(name), x, y)
            for name in self.looks
            if dim == 1 or name != HESSBAND  # which takes one column
        }
        return Case({"n": n, "dim": dim}, f"n = {n}, d = {dim}", contenders, check)

    def selector(self, name: str) -> Select:
        """What selects the bandwidths of a contender. **Raises:** `Unavailable`."""
        if name == OURS:
            return self._select_by_attnkernel
        fit = PEERS[name]()
        return lambda x, y: np.asarray(fit(x, y).bandwidth)

    def _select_by_attnkernel(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Returns the bandwidths, one for each column of x, that minimise the leave-one-out
        criterion of attnkernel.
        """
        model = ak.KernelRegression(ak.Gaussian(np.full(x.shape[1], 0.3)))
        fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=self.starts)
        return np.asarray(fit.model.kernel.lengthscale)

    def more(self, key: PRNGKeyArray, monitor: Monitor) -> dict[str, Any]:
        if not self.samples:
            return {"small_samples": []}
        contenders, _ = available(
            # the samples have one or two columns
            {
                name: functools.partial(self.selector, name)
                for name in self.looks
                if name != HESSBAND
            }
        )
        rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 0))))
        counted = count_all(monitor, contenders, OURS, self.samples, rng, self.sample_seconds)
        return {"small_samples": counted}

    def columns(self, row: Mapping[str, Any]) -> dict[str, str]:
        return {
            "bandwidth": " ".join(f"{h:.4g}" for h in row["bandwidth"][OURS]),
            "criterion": f"{row['criterion'][OURS]:.6g}",
            "criteria of others above": ", ".join(
                f"{above:+.0e}"
                for name, above in row["criterion_above_ours"].items()
                if name != OURS
            ),
            "first": number(row["first"][OURS]),
        }

    def panel(self, row: Mapping[str, Any]) -> str:
        return f"d = {row['dim']}"

    def targets(self, results: Results) -> list[dict[str, Any]]:
        most = max(self.n)
        rows = [row for row in results.table if row["n"] == most]
        return [
            target(f"{name}, seconds over ours at n = {most}", needed, ratios(rows, name, OURS))
            for name, needed in (("statsmodels", 100.0), ("kerneljax", 20.0), (HESSBAND, 20.0))
        ]

    def print_tables(self, results: Results, run: Run) -> None:
        super().print_tables(results, run)
        if small := results.more["small_samples"]:
            run.table(
                f"{self.samples} samples of {SAMPLE_SIZES[0]} to {SAMPLE_SIZES[-1]} points",
                list(small[0]),
                [list(map(str, row.values())) for row in small],
            )


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
