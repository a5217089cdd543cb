"""Errors, seconds and intervals on small real data, beside what others use in their place.

Each side chooses all that it has to choose from the rows that it is given, so in each fold anew.
Errors are of labels left out, of the same folds for all. Seconds are those of choosing and fitting
on all rows, all sides in turn in one process: the median of several rounds.
"""

import functools
from typing import Annotated, Any, ClassVar, Literal

import jax
import numpy as np
import pydantic
from matplotlib.figure import Figure

from attnkernel.plot import BLUE, GREEN, GREY, ORANGE, PURPLE, ink

from ..config import FieldError
from ..panels import legend
from ..parts import Bundled, Name, Positive
from ..run import Run
from ..study import Study, load
from .driver import (
    available,
    interleaved,
    medians,
    note_unavailable,
    table_of_targets,
    target,
    timed,
)
from .regressors import BOTH, OURS, Prediction, Regressor, regressors

CLOSE = 1.01  # errors within one hundredth count as equal


class Peers(Study):
    """One table over data sets and sides: cross-validated error, seconds, coverage."""

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
        default=5.0, description="a side that takes more for all repeats has fewer, but one"
    )
    peer_seconds: Positive = pydantic.Field(
        default=120.0,
        description="another library has no further run, or no folds, of a data set where the "
        "first run foretells more",
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

    def run(self, run: Run) -> None:
        sides, absent = available(
            regressors(self.orders, self.iterations, self.starts, self.restarts, self.seed)
        )
        note_unavailable(run, [(name, "all", reason) for name, reason in absent.items()])
        rows: list[dict[str, Any]] = []
        with run.timed("all"), run.progress("data sets", len(self.data)) as tick:

            def compute(i: int) -> dict[str, Any]:
                jax.clear_caches()  # a process can hold only so many programs: no data share them
                data = load(self.data[i], self.keys().next())
                x, y = np.asarray(data.x), np.asarray(data.y)
                row = {"data": label(self.data[i]), "rows": len(x), "inputs": x.shape[1]}
                return row | {"sides": self._compare(sides, x, y)}

            for row in run.each("data", len(self.data), compute):
                rows.append(row)
                run.metrics([row])
                tick(len(rows), f"{row['data']}: {row['sides'][OURS]['error']:.4g}")
        self._report(run, rows, list(sides))

    def _compare(
        self, sides: dict[str, Regressor], x: np.ndarray, y: np.ndarray
    ) -> dict[str, dict[str, Any]]:
        """One data set: seconds on all rows, then errors and coverage over the folds."""
        found: dict[str, dict[str, Any]] = {}
        for name, side in sides.items():
            cold, fitted = timed(lambda: side(x, y))  # noqa: B023
            found[name] = {"cold": cold, "warm": cold, "chosen": fitted.chosen}
        again = {
            name: functools.partial(side, x, y)
            for name, side in sides.items()
            if name in BOTH or 2 * found[name]["cold"] <= self.peer_seconds
        }
        seconds, _ = interleaved(again, self.repeats, most_seconds=self.most_seconds)
        for name, median in medians(seconds).items():
            found[name] |= {"warm": median, "runs": len(seconds[name])}
        fold = np.random.default_rng(self.seed).permutation(len(x)) % self.folds
        squares: dict[str, np.ndarray] = {}
        for name, side in sides.items():
            foretold = self.folds * found[name]["warm"]
            if name not in BOTH and foretold > self.peer_seconds:
                found[name]["folds_foretold"] = foretold
                continue
            predicted = self._left_out(side, x, y, fold)
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
        self, side: Regressor, x: np.ndarray, y: np.ndarray, fold: np.ndarray
    ) -> Prediction:
        """Predictions of all rows, each by a fit that has seen no row of its fold."""
        parts, least = [], len(x) - -(-len(x) // self.folds)
        for number in range(self.folds):
            # as many rows for each fold, one less than there are for some: one program serves all
            seen = np.flatnonzero(fold != number)[:least]
            parts.append(side(x[seen], y[seen]).predict(x[fold == number], self.level))
        back = np.argsort(np.argsort(fold, kind="stable"), kind="stable")
        centre, *ends = (
            None if column[0] is None else np.concatenate(column)[back]
            for column in zip(*parts, strict=True)
        )
        assert centre is not None
        return Prediction(centre, *ends)

    def _report(self, run: Run, rows: list[dict[str, Any]], names: list[str]) -> None:
        self._draw(run, rows, names)

        def table(title: str, cell: Any) -> None:
            cells = [[cell(row["sides"][name]) for row in rows] for name in names]
            run.table(
                title,
                ["", *(row["data"] for row in rows)],
                [[name, *of_name] for name, of_name in zip(names, cells, strict=True)],
            )

        table(
            f"Root mean squared error over {self.folds} folds, divided by the least",
            lambda side: f"{side['over_best']:.3f}" if "error" in side else "not run",
        )
        table(
            "The same: mean square over ours, in standard errors of that",
            _in_errors,
        )
        table(
            f"Seconds to choose and fit, median of up to {self.repeats} runs (first run)",
            lambda side: f"{side['warm']:.2g} ({side['cold']:.2g})",
        )
        table(
            f"Share of left-out labels in their {100 * self.level:g} % interval (mean width)",
            lambda side: (
                f"{side['coverage']:.3f} ({side['width']:.3g})" if "width" in side else "none"
            ),
        )
        run.note(
            [
                f"{name} at {row['data']}: its folds are not run: they would take "
                f"{side['folds_foretold']:.0f} s, more than peer_seconds"
                for row in rows
                for name, side in row["sides"].items()
                if "folds_foretold" in side
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
                values = [row["sides"][name].get(what, np.nan) for row in rows]
                arrays[f"{name.replace(' ', '_')}_{what}"] = values
                if what == "over_best":
                    values = 100.0 * (np.asarray(values, float) - 1.0)
                # ours filled, and above what it meets
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


def _in_errors(side: dict[str, Any]) -> str:
    """By how many standard errors a mean square is above ours."""
    if not side.get("standard_error_of_that"):
        return ""
    return f"{side['mean_square_over_ours'] / side['standard_error_of_that']:+.1f}"


def targets_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For both of ours: its error against the least, and its time against the slowest other whose
    error is as small."""
    targets = []
    for side in BOTH:
        error = {row["data"]: row["sides"][side]["over_best"] for row in rows}
        faster = {}
        for row in rows:
            ours = row["sides"][side]
            equals = {
                name: other["warm"] / ours["warm"]
                for name, other in row["sides"].items()
                if name not in BOTH and other.get("error", np.inf) <= CLOSE * ours["error"]
            }
            if equals:
                slowest = max(equals, key=lambda name: equals[name])
                faster[f"{row['data']}, {slowest}"] = equals[slowest]
        targets += [
            target(f"{side}: error over the least", CLOSE, error, at_most=True),
            target(f"{side}: seconds over its own, slowest with an equal error", 10.0, faster),
        ]
    return targets
