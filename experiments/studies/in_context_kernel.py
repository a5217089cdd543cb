r"""Classes by a kernel over the context: the scale by leave-one-out, five folds, or a fixed rule.

$$ \hat p_c(q) = \sum_i w_i(q)\, 1\{y_i = c\}, \qquad w_i(q) \propto K_\gamma(q, x_i) $$

The perplexity of the weights, $\exp(-\sum_i w_i \log w_i)$, is the number of rows that a prediction
rests on. The scale γ has the least squared error of $\hat p$ at rows that are left out.

**Source:** Miftachov, Charron and Valentin, *Interpretable tabular foundation models via in-context
kernel regression*, arXiv 2602.02162 (2026). There x are the embeddings of a trained network, which
is run again for each fold; here they are the columns of the data.
"""

import functools
import importlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty
from ..reports import draw_dots, save_with_legend, subplots
from ..reports.predictions import Claims, judge_and_print, mean_of
from ..runs import NO_MONITOR, Monitor, Run
from .claims import Claim, verdict
from .study import Study

KERNELS = ("Gaussian", "dot product", "neighbours")
PLAIN, PERMUTED, PROJECTED = ("raw", "standardised"), "permuted", "permuted, projected"
INPUTS = (*PLAIN, PERMUTED, PROJECTED)
LEAVE_ONE_OUT, FOLDS, RULE, ONE_FIT = "leave-one-out", "five folds", "fixed rule", "one fit"
DRAWN: dict[str, dict[str, Any]] = {
    "moons": {"noise": 0.25},
    "circles": {"noise": 0.15, "factor": 0.5},
    "blobs": {"centers": 4, "cluster_std": 2.5},
}
NOISY = ", 18 columns of noise"
Name = Literal[
    "iris", "wine", "breast_cancer", "digits", "blobs", "moons", "circles",
    "moons, 18 columns of noise", "circles, 18 columns of noise",
]  # fmt: skip
COUNTS = np.unique(np.geomspace(1, 64, 13).round().astype(int))  # of neighbours
SHARES = np.geomspace(0.01, 1.0, 13)  # lengthscales over the root mean square distance of rows


def load_classes(name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and classes of a data set that scikit-learn ships, or makes with so many rows."""
    datasets: Any = importlib.import_module("sklearn.datasets")
    made, _, noisy = name.partition(", ")
    if made not in DRAWN:
        return getattr(datasets, f"load_{made}")(return_X_y=True)
    x, y = getattr(datasets, f"make_{made}")(n_samples=rows, random_state=0, **DRAWN[made])
    return (np.hstack([x, np.random.default_rng(0).normal(size=(rows, 18))]) if noisy else x), y


def split(
    x: Float[np.ndarray, "n dim"], y: Int[np.ndarray, " n"], seed: list[int]
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields, for each of INPUTS, three quarters of the rows to learn from, and the others: inputs
    and one column for each class, inputs and classes.

    The projection is linear discriminant analysis of the rows to learn from, with their labels.
    """
    analysis: Any = importlib.import_module("sklearn.discriminant_analysis")
    rng, count = np.random.default_rng(seed), 5 * int(0.15 * len(y))
    rows, mixed = rng.permutation(len(y)), rng.permutation(y)
    seen, held = rows[:count], rows[count:]
    deviation = x[seen].std(axis=0)
    scaled = (x - x[seen].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    fitted = analysis.LinearDiscriminantAnalysis().fit(scaled[seen], mixed[seen])
    projected = np.zeros_like(scaled)  # columns of zeros change no distance
    axes = fitted.transform(scaled)
    projected[:, : axes.shape[1]] = axes
    for points, labels in ((x, y), (scaled, y), (scaled, mixed), (projected, mixed)):
        yield points[seen], np.eye(y.max() + 1)[labels[seen]], points[held], labels[held]


def scales_of(kernel: str, x: Float[Array, "n dim"]) -> tuple[Array, Array]:
    """The scales to choose from, and that of the fixed rule, alone."""
    square = 2.0 * jnp.sum(jnp.var(x, axis=0))
    rule = {"neighbours": 5, "Gaussian": x.shape[1] ** 0.25, "dot product": x.shape[1] ** 0.5}
    scales = {"Gaussian": jnp.sqrt(square) * SHARES, "dot product": square * SHARES**2}
    return scales.get(kernel, jnp.asarray(COUNTS)), jnp.asarray([rule[kernel]])


def kernel_of(kernel: str, scale: Array) -> ak.kernels.Kernel:
    return ak.Gaussian(scale) if kernel == "Gaussian" else ak.DotProduct(1.0 / scale)


def predict(
    kernel: str,
    scales: Array,
    q: Float[Array, "queries dim"],
    x: Float[Array, "n dim"],
    y: Float[Array, "n classes"],
    *,
    leave_out: bool = False,
) -> Float[Array, "scales queries classes"]:
    """The shares of classes at each scale; `leave_out`: of each row x, from all others."""
    if kernel == "neighbours":  # one search for all numbers of neighbours
        near = ak.Gaussian(1.0).pairwise(q, x)
        near = jnp.where(jnp.eye(len(x), dtype=bool), -jnp.inf, near) if leave_out else near
        nearest = y[jax.lax.top_k(near, int(COUNTS[-1]))[1]]
        shares = jnp.cumsum(nearest, axis=1) / jnp.arange(1, COUNTS[-1] + 1)[None, :, None]
        return jnp.moveaxis(shares[:, scales - 1], 1, 0)
    prior = ak.priors.ExcludeSelf() if leave_out else None

    def at(scale: Array) -> Float[Array, "queries classes"]:
        return ak.KernelRegression(kernel_of(kernel, scale))(q, x, y, prior=prior)

    return jax.lax.map(at, scales)


def choose_by_leave_one_out(kernel: str, x: Array, y: Array) -> tuple[Array, Array]:
    """The scale, and the accuracy that leave-one-out estimates at it."""
    scales, _ = scales_of(kernel, x)
    found = predict(kernel, scales, x, x, y, leave_out=True)
    best = jnp.argmin(jnp.sum((found - y[None]) ** 2, axis=(1, 2)))
    return scales[best], accuracy(found[best], jnp.argmax(y, axis=1))


def choose_by_folds(kernel: str, x: Array, y: Array) -> Array:
    """The scale by five folds of consecutive rows, whose number is a multiple of five."""
    scales, _ = scales_of(kernel, x)
    rows = jnp.arange(len(x)).reshape(5, -1)

    def loss(fold: Int[Array, ""]) -> Float[Array, " scales"]:
        held, seen = rows[fold], rows[(fold + jnp.arange(1, 5)) % 5].ravel()
        found = predict(kernel, scales, x[held], x[seen], y[seen])
        return jnp.sum((found - y[held][None]) ** 2, axis=(1, 2))

    return scales[jnp.argmin(jnp.sum(jax.lax.map(loss, jnp.arange(5)), axis=0))]


def accuracy(shares: Float[Array, "n classes"], labels: Int[Array, " n"]) -> Float[Array, ""]:
    return jnp.mean(jnp.argmax(shares, axis=1) == labels)


def perplexity(kernel: str, scale: Array, q: Array, x: Array) -> Float[Array, ""]:
    """The mean over queries of the perplexity of their weights."""
    if kernel == "neighbours":
        return scale * 1.0
    weights = ak.attention_weights(q, x, kernel=kernel_of(kernel, scale))
    return jnp.mean(jnp.exp(jnp.sum(jax.scipy.special.entr(weights), axis=1)))


@functools.partial(jax.jit, static_argnums=0)
def judge_splits(kernel: str, *splits: Array) -> dict[str, Array]:
    """Accuracy and perplexity at held rows with each way to choose the scale, for many splits."""

    def judge(arrays: tuple[Array, ...]) -> dict[str, Array]:
        x, y, q, labels = arrays
        scale, estimated = choose_by_leave_one_out(kernel, x, y)
        ways = {LEAVE_ONE_OUT: scale, FOLDS: choose_by_folds(kernel, x, y)}
        ways[RULE] = scales_of(kernel, x)[1][0]
        numbers = {"estimated": estimated}
        for way, scale in ways.items():
            numbers[f"accuracy, {way}"] = accuracy(predict(kernel, scale[None], q, x, y)[0], labels)
            numbers[f"perplexity, {way}"] = perplexity(kernel, scale, q, x)
        return numbers

    return jax.lax.map(judge, splits)


def seconds_of(kernel: str, x: Array, y: Array, repeats: int) -> dict[str, float]:
    """Median seconds, warm and in turn: leave-one-out at one scale, and both ways to choose one."""
    one = scales_of(kernel, x)[1]
    fit = jax.jit(lambda x, y: predict(kernel, one, x, x, y, leave_out=True))
    works = {ONE_FIT: fit} | {
        way: jax.jit(functools.partial(choose, kernel))
        for way, choose in {LEAVE_ONE_OUT: choose_by_leave_one_out, FOLDS: choose_by_folds}.items()
    }
    seconds: dict[str, list[float]] = {way: [] for way in works}
    for _ in range(repeats + 1):  # the first compiles
        for way, work in works.items():
            start = time.perf_counter()
            jax.block_until_ready(work(x, y))
            seconds[way].append(time.perf_counter() - start)
    return {way: float(np.median(found[1:])) for way, found in seconds.items()}


class InContextKernel(Study):
    """Accuracy, perplexity and seconds of kernels over the context, by the choice of the scale."""

    study: Literal["in_context_kernel"]
    data: NonEmpty[Name] = list(get_args(Name))
    rows: int = Field(default=400, ge=100, le=10_000, description="of data that are made")
    splits: int = Field(default=10, ge=2, le=1000)
    timed: Name = Field(default="digits", description="the data whose seconds are taken")
    repeats: int = Field(default=11, ge=1, le=1000)
    is_benchmark: ClassVar[bool] = True

    def splits_of(self, name: str) -> tuple[list[np.ndarray], float]:
        """The arrays of all splits and inputs, and the share of the largest class."""
        x, y = load_classes(name, self.rows)
        each = [one for i in range(self.splits) for one in split(x, y, [self.seed, i])]
        return [np.stack(arrays) for arrays in zip(*each, strict=True)], np.bincount(y).max() / len(
            y
        )

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> dict[str, Any]:
        def found(case: tuple[str, str]) -> dict[str, Any]:
            name, kernel = case
            arrays, largest = self.splits_of(name)
            judged = judge_splits(kernel, *map(jnp.asarray, arrays))
            numbers = {what: np.reshape(of, (-1, len(INPUTS))) for what, of in judged.items()}
            return {"data": name, "kernel": kernel, "largest": largest, "numbers": numbers}

        cases = list(itertools.product(self.data, KERNELS))
        results = monitor.collect("cases", cases, found, "{data}, {kernel}".format_map)
        arrays, _ = self.splits_of(self.timed)
        x, y = (jnp.asarray(part[INPUTS.index("standardised")]) for part in arrays[:2])
        timed = functools.partial(seconds_of, x=x, y=y, repeats=self.repeats)
        seconds = monitor.collect("seconds", KERNELS, timed)
        return {"results": results, "seconds": dict(zip(KERNELS, seconds, strict=True))}

    def report(self, results: dict[str, Any], run: Run) -> None:
        rows = list(summarised(results["results"]))
        plain = [row for row in rows if row["inputs"] in PLAIN]
        title = "Accuracy and perplexity of held rows, by the choice of the scale; 95 % intervals"
        run.table_of(title, plain, ("data", "kernel", "inputs", "accuracy", "perplexity"))
        seconds = results["seconds"]
        run.table_of("Seconds", [{"kernel": kernel} | found for kernel, found in seconds.items()])
        ratios = [{"name": kernel} | found for kernel, found in seconds.items()]
        predictions = judge_and_print(run, claims(), [*rows, *ratios], lambda row: row["name"])
        draw_choices(run, rows, seconds)
        ledger = list(ledger_rows(rows, seconds, self.splits))
        found = {"rows": rows, "seconds": seconds, "predictions": predictions, "claims": ledger}
        run.summary(found)


def summarised(results: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The means over splits, of each data set, kernel and kind of inputs, with their intervals."""
    ways = (LEAVE_ONE_OUT, FOLDS, RULE)
    for result, (i, inputs) in itertools.product(results, enumerate(INPUTS)):
        numbers = {what: found[:, i] for what, found in result["numbers"].items()}
        found = {way: numbers[f"accuracy, {way}"] for way in ways}
        yield {
            **{part: result[part] for part in ("data", "kernel", "largest")},
            "inputs": inputs,
            "name": f"{result['data']}, {result['kernel']}, {inputs}",
            "accuracy": {way: mean_of(found[way]) for way in ways},
            "perplexity": {way: float(numbers[f"perplexity, {way}"].mean()) for way in ways},
            "over_folds": mean_of(found[LEAVE_ONE_OUT] - found[FOLDS]),
            "over_rule": mean_of(found[LEAVE_ONE_OUT] - found[RULE]),
            "optimism": mean_of(numbers["estimated"] - found[LEAVE_ONE_OUT]),
        }


def ledger_rows(
    rows: list[dict[str, Any]], seconds: dict[str, dict[str, float]], splits: int
) -> Iterator[Claim]:
    """What can be said of the claims of the paper, and of the question that it leaves open."""

    def over(inputs: tuple[str, ...], value: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
        return mean_of(np.array([value(row) for row in rows if row["inputs"] in inputs]))

    def ends(one: dict[str, float]) -> dict[str, float]:
        low, high = (one["mean"] + sign * one["half_width"] for sign in (-1, 1))
        return {"ours": one["mean"], "low": low, "high": high}

    better = over(PLAIN, lambda row: row["over_folds"]["mean"])
    rule = over(PLAIN, lambda row: row["over_rule"]["mean"])
    chance = over((PERMUTED,), lambda row: row["accuracy"][LEAVE_ONE_OUT]["mean"] - row["largest"])
    seen, unseen = (
        over(inputs, lambda row: row["optimism"]["mean"]) for inputs in ((PROJECTED,), (PERMUTED,))
    )
    permuted = "labels permuted: accuracy less that of the largest class must be 0 or less"
    fails = chance["mean"] < 0.01
    yield Claim(
        claim="leave-one-out chooses scales that are as accurate as those of five folds: the mean "
        "difference over data and kernels is within 0.01",
        source="asked here", figure=0.0, **ends(better), seeds=splits, control=permuted,
        control_figure=chance["mean"],
        verdict=verdict(abs(better["mean"]) + better["half_width"] < 0.01, fails),
    )  # fmt: skip
    yield Claim(
        claim="choosing the scale is more accurate than a fixed one: the mean difference",
        source="arXiv 2602.02162, section 4.3", figure=None, **ends(rule), seeds=splits,
        control=permuted, control_figure=chance["mean"],
        verdict=verdict(rule["mean"] > rule["half_width"], fails),
    )  # fmt: skip
    yield Claim(
        claim="leave-one-out errs if the inputs were fitted to the labels, as embeddings in "
        "context are: labels permuted, estimated less true accuracy",
        source="asked here", figure=None, **ends(seen), seeds=splits,
        control="the same without the projection must be 0", control_figure=unseen["mean"],
        verdict=verdict(seen["mean"] > seen["half_width"], abs(unseen["mean"]) < 0.02),
    )  # fmt: skip
    for kernel, found in seconds.items():
        ratio = found[FOLDS] / found[ONE_FIT]
        yield Claim(
            claim=f"{kernel}: five folds cost this many fits at a given scale",
            source="arXiv 2602.02162", figure="21 to 24", ours=ratio, low=ratio, high=ratio,
            seeds=1, control="leave-one-out in place of the folds must cost less",
            control_figure=found[LEAVE_ONE_OUT] / found[ONE_FIT],
            verdict="cannot be tested here: the times of the paper are those of its network",
        )  # fmt: skip


def claims() -> Claims:
    """What was predicted before the first run."""
    plain = lambda row: row.get("inputs") in PLAIN  # noqa: E731
    timed = lambda row: ONE_FIT in row  # noqa: E731
    many = ("wine", "breast_cancer", "digits", f"moons{NOISY}", f"circles{NOISY}")
    return {
        "leave-one-out and five folds: accuracies are within 0.01": (
            plain,
            lambda row: abs(row["over_folds"]["mean"]) < 0.01,
        ),
        "the accuracy that leave-one-out estimates is within 0.02 of that of held rows": (
            plain,
            lambda row: abs(row["optimism"]["mean"]) < 0.02,
        ),
        "labels permuted: the accuracy is within 0.05 of the share of the largest class": (
            lambda row: row.get("inputs") == PERMUTED,
            lambda row: abs(row["accuracy"][LEAVE_ONE_OUT]["mean"] - row["largest"]) < 0.05,
        ),
        "labels permuted, 13 columns or more, inputs projected by these labels: leave-one-out "
        "estimates 0.05 too much": (
            lambda row: row.get("inputs") == PROJECTED and row["data"] in many,
            lambda row: row["optimism"]["mean"] > 0.05,
        ),
        "18 columns of noise, Gaussian: the accuracy is below 0.9": (
            lambda row: plain(row) and NOISY in row["name"] and row["kernel"] == "Gaussian",
            lambda row: row["accuracy"][LEAVE_ONE_OUT]["mean"] < 0.9,
        ),
        "five folds take 0.5 to 2 times the seconds of leave-one-out": (
            timed,
            lambda row: 0.5 < row[FOLDS] / row[LEAVE_ONE_OUT] < 2.0,
        ),
        "leave-one-out of all numbers of neighbours costs less than two fits": (
            lambda row: timed(row) and row["name"] == "neighbours",
            lambda row: row[LEAVE_ONE_OUT] < 2.0 * row[ONE_FIT],
        ),
        "leave-one-out of 13 scales of the other kernels costs more than five fits": (
            lambda row: timed(row) and row["name"] != "neighbours",
            lambda row: row[LEAVE_ONE_OUT] > 5.0 * row[ONE_FIT],
        ),
    }


def draw_choices(
    run: Run, rows: list[dict[str, Any]], seconds: dict[str, dict[str, float]]
) -> None:
    """The accuracy of the Gaussian kernel by the choice of its scale, and the seconds of all."""
    figure, (left, right) = subplots(1, 2, figsize=(10.4, 3.8))
    here = [row for row in rows if (row["kernel"], row["inputs"]) == ("Gaussian", "standardised")]
    ways = (LEAVE_ONE_OUT, FOLDS, RULE)
    parts = (
        {way: [row["accuracy"][way][part] for row in here] for way in ways}
        for part in ("mean", "half_width")
    )
    draw_dots(left, [row["data"] for row in here], *parts)
    worst = max(abs(row["over_folds"]["mean"]) for row in here)
    left.set(xlabel="accuracy, Gaussian, standardised inputs")
    left.set_title(f"leave-one-out is within {worst:.3f} of five folds")
    fits = {
        way: [found[way] / found[ONE_FIT] for found in seconds.values()]
        for way in (LEAVE_ONE_OUT, FOLDS)
    }
    draw_dots(right, list(seconds), fits)
    most = max(map(max, fits.values()))
    right.set(xlabel="seconds ÷ those of one fit", xscale="log")
    right.set_title(f"choosing among 13 scales costs at most {most:.0f} fits")
    save_with_legend(run, "choices", figure, [left])
