r"""Seconds and memory as data grow, and the exponent b of each curve: $t(n) \propto n^b$.

Regression of n rows: a whole leave-one-out fit of one Gaussian lengthscale, and the predictions at
all rows, beside R's KernSmooth, which bins the rows and takes a plug-in bandwidth (`dpill`, then
`locpoly`), and KeOps, which sums all pairs. Attention among T tokens, one head: full, causal, in a
window of 1024 tokens, linear, by the delta rule, and PyTorch's. Full and causal attention have T²
pairs; all else of ours should take n log n steps at most.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty, Positive
from ..reports import looks_of, subplots
from ..runs import Run
from . import attention_contenders
from .benchmark import Benchmark, Results
from .driver import Case, Contender, Unavailable, compiled, growth_of_calls, in_fresh_process
from .r_scripts import kernsmooth
from .regression import keops
from .reports import target

FIT, PREDICTION, R, KEOPS = "fit", "prediction", "R: dpill + locpoly", "KeOps, a sum"
PAIRS = FULL, CAUSAL = "full", "causal"
RECURRENT: dict[str, Any] = {
    "linear": {"estimator": ak.recurrent.LinearAttention()},
    "delta rule": {"estimator": ak.recurrent.DeltaRule(), "rate": 0.5},
}
ATTENTION: dict[str, Any] = {FULL: None, CAUSAL: ak.Causal(), "window": ak.Window(1023, 0)}
TORCH = {"PyTorch, full": False, "PyTorch, causal": True}
OURS = (FIT, PREDICTION, *ATTENTION, *RECURRENT)
BOUNDS = (0.05, 3.0)  # times Scott's rule
HEAD_SIZE = 64
MAX_ROWS = 1_000_000  # of three columns
Rows = Annotated[int, Field(ge=100, le=100_000_000)]
Tokens = Annotated[int, Field(ge=2, le=10_000_000)]


class BenchGrowth(Benchmark):
    """Seconds and memory of fits, predictions and attention against their size."""

    study: Literal["bench_growth"]
    # the precision of the fits; attention is in float32
    precision: Literal["float64"] = "float64"  # pyright: ignore[reportIncompatibleVariableOverride]
    rows: NonEmpty[Rows] = [100, 1000, 10_000, 100_000, 1_000_000, 10_000_000]
    dims: NonEmpty[Annotated[int, Field(ge=1, le=3)]] = [1, 3]
    tokens: NonEmpty[Tokens] = [2**power for power in range(7, 18)]
    repeats: int = Field(default=3, ge=1, le=1000)
    max_seconds: Positive = 10.0
    max_run_seconds: Positive = 1300.0
    compared: ClassVar = (*OURS, R, KEOPS, *TORCH)
    along: ClassVar = "n"
    x_label: ClassVar = "rows n, or tokens T"
    panel_title: ClassVar = "{data}"

    def places(self) -> Iterator[tuple[str, int, int]]:
        for dim, n in itertools.product(sorted(self.dims), sorted(self.rows)):
            yield f"regression, d = {dim}", dim, n
        for n in sorted(self.tokens):
            yield "attention", HEAD_SIZE, n

    def make_case(self, key: PRNGKeyArray, data: str, dim: int, n: int) -> Case:
        """Returns the `Case` that times all work on n rows of d columns, or n tokens."""
        if data == "attention":
            names, make = (*ATTENTION, *RECURRENT, *TORCH), attention
        else:
            names, make = (FIT, PREDICTION, KEOPS, *([R] if dim == 1 else [])), regression

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            known = {}
            if (fit := results.get(FIT)) is not None:
                known = {"lengthscale": float(fit.model.kernel.lengthscale)}
            memory = {}
            for name in set(OURS) & {*results}:
                if row["median"][name] <= self.max_seconds:
                    work = (self.precision, make, name, dim, n, self.seed)
                    _, memory[name] = in_fresh_process(growth_of_calls, *work)
            return {**known, "memory": {name: b for name, b in memory.items() if b is not None}}

        makers = {name: functools.partial(make, name, dim, n, self.seed) for name in names}
        return Case({"data": data, "n": n}, f"{data}, {n}", makers, check)

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        of_pairs, others = {}, {}
        for (data, name), (sizes, seconds) in curves(results.table, "median").items():
            if name in OURS and len(sizes) > 1:
                found = of_pairs if name in PAIRS else others
                found[f"{data}, {name}"] = exponent(sizes, seconds)
        yield target("exponent of T, all pairs", 2.1, of_pairs, at_most=True)
        yield target("exponent of n or T, all else", 1.15, others, at_most=True)

    def draw(self, results: Results, run: Run) -> None:
        """Draws seconds above memory, a column for each kind of data."""
        kinds = list(dict.fromkeys(row["data"] for row in results.table))
        size = (4.0 * len(kinds), 7.0)
        figure, axes = subplots(2, len(kinds), figsize=size, squeeze=False, sharex="col")
        looks = looks_of(self.compared)
        for of_quantity, quantity in zip(axes, ("median", "memory"), strict=True):
            for (data, name), (sizes, values) in curves(results.table, quantity).items():
                look = looks[name] | {"label": name, "linestyle": "-" if name in OURS else ":"}
                if quantity == "median" and len(sizes) > 1:
                    look["label"] = f"{name}: {exponent(sizes, values):.2f}"
                of_quantity[kinds.index(data)].plot(sizes, values, **look)
        for ax, data in zip(axes[0], kinds, strict=True):
            ax.set_title(f"{data}: exponents of the last decade")
        for ax in axes.flat:
            ax.set(xscale="log", yscale="log")
            low, high = ax.get_ylim()
            ax.set_ylim(low, high * (high / low) ** 0.4)  # room for the legend
            ax.legend(loc="upper left", ncols=2, fontsize="small")
        for ax in axes[1]:
            ax.set_xlabel(self.x_label)
        axes[0, 0].set_ylabel("seconds")
        axes[1, 0].set_ylabel("memory of a call (bytes)")
        run.figure("growth", figure)


def curves(
    rows: Sequence[Mapping[str, Any]], quantity: str
) -> dict[tuple[str, str], tuple[list[int], list[float]]]:
    """Returns sizes and values of a quantity, by kind of data and contender."""
    found: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    for row in rows:
        for name, value in row[quantity].items():
            sizes, values = found.setdefault((row["data"], name), ([], []))
            sizes.append(row["n"])
            values.append(value)
    return found


def exponent(sizes: Sequence[int], values: Any) -> float:
    """Returns b of $c n^b$, by least squares of the logarithms over the last decade of sizes."""
    n, t = np.log(np.array(sizes, float)), np.log(np.asarray(values, float))
    last = n >= min(n[-1] - np.log(10.0) - 1e-9, n[-2])
    return float(np.polyfit(n[last], t[last], 1)[0])


def regression(name: str, dim: int, n: int, seed: int) -> Contender:
    """Returns a piece of work on n simulated rows of d columns."""
    if dim == 3 and n > MAX_ROWS:
        raise Unavailable(f"of three columns, at most {MAX_ROWS} rows: more take over ten minutes")
    x, y = simulate(n, dim, seed)
    lengthscale = scott_rule(x)
    if name == FIT:
        return lambda: fit_gaussian(x, y, ak.LeaveOneOut())
    if name == PREDICTION:
        model = ak.KernelRegression(ak.Gaussian(0.25 * lengthscale))  # about that of a fit
        return lambda: model(x, x, y)
    if name == R:
        return kernsmooth(x[:, 0], y)
    return keops(jnp.asarray(lengthscale), x, y[:, None])


def attention(name: str, dim: int, n: int, seed: int) -> Contender:
    """Returns a piece of work on n tokens of one head, in float32."""
    arrays = [
        array.astype("float32") for array in attention_contenders.draw_arrays(1, n, dim, seed)
    ]
    if name in TORCH:
        given = (attention_contenders.FORWARD, arrays, np.inf)
        return attention_contenders.make(attention_contenders.TORCH, TORCH[name], *given)
    q, k, v, _ = arrays
    if name in ATTENTION:
        parts = {"kernel": ak.DotProduct(), "prior": ATTENTION[name]}
        return compiled(functools.partial(ak.attend, **parts), q, k, v)
    k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
    return compiled(functools.partial(ak.recurrent.regress, **RECURRENT[name]), q, k, v)


def simulate(n: int, dim: int, seed: int) -> tuple[Array, Array]:
    """Simulates x, shape (n, dim), and y, shape (n,): the curve of Czyż (2024) and its noise; in
    more dimensions, the mean of one such curve for each column.
    """
    if dim == 1:
        data = ak.data.heteroskedastic(key=jax.random.PRNGKey(seed), n=n)
        return data.x, data.y
    x_key, noise_key = jax.random.split(jax.random.PRNGKey(seed))
    x = jax.random.uniform(x_key, (n, dim), minval=-3.0, maxval=3.0)
    mean = jnp.mean(ak.data.heteroskedastic_mean(x), axis=1)
    sd = jnp.mean(ak.data.heteroskedastic_sd(x), axis=1)
    return x, mean + sd * jax.random.normal(noise_key, (n,))


def scott_rule(x: Float[Array, "n dim"]) -> float:
    r"""Scott's rule, $1.06\, s\, n^{-1/(d+4)}$ with s the mean standard deviation of the inputs."""
    n, dim = x.shape
    return 1.06 * float(jnp.mean(jnp.std(x, axis=0))) * n ** (-1 / (dim + 4))


def fit_gaussian(x: Array, y: Array, objective: Any, **options: Any) -> ak.Fit:
    """The fit of a Gaussian kernel from Scott's rule, within `BOUNDS` times it; `options`: of
    `ak.KernelRegression`."""
    model, low, high = (
        ak.KernelRegression(ak.Gaussian(scott_rule(x) * factor), **options)
        for factor in (1.0, *BOUNDS)
    )
    return ak.fit(model, x, y, objective=objective, bounds=(low, high), starts=1)
