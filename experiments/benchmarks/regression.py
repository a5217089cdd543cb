r"""How fast kernel regression at all of its own points is, against peers and against this machine.

All pairs of n points x in d dimensions, standard normal, y = sin Σ x, and the Gaussian kernel with
ℓ = √d/2. A pair takes one exponential, about 2d operations for its distance and 4 for its part in
the two sums; what is read and written is O(n). So the bound is a fused exp-and-sum over as many
pairs, measured in the same run as the faster of two programs, and beside it the machine's product
of matrices, which says how far 2d operations a pair can go.
"""

import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from .benchmark import Benchmark, Results
from .driver import GIB, Case, Contender, Unavailable, agree, compiled, optional_import
from .reports import ratios, target

OURS, GRADIENT = "attnkernel, Blockwise", "attnkernel, value and gradient"
KEOPS, SKLEARN, DENSE = "KeOps", "scikit-learn", "dense XLA"
BOUNDS = ("exp-and-sum, whole", "exp-and-sum, in blocks")
PRODUCT, PRODUCT_ROWS = "product of matrices", 2048
BLOCK_ROWS = 1024


class BenchRegression(Benchmark):
    """Pairs per second of every contender, and their share of the bound."""

    study: Literal["bench_regression"]
    n: list[Annotated[int, Field(ge=3, le=10_000_000)]] = Field(
        default=[10_000, 50_000], min_length=1, max_length=4
    )
    dim: list[Annotated[int, Field(ge=1, le=1000)]] = Field(default=[1, 3, 8, 32], min_length=1)
    compared: ClassVar = (OURS, GRADIENT, KEOPS, DENSE, SKLEARN, "bound")
    axes: ClassVar = ("n", "dim")
    along: ClassVar = "dim"
    x_label: ClassVar = "dimensions d"
    panel_title: ClassVar = "n = m = {n}"
    unit: ClassVar = "10⁹ pairs a second"

    def make_case(self, key: PRNGKeyArray, n: int, dim: int) -> Case:
        """Simulates n points in `dim` dimensions; returns the `Case` that times the contenders and
        the bounds on all pairs of them.
        """
        x = jax.random.normal(key, (n, dim))
        y = jnp.sin(jnp.sum(x, axis=1, keepdims=True))
        parts = (jnp.asarray(0.5 * dim**0.5), x, y)
        max_bytes = self.max_memory_gib * GIB

        def predict(method: ak.methods.Method, lengthscale: Array, x: Array, y: Array) -> Array:
            return ak.attend(x, x, y, kernel=ak.Gaussian(lengthscale), method=method)

        blockwise = functools.partial(predict, ak.methods.Blockwise())
        dense = functools.partial(predict, ak.methods.Dense())

        def loss(lengthscale: Array, x: Array, y: Array) -> Float[Array, ""]:
            return jnp.mean((blockwise(lengthscale, x, y) - y) ** 2)

        line = jnp.linspace(0.0, 1.0, _round_up_to_blocks(n), dtype=x.dtype)
        square = jnp.ones((PRODUCT_ROWS, PRODUCT_ROWS), x.dtype)
        agreed = agree(OURS, 1e-4, (OURS, KEOPS, DENSE, SKLEARN))
        makers = {
            OURS: lambda: compiled(blockwise, *parts),
            # before KeOps and scikit-learn, whose threads go on waiting: after them the gradient of
            # 10 000 points takes 1.3 times as long
            GRADIENT: lambda: compiled(jax.value_and_grad(loss, (0, 1, 2)), *parts),
            KEOPS: lambda: keops(*parts),
            DENSE: lambda: compiled(dense, *parts, max_bytes=max_bytes),
            SKLEARN: lambda: _make_sklearn_contender(*parts, max_bytes),
            BOUNDS[0]: lambda: compiled(exp_and_sum, line),
            BOUNDS[1]: lambda: compiled(exp_and_sum_in_blocks, line),
            PRODUCT: lambda: compiled(jnp.matmul, square, square),
        }
        check = lambda results, row: agreed(results, row) | _compute_rates(row)  # noqa: E731
        return Case({"n": n, "dim": dim}, f"n = {n}, d = {dim}", makers, check)

    def values(self, row: Mapping[str, Any]) -> dict[str, float]:
        return row["giga_pairs_per_second"]

    def columns(self, row: Mapping[str, Any]) -> dict[str, str]:
        gflops = self.values(row)[OURS] * row["operations_per_pair"]
        return {
            "Gflop/s": f"{gflops:.0f}",
            "of matmul": f"{gflops / row['gflops_of_a_product_of_matrices']:.2f}",
        }

    def finding(self, row: Mapping[str, Any]) -> str:
        share = self.values(row)[OURS] / self.values(row)["bound"]
        return f"d = {row['dim']}: {share:.0%} of the bound"

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        table, low = results.table, [row for row in results.table if row["dim"] <= 3]
        part = {row["label"]: self.values(row)[OURS] / self.values(row)["bound"] for row in low}
        gradient = ratios(table, GRADIENT, OURS)
        yield target("Blockwise, times as fast as KeOps", 8.0, ratios(table, KEOPS, OURS))
        yield target("Blockwise, part of the bound, d ≤ 3", 0.7, part)
        yield target("value and gradient, in times of the value", 4.0, gradient, at_most=True)


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
    dim, gamma = x.shape[1], np.asarray(0.5 / lengthscale**2).reshape(1)
    aliases = [f"x=Vi({dim})", f"k=Vj({dim})", "v=Vj(2)", "g=Pm(1)"]
    sums = numpy.Genred("Exp(-g*SqDist(x,k))*v", aliases, reduction_op="Sum", axis=1)
    return _weighted_means(lambda x, v: sums(x, x, v, gamma, backend="CPU"), x, y)


def _weighted_means(sums: Callable[..., np.ndarray], x: Array, y: Array) -> Contender:
    """Returns a function that divides the weighted sums of the labels by those of ones."""
    points, values = np.asarray(x), np.concatenate([y, np.ones_like(y)], axis=1)

    def predict() -> np.ndarray:
        found = sums(points, values)
        return found[:, :1] / found[:, 1:]

    return predict


def _make_sklearn_contender(lengthscale: Array, x: Array, y: Array, max_bytes: float) -> Contender:
    """Returns a function that predicts at all x by scikit-learn's `rbf_kernel`; raises
    `Unavailable` if its matrix takes more than `max_bytes`.
    """
    rbf_kernel = optional_import("sklearn.metrics.pairwise").rbf_kernel
    needed = x.itemsize * x.shape[0] ** 2
    if needed > max_bytes:
        gib, most = needed / GIB, max_bytes / GIB
        raise Unavailable(f"needs a matrix of {gib:.1f} GiB, more than {most:.3g}")
    gamma = float(0.5 / lengthscale**2)
    return _weighted_means(lambda x, v: rbf_kernel(x, gamma=gamma) @ v, x, y)


def _round_up_to_blocks(n: int) -> int:
    """Returns n rounded up to a multiple of `BLOCK_ROWS`."""
    return -(-n // BLOCK_ROWS) * BLOCK_ROWS


def _compute_rates(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns 10⁹ pairs a second by contender, the operations of a pair, and the Gflop/s of a
    product of matrices, from `n`, `dim` and `median` seconds by contender in `row`.
    """
    rows: dict[str, Any] = {**dict.fromkeys(row["median"], row["n"])}
    rows |= dict.fromkeys(BOUNDS, _round_up_to_blocks(row["n"]))
    rates = {
        name: float(rows[name]) ** 2 / spent / 1e9
        for name, spent in row["median"].items()
        if name != PRODUCT
    }
    rates["bound"] = max(rates.pop(name) for name in BOUNDS)
    return {
        "giga_pairs_per_second": rates,
        "operations_per_pair": 2 * row["dim"] + 4,
        "gflops_of_a_product_of_matrices": 2.0 * PRODUCT_ROWS**3 / row["median"][PRODUCT] / 1e9,
    }
