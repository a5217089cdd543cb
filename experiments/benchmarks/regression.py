r"""How fast kernel regression at all of its own points is, against peers and against this machine.

All pairs of n points x in d dimensions, standard normal, y = sin Σ x, and the Gaussian kernel with
ℓ = √d/2. A pair takes one exponential, about 2d operations for its distance and 4 for its part in
the two sums; what is read and written is O(n). So the bound is a fused exp-and-sum over as many
pairs, measured in the same run as the faster of two programs, and beside it the machine's product
of matrices, which says how far 2d operations a pair can go.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.figure import Figure

import attnkernel as ak

from ..panels import legend
from ..parts import Name, Positive
from ..run import Run
from ..study import Study
from ..watch import SILENT, Watch
from .driver import (
    GIB,
    Case,
    Contender,
    Unavailable,
    agreement,
    compiled,
    measure,
    optional_import,
)
from .tables import draw_series, note_unavailable_rows, set_ticks, table_of_targets, target

OURS, GRADIENT = "attnkernel, Blockwise", "attnkernel, value and gradient"
KEOPS, SKLEARN, DENSE = "KeOps", "scikit-learn", "dense XLA"
BOUNDS = ("exp-and-sum, whole", "exp-and-sum, in blocks")
TOLERANCE = 1e-4  # relative to the largest value
PRODUCT, PRODUCT_ROWS = "product of matrices", 2048
BLOCK_ROWS = 1024
LOOKS = {
    "bound": {"color": ak.plot.GREY, "linestyle": ":"},
    OURS: {"color": ak.plot.BLUE, "marker": "o"},
    GRADIENT: {"color": ak.plot.SKY, "marker": "s", "linestyle": "--"},
    KEOPS: {"color": ak.plot.ORANGE, "marker": "^"},
    DENSE: {"color": ak.plot.GREEN, "marker": "D"},
    SKLEARN: {"color": ak.plot.PURPLE, "marker": "v"},
}


class BenchRegression(Study):
    """Pairs per second of every contender, and their share of the bound."""

    study: Literal["bench_regression"]
    name: Name = "bench_regression"
    n: Annotated[
        list[Annotated[int, pydantic.Field(ge=3, le=10_000_000)]],
        pydantic.Field(min_length=1, max_length=4),
    ] = [10_000, 50_000]
    dim: Annotated[
        list[Annotated[int, pydantic.Field(ge=1, le=1000)]], pydantic.Field(min_length=1)
    ] = [1, 3, 8, 32]
    repeats: Annotated[int, pydantic.Field(ge=1, le=100)] = 5
    most_seconds: Positive = pydantic.Field(
        default=30.0, description="for all rounds of a contender; a slower one has fewer"
    )
    most_memory_gib: Positive = pydantic.Field(
        default=6.0, description="contenders that need more are left out"
    )
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> list[dict[str, Any]]:
        places = list(itertools.product(sorted(self.n), self.dim))
        cases = (self._case(key, n, dim) for n, dim in places)
        rows = measure(watch, cases, len(places), self.repeats, self.most_seconds)
        return [row | _rates(row) for row in rows]

    def _case(self, key: PRNGKeyArray, n: int, dim: int) -> Case:
        x = jax.random.normal(key, (n, dim))
        y = jnp.sin(jnp.sum(x, axis=1, keepdims=True))
        parts = (jnp.asarray(0.5 * dim**0.5), x, y)
        max_bytes = self.most_memory_gib * GIB

        def blockwise(lengthscale: Array, x: Array, y: Array) -> Array:
            return ak.attend(x, x, y, kernel=ak.Gaussian(lengthscale), method=ak.Blockwise())

        def dense(lengthscale: Array, x: Array, y: Array) -> Array:
            return ak.attend(x, x, y, kernel=ak.Gaussian(lengthscale), method=ak.Dense())

        def loss(lengthscale: Array, x: Array, y: Array) -> Float[Array, ""]:
            return jnp.mean((blockwise(lengthscale, x, y) - y) ** 2)

        predictors: dict[str, Callable[[], Contender]] = {
            OURS: lambda: compiled(blockwise, *parts)[0],
            KEOPS: lambda: keops(*parts),
            DENSE: lambda: compiled(dense, *parts, max_bytes=max_bytes)[0],
            SKLEARN: lambda: _sklearn(*parts, max_bytes),
        }
        line = jnp.linspace(0.0, 1.0, _padded(n), dtype=x.dtype)
        square = jnp.ones((PRODUCT_ROWS, PRODUCT_ROWS), x.dtype)

        def deviations(results: Mapping[str, Any]) -> dict[str, float]:
            predicted = {name: results[name] for name in predictors if name in results}
            return agreement(predicted, OURS, TOLERANCE)

        return Case(
            {"n": n, "dim": dim},
            f"n = {n}, d = {dim}",
            predictors
            | {
                GRADIENT: lambda: compiled(jax.value_and_grad(loss, (0, 1, 2)), *parts)[0],
                BOUNDS[0]: lambda: compiled(exp_and_sum, line)[0],
                BOUNDS[1]: lambda: compiled(exp_and_sum_in_blocks, line)[0],
                PRODUCT: lambda: compiled(jnp.matmul, square, square)[0],
            },
            deviations,
        )

    def report(self, results: list[dict[str, Any]], run: Run) -> None:
        note_unavailable_rows(run, results)
        targets = _targets(results)
        self._tables(run, results)
        table_of_targets(run, targets)
        self._draw(run, results)
        run.summary({"tolerance": TOLERANCE, "table": results, "targets": targets})

    def _tables(self, run: Run, rows: list[dict[str, Any]]) -> None:
        names = [name for name in LOOKS if any(_rate(row, name) for row in rows)]
        shown = {OURS: "Blockwise", GRADIENT: "value and gradient"}
        run.table(
            f"10⁹ pairs a second, medians of up to {self.repeats}; bound: the exp-and-sum",
            ["n = m", "d", *(shown.get(name, name) for name in names)],
            [
                [
                    str(row["n"]),
                    str(row["dim"]),
                    *(f"{rate:.3g}" if (rate := _rate(row, name)) else "–" for name in names),
                ]
                for row in rows
            ],
        )
        run.table(
            "Blockwise",
            ["n = m", "d", "of the bound", "× KeOps", "gradient ÷ value", "Gflop/s", "of matmul"],
            [
                [
                    str(row["n"]),
                    str(row["dim"]),
                    f"{_rate(row, OURS) / _rate(row, 'bound'):.2f}",
                    f"{_rate(row, OURS) / keops:.1f}" if (keops := _rate(row, KEOPS)) else "–",
                    f"{_rate(row, OURS) / _rate(row, GRADIENT):.1f}",
                    f"{(flops := _rate(row, OURS) * row['operations_per_pair']):.0f}",
                    f"{flops / row['gflops_of_a_product_of_matrices']:.2f}",
                ]
                for row in rows
            ],
        )

    def _draw(self, run: Run, rows: list[dict[str, Any]]) -> None:
        sizes = sorted(set(self.n))
        figure = Figure(figsize=(1.2 + 3.0 * len(sizes), 3.4))
        axes = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        arrays: dict[str, Any] = {"n": sizes, "dim": self.dim}
        for ax, n in zip(axes, sizes, strict=True):
            at_n = [row for row in rows if row["n"] == n]
            drawn = draw_series(
                ax, at_n, "dim", LOOKS, value=lambda row: row["giga_pairs_per_second"]
            )
            for name, rates in drawn.items():
                arrays.setdefault(name, []).append(rates)
            ax.set(xlabel="dimensions d", title=f"n = m = {n}")
            set_ticks(ax, self.dim)
        axes[0].set(ylabel="10⁹ pairs a second")
        legend(figure, axes, columns=3 if len(sizes) > 1 else 2)
        run.figure("bench_regression", figure, **arrays)


def exp_and_sum(a: Float[Array, " n"]) -> Float[Array, " n"]:
    """Σ_j exp(−a_i a_j) for all i, as one operation that XLA fuses."""
    return jnp.sum(jnp.exp(-a[:, None] * a[None, :]), axis=1)


def exp_and_sum_in_blocks(a: Float[Array, " n"]) -> Float[Array, " n"]:
    """The same, a block of pairs at a time."""
    blocks = a.reshape(-1, min(BLOCK_ROWS, len(a)))

    def row(ours: Array) -> Array:
        def step(sums: Array, other: Array) -> tuple[Array, None]:
            return sums + jnp.sum(jnp.exp(-ours[:, None] * other[None, :]), axis=1), None

        return jax.lax.scan(step, jnp.zeros_like(ours), blocks)[0]

    return jax.lax.map(row, blocks).ravel()


def keops(lengthscale: Array, x: Array, y: Array) -> Contender:
    for package in ("KEOPS", "PYKEOPS"):
        os.environ.setdefault(f"{package}_VERBOSE", "0")
    numpy = optional_import("pykeops.numpy")
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise Unavailable("compiles its formulas with g++, which is not here")
    points, values = np.asarray(x), np.concatenate([y, np.ones_like(y)], axis=1)
    dim, gamma = x.shape[1], np.asarray(0.5 / lengthscale**2).reshape(1)
    aliases = [f"x=Vi({dim})", f"k=Vj({dim})", "v=Vj(2)", "g=Pm(1)"]
    sums = numpy.Genred("Exp(-g*SqDist(x,k))*v", aliases, reduction_op="Sum", axis=1)

    def predict() -> np.ndarray:
        found = sums(points, points, values, gamma, backend="CPU")
        return found[:, :1] / found[:, 1:]

    return predict


def _sklearn(lengthscale: Array, x: Array, y: Array, max_bytes: float) -> Contender:
    rbf_kernel = optional_import("sklearn.metrics.pairwise").rbf_kernel
    needed = x.itemsize * x.shape[0] ** 2
    if needed > max_bytes:
        raise Unavailable(
            f"needs a matrix of {needed / GIB:.1f} GiB, more than {max_bytes / GIB:.3g}"
        )
    points, values = np.asarray(x), np.concatenate([y, np.ones_like(y)], axis=1)
    gamma = float(0.5 / lengthscale**2)

    def predict() -> np.ndarray:
        found = rbf_kernel(points, gamma=gamma) @ values
        return found[:, :1] / found[:, 1:]

    return predict


def _padded(n: int) -> int:
    """The number of points of the bound: n, rounded up to whole blocks."""
    return -(-n // BLOCK_ROWS) * BLOCK_ROWS


def _rates(row: dict[str, Any]) -> dict[str, Any]:
    """Pairs a second of a row, and operations of the product of matrices."""
    median = dict(row["median"])
    product = median.pop(PRODUCT)
    pairs = {name: float(_padded(row["n"]) if name in BOUNDS else row["n"]) ** 2 for name in median}
    rates = {name: pairs[name] / spent / 1e9 for name, spent in median.items()}
    rates["bound"] = max(rates.pop(name) for name in BOUNDS)
    return {
        "median": median,
        "giga_pairs_per_second": rates,
        "operations_per_pair": 2 * row["dim"] + 4,
        "gflops_of_a_product_of_matrices": 2.0 * PRODUCT_ROWS**3 / product / 1e9,
    }


def _rate(row: dict[str, Any], name: str) -> Any:
    """10⁹ pairs a second; None for a contender that did not run."""
    return row["giga_pairs_per_second"].get(name)


def _targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def ratios(a: str, b: str, most_dim: float = np.inf) -> dict[str, float]:
        return {
            row["where"]: _rate(row, a) / _rate(row, b)
            for row in rows
            if _rate(row, b) and row["dim"] <= most_dim
        }

    return [
        target("Blockwise, times as fast as KeOps", 8.0, ratios(OURS, KEOPS)),
        target("Blockwise, part of the bound, d ≤ 3", 0.7, ratios(OURS, "bound", 3)),
        target(
            "value and gradient, in times of the value", 4.0, ratios(OURS, GRADIENT), at_most=True
        ),
    ]
