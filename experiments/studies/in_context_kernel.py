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
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..benchmarks.driver import interleaved, medians
from ..config import NonEmpty
from ..reports import draw_dots, save_with_legend, subplots
from ..reports.predictions import Claims, judge_and_print, mean_of, where
from ..runs import NO_MONITOR, Monitor, Run
from .claims import Claim, of_repetitions, verdict
from .study import Study

KERNELS = ("Gaussian", "dot product", "neighbours")
PLAIN, PERMUTED, PROJECTED = ("raw", "standardised"), "permuted", "permuted, projected"
INPUTS = (*PLAIN, PERMUTED, PROJECTED)
WAYS = LEAVE_ONE_OUT, FOLDS, RULE = "leave-one-out", "five folds", "fixed rule"
ONE_FIT = "one fit"
DRAWN = {"moons": {"noise": 0.25}, "circles": {"noise": 0.15, "factor": 0.5}}
NOISY = ", 18 columns of noise"
Name = Literal[
    "iris", "wine", "breast_cancer", "digits", "moons", "circles",
    "moons, 18 columns of noise", "circles, 18 columns of noise",
]  # fmt: skip
COUNTS = (1, 2, 3, 4, 5, 7, 9, 12, 16, 21, 28, 37, 50)  # of neighbours


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
    square = 2.0 * jnp.sum(jnp.var(x, axis=0))  # the mean squared distance of two rows
    shares = jnp.geomspace(0.01, 1.0, 13)
    rule = {"neighbours": 5, "Gaussian": x.shape[1] ** 0.25, "dot product": x.shape[1] ** 0.5}
    scales = {"Gaussian": jnp.sqrt(square) * shares, "dot product": square * shares**2}
    return scales.get(kernel, jnp.array(COUNTS)), jnp.asarray([rule[kernel]])


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
        nearest = y[jax.lax.top_k(near, COUNTS[-1])[1]]
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
    is_right = jnp.argmax(found[best], axis=1) == jnp.argmax(y, axis=1)
    return scales[best], jnp.mean(is_right)


def choose_by_folds(kernel: str, x: Array, y: Array) -> Array:
    """The scale by five folds of consecutive rows, whose number is a multiple of five."""
    scales, _ = scales_of(kernel, x)
    rows = jnp.arange(len(x)).reshape(5, -1)

    def loss(fold: Int[Array, ""]) -> Float[Array, " scales"]:
        held, seen = rows[fold], rows[(fold + jnp.arange(1, 5)) % 5].ravel()
        found = predict(kernel, scales, x[held], x[seen], y[seen])
        return jnp.sum((found - y[held][None]) ** 2, axis=(1, 2))

    return scales[jnp.argmin(jnp.sum(jax.lax.map(loss, jnp.arange(5)), axis=0))]


def perplexity(kernel: str, scale: Array, q: Array, x: Array) -> Float[Array, ""]:
    """The mean over queries of the perplexity of their weights."""
    if kernel == "neighbours":
        return scale
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
            likeliest = jnp.argmax(predict(kernel, scale[None], q, x, y)[0], axis=1)
            numbers[f"accuracy, {way}"] = jnp.mean(likeliest == labels)
            numbers[f"perplexity, {way}"] = perplexity(kernel, scale, q, x)
        return numbers

    return jax.lax.map(judge, splits)


def seconds_of(kernel: str, x: Array, y: Array, repeats: int) -> dict[str, np.ndarray]:
    """Seconds, warm and in turn: leave-one-out at one scale, and both ways to choose one."""
    one = scales_of(kernel, x)[1]
    works = {
        ONE_FIT: lambda x, y: predict(kernel, one, x, x, y, leave_out=True),
        LEAVE_ONE_OUT: functools.partial(choose_by_leave_one_out, kernel),
        FOLDS: functools.partial(choose_by_folds, kernel),
    }
    timed = {way: functools.partial(jax.jit(work), x, y) for way, work in works.items()}
    return {way: np.array(each) for way, each in interleaved(timed, repeats).seconds.items()}


class InContextKernel(Study):
    """Accuracy, perplexity and seconds of kernels over the context, by the choice of the scale."""

    study: Literal["in_context_kernel"]
    data: NonEmpty[Name] = list(get_args(Name))
    rows: int = Field(default=400, ge=100, le=10_000, description="of data that are made")
    splits: int = Field(default=10, ge=2, le=1000)
    timed: Name = Field(default="digits", description="the data whose seconds are taken")
    repeats: int = Field(default=11, ge=2, le=1000)
    is_benchmark: ClassVar[bool] = True

    def splits_of(self, name: str) -> tuple[list[np.ndarray], float]:
        """The arrays of all splits and inputs, and the share of the largest class."""
        x, y = load_classes(name, self.rows)
        each = [one for i in range(self.splits) for one in split(x, y, [self.seed, i])]
        arrays = [np.stack(parts) for parts in zip(*each, strict=True)]
        return arrays, np.bincount(y).max() / len(y)

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
        columns = ("data", "kernel", "inputs", "accuracy", "perplexity")
        run.table_of("By the choice of the scale; 95 % intervals", plain, columns)
        seconds = {kernel: medians(found) for kernel, found in results["seconds"].items()}
        times = [{"name": kernel} | found for kernel, found in seconds.items()]
        predictions = judge_and_print(run, claims(), [*rows, *times], itemgetter("name"))
        draw_choices(run, rows)
        ledger = list(ledger_rows(results["results"], results["seconds"]["Gaussian"]))
        found = {"rows": rows, "seconds": seconds, "predictions": predictions}
        run.summary(found | {"claims": ledger})


def summarised(results: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The means over splits, of each data set, kernel and kind of inputs, with their intervals."""
    for result, (i, inputs) in itertools.product(results, enumerate(INPUTS)):
        numbers = {what: found[:, i] for what, found in result["numbers"].items()}
        found = {way: numbers[f"accuracy, {way}"] for way in WAYS}
        best = found[LEAVE_ONE_OUT]
        yield {
            **{part: result[part] for part in ("data", "kernel", "largest")},
            "inputs": inputs,
            "name": f"{result['data']}, {result['kernel']}, {inputs}",
            "accuracy": {way: mean_of(found[way]) for way in WAYS},
            "perplexity": {way: float(numbers[f"perplexity, {way}"].mean()) for way in WAYS},
            "optimism": mean_of(numbers["estimated"] - best),
            "over_folds": mean_of(best - found[FOLDS]),
            "over_rule": mean_of(best - found[RULE]),
            "over_largest": mean_of(best - result["largest"]),
        }


def ledger_rows(results: list[dict[str, Any]], seconds: dict[str, np.ndarray]) -> Iterator[Claim]:
    """What can be said of the claims of the paper, and of the question that it leaves open.

    Each number is the mean over data and kernels, with an interval over splits.
    """

    def of_splits(*inputs: str, less: str, what: str = f"accuracy, {LEAVE_ONE_OUT}") -> np.ndarray:
        """A number less another, of the given kinds of inputs, by split."""
        columns = [INPUTS.index(one) for one in inputs]
        each = [(row["numbers"][what] - row["numbers"][less])[:, columns] for row in results]
        return np.mean(each, axis=(0, 2))

    asked, of_folds, of_rule = "asked here", f"accuracy, {FOLDS}", f"accuracy, {RULE}"
    folds = of_repetitions(of_splits(*PLAIN, less=of_folds))
    control = "a fixed scale is not", float(of_splits(*PLAIN, what=of_rule, less=of_folds).mean())
    judged = verdict(max(-folds[1], folds[2]) < 0.01, abs(control[1]) >= 0.01)
    words = "leave-one-out chooses scales as accurate as five folds, on average within 0.01"
    yield Claim(words, asked, 0.0, *folds, *control, judged)
    rule, chance = (of_repetitions(of_splits(*of, less=of_rule)) for of in (PLAIN, (PERMUTED,)))
    words = "a scale that is chosen is more accurate than a fixed one"
    control = "labels permuted: it is not", chance[0]
    yield Claim(words, asked, None, *rule, *control, verdict(rule[1] > 0, chance[1] <= 0))
    optimism = functools.partial(of_splits, what="estimated", less=f"accuracy, {LEAVE_ONE_OUT}")
    seen, unseen = (of_repetitions(optimism(kind)) for kind in (PROJECTED, PERMUTED))
    words = "of inputs that were fitted to the labels, leave-one-out estimates too much accuracy"
    control = "of the same inputs as they are it does not", unseen[0]
    yield Claim(words, asked, None, *seen, *control, verdict(seen[1] > 0, unseen[1] <= 0))
    other, ratio = (of_repetitions(seconds[way] / seconds[ONE_FIT]) for way in WAYS[:2])
    words, control = "five folds cost so many fits, Gaussian", "leave-one-out costs so many"
    why = "cannot be tested here: in the paper each fold is a run of a network, which is not had"
    yield Claim(words, "arXiv 2602.02162", "21 to 24", *ratio, control, other[0], why)


def claims() -> Claims:
    """What was predicted before the first run."""
    plain = lambda row: row.get("inputs") in PLAIN  # noqa: E731
    timed = lambda row: ONE_FIT in row  # noqa: E731
    many = ("wine", "breast_cancer", "digits", f"moons{NOISY}", f"circles{NOISY}")
    return {
        "leave-one-out and five folds: accuracies are within 0.01": where(
            plain,
            lambda row: abs(row["over_folds"]["mean"]) < 0.01,
        ),
        "the accuracy that leave-one-out estimates is within 0.02 of that of held rows": where(
            plain,
            lambda row: abs(row["optimism"]["mean"]) < 0.02,
        ),
        "labels permuted: the accuracy is within 0.05 of the share of the largest class": where(
            lambda row: row.get("inputs") == PERMUTED,
            lambda row: abs(row["over_largest"]["mean"]) < 0.05,
        ),
        "labels permuted, 13 columns or more, inputs projected by these labels: leave-one-out "
        "estimates 0.05 too much": where(
            lambda row: row.get("inputs") == PROJECTED and row["data"] in many,
            lambda row: row["optimism"]["mean"] > 0.05,
        ),
        "five folds take 0.5 to 2 times the seconds of leave-one-out": where(
            timed,
            lambda row: 0.5 < row[FOLDS] / row[LEAVE_ONE_OUT] < 2.0,
        ),
        "leave-one-out costs less than two fits of neighbours, and more than five of "
        "the others": where(
            timed,
            lambda row: (
                row[LEAVE_ONE_OUT] < 2.0 * row[ONE_FIT]
                if row["name"] == "neighbours"
                else row[LEAVE_ONE_OUT] > 5.0 * row[ONE_FIT]
            ),
        ),
    }


def draw_choices(run: Run, rows: list[dict[str, Any]]) -> None:
    """The accuracy of the Gaussian kernel by the choice of its scale."""
    figure, ax = subplots(figsize=(7.2, 4.2))
    here = [row for row in rows if (row["kernel"], row["inputs"]) == ("Gaussian", "standardised")]
    means, widths = (
        {way: [row["accuracy"][way][part] for row in here] for way in WAYS}
        for part in ("mean", "half_width")
    )
    draw_dots(ax, [row["data"] for row in here], means, widths)
    worst = max(abs(row["over_folds"]["mean"]) for row in here)
    ax.set(xlabel="accuracy of held rows, Gaussian kernel, standardised columns")
    ax.set_title(f"Leave-one-out is within {worst:.3f} of five folds on all data")
    save_with_legend(run, "choices", figure, [ax])
