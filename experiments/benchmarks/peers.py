"""Errors, seconds and intervals on small real data, against the regressors of other libraries.

Each contender selects its hyperparameters from the rows that it is given, anew in each fold. Errors
are of labels left out, with the same folds for all. Seconds are those of selection and fit on all
rows: the median of several interleaved rounds.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Bundled, FieldError, Positive
from ..reports import draw_dots, save_with_legend, subplots
from ..runs import Run
from ..studies import Keys, load
from .benchmark import Benchmark, Results
from .driver import Case
from .regressors import BOTH, KERNEL_REGRESSOR, OURS, REGRESSORS, Regressor
from .reports import target
from .scikit_learn_data import ScikitLearn

CLOSE = 1.01  # errors within one hundredth count as equal
SIMPLE = ("neighbours", "ridge")
LESS_R_SQUARED = -0.01  # than the better of these, at least


COLUMNS = ("data", "contender", "seconds", "first", "error", "over_best", "r_squared")
COLUMNS += ("mean_square_over_ours", "standard_error_of_that", "coverage", "width")
Contender: Any = Literal[tuple(REGRESSORS)]


class Peers(Benchmark):
    """Cross-validated error, seconds and coverage, by data set and contender."""

    study: Literal["peers"]
    precision: Literal["float32", "float64"] = "float64"
    data: list[Annotated[Bundled | ScikitLearn, Field(discriminator="source")]] = Field(
        min_length=1, max_length=12
    )
    contenders: list[Contender] = Field(  # pyright: ignore[reportInvalidTypeForm]
        default=list(REGRESSORS),
        min_length=1,
        description="the first is compared with the others",
    )
    folds: int = Field(default=5, ge=2, le=100)
    level: float = Field(default=0.95, gt=0, lt=1)
    orders: list[Literal[0, 1, 2]] = Field(
        default=[0, 1, 2], min_length=1, description="ours: the one of minimum leave-one-out error"
    )
    iterations: list[Annotated[int, Field(ge=1, le=1024)]] = Field(
        default=[1, 2, 8, 32],
        min_length=1,
        max_length=12,
        description="of bias reduction, ours too, orders 0 and 1: those of minimum AICc",
    )
    starts: int = Field(default=10, ge=1, le=1000)
    restarts: int = Field(default=3, ge=0, le=100, description="of the Gaussian process")
    repeats: int = Field(default=15, ge=1, le=1000)
    max_seconds: Positive = 5.0
    max_run_seconds: Positive = Field(
        default=40.0, description="another library that took more is not run again, nor its folds"
    )
    axes: ClassVar = ("data",)
    compared: ClassVar = tuple(REGRESSORS)

    def check(self) -> None:
        for place, part in enumerate(self.data):
            n = len(load(part, self.keys().next()).x)
            if 3 * self.folds > 2 * n:
                raise FieldError(
                    ("folds",),
                    f"expected up to {2 * n // 3}: data.{place} has {n} rows; got {self.folds}",
                )

    def make_case(self, key: PRNGKeyArray, data_set: Bundled | ScikitLearn) -> Case:
        """Returns the `Case` that times and cross-validates regressors on one data set."""
        data = load(data_set, Keys(key).next())
        x, y = np.asarray(data.x), np.asarray(data.y)
        made: dict[str, Regressor] = {}

        def make(name: str) -> Callable[[], Any]:
            made[name] = REGRESSORS[name](self, x.shape[1])
            return functools.partial(made[name], x, y)

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            chosen = {name: fitted.chosen for name, fitted in results.items()}
            seconds = {name: 0.0 if name in OURS else row["median"][name] for name in made}
            quick = {name: of for name, of in made.items() if seconds[name] <= self.max_run_seconds}
            return {"chosen": chosen, "folds": self._cross_validate_all(quick, x, y)}

        contenders = {name: functools.partial(make, name) for name in self.contenders}
        fields = {"data": label(data_set), "rows": len(x), "inputs": x.shape[1]}
        return Case(fields, label(data_set), contenders, check)

    def _cross_validate_all(
        self, contenders: Mapping[str, Regressor], x: np.ndarray, y: np.ndarray
    ) -> dict[str, dict[str, float]]:
        """Returns, by contender, numbers of its predictions of left-out rows: root mean squared
        `error`, its ratio to the lowest one, `r_squared`, the excess over ours (the first of the
        contenders), and `coverage` and `width` of its intervals.
        """
        fold = np.random.default_rng(self.seed).permutation(len(x)) % self.folds
        found: dict[str, dict[str, float]] = {name: {} for name in contenders}
        squares: dict[str, np.ndarray] = {}
        for name, contender in contenders.items():
            centre, *ends = self._predict_left_out(contender, x, y, fold)
            squares[name] = (centre - y) ** 2
            if ends:
                inside, width = (ends[0] <= y) & (y <= ends[1]), np.mean(ends[1] - ends[0])
                found[name] |= {"coverage": float(np.mean(inside)), "width": float(width)}
        errors = {name: float(np.sqrt(np.mean(values))) for name, values in squares.items()}
        first, best = squares[self.contenders[0]], np.nanmin(list(errors.values()))
        for name, error in errors.items():
            # paired: of the same rows
            worse = (squares[name] - first) / np.mean(first)
            found[name] |= {
                "error": error,
                "r_squared": 1.0 - error**2 / float(np.var(y)),
                "over_best": error / best,
                "mean_square_over_ours": float(np.mean(worse)),
                "standard_error_of_that": float(np.std(worse, ddof=1) / np.sqrt(len(y))),
            }
        return found

    def _predict_left_out(
        self, contender: Regressor, x: np.ndarray, y: np.ndarray, fold: np.ndarray
    ) -> np.ndarray:
        """Predicts every row of x by a fit that has seen no row of its fold; `fold`: the number of
        the fold of each row.
        """
        parts, fewest = [], len(x) - -(-len(x) // self.folds)
        for number in range(self.folds):
            # as many rows for each fold, one less than there are for some: one program serves all
            seen = np.flatnonzero(fold != number)[:fewest]
            parts.append(contender(x[seen], y[seen]).predict(x[fold == number], self.level))
        back = np.argsort(np.argsort(fold, kind="stable"), kind="stable")
        return np.concatenate(parts, axis=1)[:, back]

    def print_tables(self, results: Results, run: Run) -> None:
        rows = results.table
        run.table_of(
            f"Seconds to choose and fit, median of up to {self.repeats} runs, and of the first; "
            f"over {self.folds} folds: root mean squared error, over the minimum, R², the mean "
            f"square less that of {self.contenders[0]}, and {100 * self.level:g} % intervals",
            [
                {"data": row["data"], "contender": name, "seconds": seconds}
                | {"first": row["first"][name], **row["folds"].get(name, {})}
                for row in rows
                for name, seconds in row["median"].items()
            ],
            COLUMNS,
        )
        for row in rows:
            for name, seconds in row["median"].items():
                if name not in row["folds"]:
                    spent = f"one run takes {seconds:.0f} s, more than max_run_seconds"
                    run.note([f"{name} at {row['data']}: its folds are not run: {spent}"])

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        """Targets of each of ours: the error over the minimum, and the speed against peers; for
        `KernelRegressor` R² against ridge and neighbours.

        The peer of a data set is the slowest one whose error is within one hundredth of ours.
        """
        for name in BOTH:
            error, faster = {}, {}
            for row in (row for row in results.table if name in row["folds"]):
                folds, median, data = row["folds"], row["median"], row["data"]
                error[data] = folds[name]["over_best"]
                equals = {
                    other: median[other] / median[name]
                    for other, found in folds.items()
                    if other not in OURS and found["error"] <= CLOSE * folds[name]["error"]
                }
                if equals:
                    slowest = max(equals, key=lambda other: equals[other])
                    faster[f"{data}, {slowest}"] = equals[slowest]
            if error:
                yield target(f"{name}: error over the minimum", CLOSE, error, at_most=True)
                title = f"{name}: seconds over its own, slowest with an equal error"
                yield target(title, 10.0, faster)
        less = {}
        for row in results.table:
            squared = {name: found["r_squared"] for name, found in row["folds"].items()}
            if {KERNEL_REGRESSOR, *SIMPLE} <= squared.keys():
                less[row["data"]] = squared[KERNEL_REGRESSOR] - max(squared[n] for n in SIMPLE)
        if less:
            title = f"{KERNEL_REGRESSOR}: R² less that of the better of {' and '.join(SIMPLE)}"
            yield target(title, LESS_R_SQUARED, less)

    def draw(self, results: Results, run: Run) -> None:
        rows, missing = results.table, {"over_best": np.nan}
        figure, (left, right) = subplots(1, 2, sharey=True, figsize=(8.4, 1.6 + 0.42 * len(rows)))
        names = [name for name in self.compared if any(name in row["median"] for row in rows)]
        seconds = {name: [row["median"].get(name, np.nan) for row in rows] for name in names}
        above = {
            name: [100 * (row["folds"].get(name, missing)["over_best"] - 1) for row in rows]
            for name in names
        }
        for ax, values in ((left, above), (right, seconds)):
            draw_dots(ax, [row["data"] for row in rows], values)
            for line in ax.lines:
                line.set_fillstyle("full" if line.get_label() in OURS else "none")
            ax.grid(axis="y", linewidth=0.4, color=(ak.plot.GREY, 0.4))
        left.axvline(100.0 * (CLOSE - 1.0), color=ak.plot.ink(), linestyle=":", linewidth=0.9)
        left.set_xscale("symlog", linthresh=1.0)
        left.set_xticks(ticks := [0, 1, 3, 10, 30, 100], map(str, ticks))
        left.set(xlabel="error of labels left out, above the minimum (%)")
        left.margins(x=0.08)
        right.set(xscale="log", xlabel="seconds to choose and fit, warm (median)")
        save_with_legend(run, "peers", figure, [left, right], columns=4)


def label(part: Bundled | ScikitLearn) -> str:
    """A data set, and its inputs where they are not the usual ones."""
    if isinstance(part, ScikitLearn) or part.x is None:
        return part.name
    return f"{part.name} {part.x if isinstance(part.x, str) else ','.join(part.x)}"
