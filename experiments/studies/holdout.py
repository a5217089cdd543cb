"""Masked hold-out: one lengthscale fitted per hold-out size, all sizes in one program."""

from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Data, HoldOutSize, Model, Training, outside_bounds
from ..reports import draw_fits, panels, save_with_legend, smoothing_verdicts
from ..runs import NO_MONITOR, Monitor, Run
from . import study as base
from .training import require_finite

_LINES = ["-", "--", "-.", ":"]


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

        chunk = min(100, max(1, steps // 4))
        with monitor.fit(
            "training", steps, record=base.lengthscale_of, log=log, chunk=chunk
        ) as following:
            fits = ak.fit_many(
                self.model.make(),
                data.x,
                data.y,
                objective=rows.objective(),
                in_axes=(None, None, 0),
                optimizer=self.training.make(),
                steps=steps,
                key=keys.stack(len(rows.sizes)),
                **following,
            )
        table = {
            "hold_out": rows.sizes,
            **self.model.parameters(fits.model.kernel),
            "loss": fits.loss,
            "leave_one_out": base.leave_one_out_errors(fits.model, data.x, data.y),
        }
        return base.Fits(data, fits, {"fits": table}, jnp.any(fits.starts.diverged))

    def report(self, results: base.Fits, run: Run) -> None:
        data, fits = results.data, results.fits
        summary = base.tables_as_rows(results.numbers)
        rows = summary["fits"]
        run.note(fits.warnings())
        for i, row in enumerate(rows):
            length = fits.member(i).model.kernel.lengthscale
            run.note(outside_bounds(length, data, self.model, f"held out {row['hold_out']}"))
        self._draw_fits_and_training(run, results, rows)
        run.table_of(
            f"Masked hold-out, kernel {self.model.words()}",
            rows,
            {
                "held out": "{hold_out}",
                "fitted ℓ": "{lengthscale:#.4g}",
                "last loss": "{loss:#.4g}",
                "leave-one-out error": "{leave_one_out:#.4g}",
            },
        )
        run.summary({"data": base.describe(data), **self.model.named(), **summary})
        require_finite(fits)

    def _draw_fits_and_training(
        self, run: Run, results: base.Fits, rows: list[dict[str, Any]]
    ) -> None:
        """Draws the fit of each hold-out size, and the lengthscales against the training step;
        saves both figures in `run`. `rows`: those of the table.
        """
        data, fits = results.data, results.fits
        sizes = [row["hold_out"] for row in rows]
        lengths, errors = ([row[key] for row in rows] for key in ("lengthscale", "leave_one_out"))
        titles = [
            f"{size} held out: {verdict} (ℓ = {length:#.3g})"
            for size, verdict, length in zip(
                sizes, smoothing_verdicts(lengths, errors), lengths, strict=True
            )
        ]
        members = [fits.member(i) for i in range(len(rows))]
        draw_fits(run, "holdout", data, members, titles, label=self.model.label())

        figure, (ax,) = panels(1, width=6.0, height=3.2)
        path = np.asarray(self.model.shown(fits.history["lengthscale"]))
        for line, size, style in zip(path, sizes, _LINES * 3, strict=False):
            ax.plot(np.arange(len(line)), line, style, label=f"held out {size}")
        ax.set_yscale("log")
        ends = f"{np.nanmin(path[:, -1]):.3g} to {np.nanmax(path[:, -1]):.3g}"
        ax.set(xlabel="step", ylabel="lengthscale ℓ (units of x)", title=f"ℓ ends at {ends}")
        save_with_legend(run, "training", figure, [ax], lengthscale=path, loss=fits.history["loss"])
