r"""How fast kernel regression at all of its own points is, against peers and against this machine.

All pairs of n points x in d dimensions, standard normal, y = sin Σ x, and the Gaussian kernel with
ℓ = √d/2. A pair takes one exponential, about 2d operations for its distance and 4 for its part in
the two sums; what is read and written is O(n). So the bound is a fused exp-and-sum over as many
pairs, measured in the same run as the faster of two programs, and beside it the machine's product
of matrices, which says how far 2d operations a pair can go.
"""

import os
import shutil
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, Float
from matplotlib.figure import Figure

import attnkernel as ak

from ..panels import legend
from ..parts import Name, Positive
from ..run import Run
from ..study import Study
from .driver import (
    GIB,
    Contender,
    Unavailable,
    agreement,
    available,
    compiled,
    interleaved,
    medians,
    note_unavailable,
    optional_import,
    table_of_targets,
    target,
)

OURS, GRADIENT = "attnkernel, Blockwise", "attnkernel, value and gradient"
KEOPS, SKLEARN, DENSE = "KeOps", "scikit-learn", "dense XLA"
BOUNDS = ("exp-and-sum, whole", "exp-and-sum, in blocks")
_TOLERANCE = 1e-4  # relative to the largest value
_PRODUCT = 2048  # rows of the product of matrices
_BLOCK = 1024
_LOOK = {
    "bound": {"color": ak.plot.GREY, "linestyle": ":"},
    OURS: {"color": ak.plot.BLUE, "marker": "o"},
    GRADIENT: {"color": ak.plot.SKY, "marker": "s", "linestyle": "--"},
    KEOPS: {"color": ak.plot.ORANGE, "marker": "^"},
    DENSE: {"color": ak.plot.GREEN, "marker": "D"},
    SKLEARN: {"color": ak.plot.PURPLE, "marker": "v"},
}


class BenchRegression(Study):
    """Pairs per second of every side, and how near they come to the bound."""

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
        default=30.0, description="for all repeats of a side; a slower one has fewer, but one"
    )
    most_memory_gib: Positive = pydantic.Field(
        default=6.0, description="sides that would need more are left out"
    )
    is_benchmark: ClassVar[bool] = True

    def run(self, run: Run) -> None:
        rows: list[dict[str, Any]] = []
        with run.progress("benchmark", len(self.n) * len(self.dim)) as tick:
            for n in sorted(self.n):
                for dim in self.dim:
                    rows.append(self._measure(n, dim))
                    tick(len(rows), f"n = {n}, d = {dim}")
        note_unavailable(
            run, [(side, _where(row), why) for row in rows for side, why in row["absent"].items()]
        )
        targets = _targets(rows)
        self._tables(run, rows)
        table_of_targets(run, targets)
        self._draw(run, rows)
        run.summary({"tolerance": _TOLERANCE, "table": rows, "targets": targets})

    def _measure(self, n: int, dim: int) -> dict[str, Any]:
        x = jax.random.normal(jax.random.PRNGKey(self.seed), (n, dim))
        y = jnp.sin(jnp.sum(x, axis=1, keepdims=True))
        lengthscale = jnp.asarray(0.5 * dim**0.5)
        most = self.most_memory_gib * GIB

        def ours(lengthscale: Array, x: Array, y: Array, method: ak.Method) -> Array:
            return ak.attend(x, x, y, kernel=ak.Gaussian(lengthscale), method=method)

        def streamed(lengthscale: Array, x: Array, y: Array) -> Array:
            return ours(lengthscale, x, y, ak.Blockwise())

        def dense(lengthscale: Array, x: Array, y: Array) -> Array:
            return ours(lengthscale, x, y, ak.Dense())

        def loss(lengthscale: Array, x: Array, y: Array) -> Float[Array, ""]:
            return jnp.mean((streamed(lengthscale, x, y) - y) ** 2)

        parts = (lengthscale, x, y)
        predictors, absent = available(
            {
                OURS: lambda: compiled(streamed, *parts)[0],
                KEOPS: lambda: keops(*parts),
                DENSE: lambda: compiled(dense, *parts, most_bytes=most)[0],
                SKLEARN: lambda: _sklearn(*parts, most),
            }
        )
        line = jnp.linspace(0.0, 1.0, -(-n // _BLOCK) * _BLOCK, dtype=x.dtype)
        square = jnp.ones((_PRODUCT, _PRODUCT), x.dtype)
        others = {
            GRADIENT: compiled(jax.value_and_grad(loss, (0, 1, 2)), *parts)[0],
            BOUNDS[0]: compiled(exp_and_sum, line)[0],
            BOUNDS[1]: compiled(exp_and_sum_in_blocks, line)[0],
            "product of matrices": compiled(jnp.matmul, square, square)[0],
        }
        seconds, results = interleaved(
            predictors | others, self.repeats, most_seconds=self.most_seconds
        )
        median = medians(seconds)
        pairs = {name: float(len(line) if name in BOUNDS else n) ** 2 for name in median}
        product = median.pop("product of matrices")
        rates = {name: pairs[name] / spent / 1e9 for name, spent in median.items()}
        rates["bound"] = max(rates.pop(name) for name in BOUNDS)
        return {
            "n": n,
            "dim": dim,
            "seconds": seconds,
            "median": median,
            "giga_pairs_per_second": rates,
            "operations_per_pair": 2 * dim + 4,
            "gflops_of_a_product_of_matrices": 2.0 * _PRODUCT**3 / product / 1e9,
            "deviation": agreement({k: results[k] for k in predictors}, OURS, _TOLERANCE),
            "absent": absent,
        }

    def _tables(self, run: Run, rows: list[dict[str, Any]]) -> None:
        names = [name for name in _LOOK if any(_rate(row, name) for row in rows)]
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
        names = [name for name in _LOOK if any(_rate(row, name) for row in rows)]
        for name in names:
            table = {(row["n"], row["dim"]): _rate(row, name) or np.nan for row in rows}
            arrays[name] = np.array([[table[n, dim] for dim in self.dim] for n in sizes])
            for ax, rates in zip(axes, arrays[name], strict=True):
                ax.plot(self.dim, rates, label=name, **_LOOK[name])
        for ax, n in zip(axes, sizes, strict=True):
            ax.set(xscale="log", yscale="log", xlabel="dimensions d", title=f"n = m = {n}")
            ax.set_xticks(self.dim, [str(dim) for dim in self.dim])
            ax.minorticks_off()
        axes[0].set(ylabel="10⁹ pairs a second")
        legend(figure, axes, columns=3 if len(sizes) > 1 else 2)
        run.figure("bench_regression", figure, **arrays)


def exp_and_sum(a: Float[Array, " n"]) -> Float[Array, " n"]:
    """Σ_j exp(−a_i a_j) for all i, as one operation that XLA fuses."""
    return jnp.sum(jnp.exp(-a[:, None] * a[None, :]), axis=1)


def exp_and_sum_in_blocks(a: Float[Array, " n"]) -> Float[Array, " n"]:
    """The same, a block of pairs at a time."""
    blocks = a.reshape(-1, min(_BLOCK, len(a)))

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


def _sklearn(lengthscale: Array, x: Array, y: Array, most: float) -> Contender:
    rbf_kernel = optional_import("sklearn.metrics.pairwise").rbf_kernel
    needed = x.itemsize * x.shape[0] ** 2
    if needed > most:
        raise Unavailable(f"needs a matrix of {needed / GIB:.1f} GiB, more than {most / GIB:.3g}")
    points, values = np.asarray(x), np.concatenate([y, np.ones_like(y)], axis=1)
    gamma = float(0.5 / lengthscale**2)

    def predict() -> np.ndarray:
        found = rbf_kernel(points, gamma=gamma) @ values
        return found[:, :1] / found[:, 1:]

    return predict


def _where(row: dict[str, Any]) -> str:
    return f"n = {row['n']}, d = {row['dim']}"


def _rate(row: dict[str, Any], name: str) -> Any:
    """10⁹ pairs a second; None of a side that did not run."""
    return row["giga_pairs_per_second"].get(name)


def _targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def ratios(a: str, b: str, most_dim: float = np.inf) -> dict[str, float]:
        return {
            _where(row): _rate(row, a) / _rate(row, b)
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
