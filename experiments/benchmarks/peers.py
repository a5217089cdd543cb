"""Errors, seconds and intervals on small real data, against the regressors of other libraries.

Each contender selects its hyperparameters from the rows that it is given, anew in each fold. Errors
are of labels left out, with the same folds for all. Seconds are those of selection and fit on all
rows: the median of several interleaved rounds.
"""

import functools
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np
import pydantic
from jaxtyping import PRNGKeyArray
from matplotlib.figure import Figure

from attnkernel.plot import BLUE, GREEN, GREY, ORANGE, PURPLE, ink

from ..config_source import FieldError
from ..panels import legend
from ..parts import Bundled, Name, Positive
from ..run import Run
from ..study import Keys, Study, load
from ..watch import SILENT, Watch
from .driver import available, interleaved, medians, timed
from .regressors import BOTH, OURS, Prediction, Regressor, regressors
from .tables import note_unavailable, table_of_targets, target

CLOSE = 1.01  # errors within one hundredth count as equal


class Results(NamedTuple):
    """A row for each data set, the contenders that ran, and why the others did not."""

    rows: list[dict[str, Any]]
    contenders: list[str]
    unavailable: dict[str, str]


class Peers(Study):
    """Cross-validated error, seconds and coverage, by data set and contender."""

    study: Literal["peers"]
    name: Name = "peers"
    precision: Literal["float32", "float64"] = "float64"
    data: Annotated[list[Bundled], pydantic.Field(min_length=1, max_length=12)]
    folds: Annotated[int, pydantic.Field(ge=2, le=100)] = 5
    level: Annotated[float, pydantic.Field(gt=0, lt=1)] = 0.95
    orders: Annotated[list[Literal[0, 1, 2]], pydantic.Field(min_length=1)] = pydantic.Field(
        default=[0, 1, 2], description="ours: that whose leave-one-out error is least"
    )
    iterations: Annotated[
        list[Annotated[int, pydantic.Field(ge=1, le=1024)]],
        pydantic.Field(min_length=1, max_length=12),
    ] = pydantic.Field(
        default=[1, 2, 8, 32],
        description="of bias reduction, ours too, orders 0 and 1: that whose AICc is least",
    )
    starts: Annotated[int, pydantic.Field(ge=1, le=1000)] = 10
    restarts: Annotated[int, pydantic.Field(ge=0, le=100)] = pydantic.Field(
        default=3, description="of the Gaussian process"
    )
    repeats: Annotated[int, pydantic.Field(ge=1, le=1000)] = 15
    most_seconds: Positive = pydantic.Field(
        default=5.0, description="a contender that takes more for all rounds has fewer"
    )
    peer_seconds: Positive = pydantic.Field(
        default=120.0,
        description="another library has no further run, or no folds, of a data set where the "
        "first run extrapolates to more",
    )
    is_benchmark: ClassVar[bool] = True

    def check(self) -> None:
        for place, part in enumerate(self.data):
            n = len(load(part, self.keys().next()).x)
            if 3 * self.folds > 2 * n:
                raise FieldError(
                    ("folds",),
                    f"expected up to {2 * n // 3}: data.{place} has {n} rows; got {self.folds}",
                )

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> Results:
        contenders, unavailable = available(
            regressors(self.orders, self.iterations, self.starts, self.restarts, self.seed)
        )
        rows: list[dict[str, Any]] = []
        with watch.timed("all"), watch.progress("data sets", len(self.data)) as tick:

            def measure(i: int) -> dict[str, Any]:
                jax.clear_caches()  # a process can hold only so many programs: no data share them
                data = load(self.data[i], Keys(key).next())
                x, y = np.asarray(data.x), np.asarray(data.y)
                row = {"data": label(self.data[i]), "rows": len(x), "inputs": x.shape[1]}
                return row | {"contenders": self._compare(contenders, x, y)}

            for row in watch.each("data", len(self.data), measure):
                rows.append(row)
                watch.metrics([row])
                tick(len(rows), f"{row['data']}: {row['contenders'][OURS]['error']:.4g}")
        return Results(rows, list(contenders), unavailable)

    def _compare(
        self, contenders: dict[str, Regressor], x: np.ndarray, y: np.ndarray
    ) -> dict[str, dict[str, Any]]:
        """One data set: seconds on all rows, then errors and coverage over the folds."""
        found: dict[str, dict[str, Any]] = {}
        for name, contender in contenders.items():
            cold, fitted = timed(lambda: contender(x, y))  # noqa: B023
            found[name] = {"cold": cold, "warm": cold, "chosen": fitted.chosen}
        again = {
            name: functools.partial(contender, x, y)
            for name, contender in contenders.items()
            if name in BOTH or 2 * found[name]["cold"] <= self.peer_seconds
        }
        seconds, _ = interleaved(again, self.repeats, max_seconds=self.most_seconds)
        for name, median in medians(seconds).items():
            found[name] |= {"warm": median, "runs": len(seconds[name])}
        fold = np.random.default_rng(self.seed).permutation(len(x)) % self.folds
        squares: dict[str, np.ndarray] = {}
        for name, contender in contenders.items():
            extrapolated = self.folds * found[name]["warm"]
            if name not in BOTH and extrapolated > self.peer_seconds:
                found[name]["folds_extrapolated"] = extrapolated
                continue
            predicted = self._left_out(contender, x, y, fold)
            squares[name] = (predicted.centre - y) ** 2
            if predicted.lower is not None and predicted.upper is not None:
                inside = (predicted.lower <= y) & (y <= predicted.upper)
                width = np.mean(predicted.upper - predicted.lower)
                found[name] |= {"coverage": float(np.mean(inside)), "width": float(width)}
        ours = squares[OURS]
        errors = {name: float(np.sqrt(np.mean(values))) for name, values in squares.items()}
        for name, error in errors.items():
            worse = (squares[name] - ours) / np.mean(ours)  # paired: of the same rows
            found[name] |= {
                "error": error,
                "over_best": error / np.nanmin(list(errors.values())),
                "mean_square_over_ours": float(np.mean(worse)),
                "standard_error_of_that": float(np.std(worse, ddof=1) / np.sqrt(len(y))),
            }
        return found

    def _left_out(
        self, contender: Regressor, x: np.ndarray, y: np.ndarray, fold: np.ndarray
    ) -> Prediction:
        """Predictions of all rows, each by a fit that has seen no row of its fold."""
        parts, least = [], len(x) - -(-len(x) // self.folds)
        for number in range(self.folds):
            # as many rows for each fold, one less than there are for some: one program serves all
            seen = np.flatnonzero(fold != number)[:least]
            parts.append(contender(x[seen], y[seen]).predict(x[fold == number], self.level))
        back = np.argsort(np.argsort(fold, kind="stable"), kind="stable")
        centre, *ends = (
            None if column[0] is None else np.concatenate(column)[back]
            for column in zip(*parts, strict=True)
        )
        assert centre is not None
        return Prediction(centre, *ends)

    def report(self, results: Results, run: Run) -> None:
        rows, names, unavailable = results
        note_unavailable(run, [(name, "all", reason) for name, reason in unavailable.items()])
        self._draw(run, rows, names)

        def table(title: str, cell: Any) -> None:
            cells = [[cell(row["contenders"][name]) for row in rows] for name in names]
            run.table(
                title,
                ["", *(row["data"] for row in rows)],
                [[name, *of_name] for name, of_name in zip(names, cells, strict=True)],
            )

        table(
            f"Root mean squared error over {self.folds} folds, divided by the least",
            lambda found: f"{found['over_best']:.3f}" if "error" in found else "not run",
        )
        table(
            "The same: mean square over ours, in standard errors of that",
            _in_errors,
        )
        table(
            f"Seconds to choose and fit, median of up to {self.repeats} runs (first run)",
            lambda found: f"{found['warm']:.2g} ({found['cold']:.2g})",
        )
        table(
            f"Share of left-out labels in their {100 * self.level:g} % interval (mean width)",
            lambda found: (
                f"{found['coverage']:.3f} ({found['width']:.3g})" if "width" in found else "none"
            ),
        )
        run.note(
            [
                f"{name} at {row['data']}: its folds are not run: they would take "
                f"{found['folds_extrapolated']:.0f} s, more than peer_seconds"
                for row in rows
                for name, found in row["contenders"].items()
                if "folds_extrapolated" in found
            ]
        )
        targets = targets_of(rows)
        table_of_targets(run, targets)
        run.summary({"folds": self.folds, "rows": rows, "targets": targets})

    def _draw(self, run: Run, rows: list[dict[str, Any]], names: list[str]) -> None:
        figure = Figure(figsize=(8.4, 1.6 + 0.42 * len(rows)))
        axes = figure.subplots(1, 2, sharey=True)
        places, arrays = np.arange(len(rows)), {}
        looks = zip(
            "oPs^Dv*X", (BLUE, BLUE, *2 * (ORANGE,), *2 * (GREEN,), PURPLE, ink()), strict=True
        )
        known = regressors([], [], 0, 0, 0)
        for i, (name, (marker, color)) in enumerate(zip(known, looks, strict=True)):
            if name not in names:
                continue
            for ax, what in zip(axes, ("over_best", "warm"), strict=True):
                values = [row["contenders"][name].get(what, np.nan) for row in rows]
                arrays[f"{name.replace(' ', '_')}_{what}"] = values
                if what == "over_best":
                    values = 100.0 * (np.asarray(values, float) - 1.0)
                # ours filled, and above the others
                face, order = (color, 3) if name in BOTH else ("none", 2)
                style = {"color": color, "markerfacecolor": face, "zorder": order}
                ax.plot(
                    values, places + 0.08 * (i - 3.5), marker, label=name, markersize=5.5, **style
                )
        axes[0].axvline(100.0 * (CLOSE - 1.0), color=ink(), linestyle=":", linewidth=0.9)
        axes[0].set_xscale("symlog", linthresh=1.0)
        axes[0].set_xticks(ticks := [0, 1, 3, 10, 30, 100], map(str, ticks))
        axes[0].set(xlabel="error of labels left out, above the least (%)")
        axes[0].margins(x=0.08)
        axes[1].set(xscale="log", xlabel="seconds to choose and fit, warm (median)")
        axes[0].set_yticks(places, [row["data"] for row in rows])
        axes[0].invert_yaxis()
        for ax in axes:
            ax.grid(axis="y", linewidth=0.4, color=(GREY, 0.4))
        legend(figure, list(axes), columns=4)
        run.figure("peers", figure, data=[row["data"] for row in rows], **arrays)


def label(part: Bundled) -> str:
    """A data set, and its inputs where they are not the usual ones."""
    if part.x is None:
        return part.name
    return f"{part.name} {part.x if isinstance(part.x, str) else ','.join(part.x)}"


def _in_errors(found: dict[str, Any]) -> str:
    """By how many standard errors a mean square is above ours."""
    if not found.get("standard_error_of_that"):
        return ""
    return f"{found['mean_square_over_ours'] / found['standard_error_of_that']:+.1f}"


def targets_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For both of ours: its error against the least, and its time against the slowest other whose
    error is as small."""
    targets = []
    for name in BOTH:
        error = {row["data"]: row["contenders"][name]["over_best"] for row in rows}
        faster = {}
        for row in rows:
            ours = row["contenders"][name]
            equals = {
                other: found["warm"] / ours["warm"]
                for other, found in row["contenders"].items()
                if other not in BOTH and found.get("error", np.inf) <= CLOSE * ours["error"]
            }
            if equals:
                slowest = max(equals, key=lambda other: equals[other])
                faster[f"{row['data']}, {slowest}"] = equals[slowest]
        targets += [
            target(f"{name}: error over the least", CLOSE, error, at_most=True),
            target(f"{name}: seconds over its own, slowest with an equal error", 10.0, faster),
        ]
    return targets
