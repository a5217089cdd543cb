"""Masked hold-out: one lengthscale fitted per hold-out size, all sizes in one program."""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Data, HoldOutSize, Model, Training, outside_bounds
from ..reports import draw_fits, panels, save_with_legend, smoothing_verdicts
from ..runs import NO_MONITOR, Monitor, Run
from . import study as base
from .training import require_finite

LINES = ["-", "--", "-.", ":"]
UNSETTLED = (
    "held out {hold_out}: after {steps} steps the training had not settled. Its lengthscale "
    "{lengthscale:.4g} has a larger expected error than {minimum:.4g}, the fitted one, by more "
    "than two standard errors of their difference."
)


class HoldOut(base.HoldOutStudy):
    """How much to hold out? A fit for each size, and the curves that they give."""

    study: Literal["holdout"]
    data: Data
    model: Model = Model()
    training: Training = Training()
    hold_out: list[HoldOutSize] = Field(min_length=1, max_length=12)

    varying: ClassVar = ("seed", "model.lengthscale", "training.learning_rate", "hold_out")

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> base.Fits:
        """All sizes at once: a hold-out is a mask, so the sizes are numbers of one program."""
        keys = base.Keys(key)
        data = self.data.load(keys.next())
        rows, steps = base.HoldOutSizes.from_config(self.hold_out, len(data.y)), self.training.steps

        def log(done: int, history: dict[str, Any]) -> str:
            losses = history["loss"][:, 0]
            path = np.asarray(self.model.shown(history["lengthscale"][:, 0]))
            sizes = rows.sizes.tolist()
            monitor.step_metrics(done, "hold_out", sizes, loss=losses, lengthscale=path)
            return "loss " + " ".join(f"{loss:.3f}" for loss in losses[:, -1])

        options: dict[str, Any] = {"objective": rows.objective(), "in_axes": (None, None, 0)}
        options |= self.training.options(keys.stack(len(rows.sizes)))
        hooks = {"record": base.lengthscale_of, "log": log, "chunk": min(100, max(1, steps // 4))}
        with monitor.fit("training", steps, **hooks) as following:
            fits = ak.fit_many(self.model.make(), data.x, data.y, **options, **following)
        table = {
            "hold_out": rows.sizes,
            **self.model.parameters(fits.model.kernel),
            "loss": fits.loss,
            "leave_one_out": base.leave_one_out_errors(fits.model, data.x, data.y),
        }
        return base.Fits(data, fits, {"fits": table}, jnp.any(fits.starts.diverged))

    def report(self, results: base.Fits, run: Run) -> None:
        data, fits = results.data, results.fits
        columns, minima = self._minima_of_the_expected_error(results)
        summary = base.tables_as_rows({"fits": results.numbers["fits"] | columns})
        rows, steps = summary["fits"], self.training.steps
        run.note([*fits.warnings(), *minima.warnings()])
        for i, row in enumerate(rows):
            length = fits.member(i).model.kernel.lengthscale
            run.note(outside_bounds(length, data, self.model, f"held out {row['hold_out']}"))
            if not row["settled"]:
                run.note([UNSETTLED.format(steps=steps, **row)])
        self._draw(run, results, minima, rows)
        run.table_of(
            f"Masked hold-out, kernel {self.model.words()}: {self.model.letter()} at the minimum "
            f"of the expected error, at step {steps}, and on average of the last half",
            rows,
            ("hold_out", "minimum", "minimum_error", "standard_error", "lengthscale", "average"),
        )
        run.summary({"data": base.describe(data), **self.model.named(), **summary})
        require_finite(fits)

    def _minima_of_the_expected_error(self, results: base.Fits) -> tuple[dict[str, Any], ak.Fit]:
        """Returns columns of the table, and the fits by the expected hold-out error.

        A training has settled if its last lengthscale is as good as the minimum, within two
        standard errors of the difference over rows. `average`: of its last half.
        """
        data, fits = results.data, results.fits
        sizes, n = jnp.asarray(results.numbers["fits"]["hold_out"]), len(data.y)
        # 2²¹ pairs for each size and evaluation: a second for the 150 rows of the shipped config
        expected = ak.objectives.ExpectedHoldOut(sizes, int(np.clip(2**21 // n**2, 2, 100)))
        options = {"objective": expected, "in_axes": (0, None, 0), "starts": 1}
        found = ak.fit_many(fits.model, data.x, data.y, **options)
        before, after = (  # masked: rows in no block, and predictions without a label in reach
            np.ma.masked_invalid(_scores(models, expected, data.x, data.y))
            for models in (fits.model, found.model)
        )
        worse, draws = (before - after).mean(axis=1), after.mean(axis=2)
        spread = draws.std(axis=1).filled(np.nan)
        spread[spread < 1e-6 * draws.mean(axis=1)] = 0.0  # of one row held out, that of rounding
        is_worse = worse.mean(axis=1) > 2.0 * worse.std(axis=1) / n**0.5
        path = np.log(np.asarray(fits.history["lengthscale"]))
        half = path[:, path.shape[1] // 2 :]
        columns = {
            "minimum": self.model.shown(found.model.kernel.lengthscale),
            "minimum_error": found.loss,
            "standard_error": spread / draws.shape[1] ** 0.5,
            "average": self.model.shown(np.exp(np.mean(half, axis=1))),
            "settled": ~np.ma.filled(is_worse, False),
        }
        return columns, found

    def _draw(self, run: Run, results: base.Fits, minima: ak.Fit, rows: Any) -> None:
        """Draws the fits by the expected hold-out error, and the lengthscales against the training
        step; saves both figures in `run`. `rows`: those of the table.
        """
        data, fits = results.data, results.fits
        sizes, lengths = ([row[key] for row in rows] for key in ("hold_out", "minimum"))
        errors: Any = base.leave_one_out_errors(minima.model, data.x, data.y)
        verdicts = zip(sizes, smoothing_verdicts(lengths, errors), lengths, strict=True)
        titles = [
            f"{size} held out: {verdict} ({self.model.letter()} = {length:#.3g})"
            for size, verdict, length in verdicts
        ]
        members = [minima.member(i) for i in range(len(rows))]
        draw_fits(run, "holdout", data, members, titles, label=self.model.label())

        figure, (ax,) = panels(1, width=6.0, height=3.2)
        path = np.asarray(self.model.shown(fits.history["lengthscale"]))
        path = np.c_[path, [row["lengthscale"] for row in rows]]  # the history is before each step
        for line, size, length, style in zip(path, sizes, lengths, LINES * 3, strict=False):
            (drawn,) = ax.plot(np.arange(len(line)), line, style, label=f"held out {size}")
            ax.plot(len(line) - 1, length, "o", color=drawn.get_color())
        ax.set_yscale("log")
        ax.set(xlabel="step", ylabel=f"{self.model.letter()} (units of x)")
        ax.set_title("Trainings; points: minima of the expected error")
        save_with_legend(run, "training", figure, [ax], lengthscale=path, loss=fits.history["loss"])


@eqx.filter_jit
def _scores(models: Any, expected: Any, x: Array, y: Array) -> Array:
    """The scores of each model, shape (models, permutations, rows)."""
    return eqx.filter_vmap(lambda model, of: of.scores(model, x, y))(models, expected)
