"""Masked hold-out: one lengthscale fitted per hold-out size, all sizes in one program."""

from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pydantic

import attnkernel as ak

from ..config import dump
from ..parts import (
    Data,
    HoldOutSize,
    Keys,
    Model,
    Name,
    Study,
    Training,
    describe,
    hold_out_sizes,
    load,
    outside_bounds,
)
from ..results import Run
from ._panels import draw_fits, legend, panels
from ._training import require_finite


class HoldOut(Study):
    """How much to hold out? A fit for each size, and the curves that they give."""

    study: Literal["holdout"]
    name: Name = "holdout"
    data: Data
    model: Model = Model()
    training: Training = Training()
    hold_out: Annotated[list[HoldOutSize], pydantic.Field(min_length=1, max_length=12)]

    def check(self) -> None:
        self.model.require_slope()
        hold_out_sizes(self.hold_out, len(load(self.data, self.keys().next()).y))

    def run(self, run: Run) -> None:
        keys = self.keys()
        data = load(self.data, keys.next())
        sizes = hold_out_sizes(self.hold_out, len(data.y))
        result = self._fit(run, data, sizes, keys.stack(len(sizes)))
        members = [result.member(i) for i in range(len(sizes))]
        fits = [
            {
                "hold_out": size,
                **self.model.parameters(member.model.kernel),
                "loss": member.loss,
                "leave_one_out": ak.LeaveOneOut()(member.model, data.x, data.y),
            }
            for size, member in zip(sizes, members, strict=True)
        ]
        run.note(result.warnings())
        for size, member in zip(sizes, members, strict=True):
            length = member.model.kernel.lengthscale
            run.note(outside_bounds(length, data, self.model, f"held out {size}"))
        self._draw(run, data, sizes, members, result)
        run.table(
            f"Masked hold-out, kernel {self.model.words()}",
            ["held out", "fitted ℓ", "last loss", "leave-one-out error"],
            [
                [
                    str(fit["hold_out"]),
                    *(f"{float(fit[k]):#.4g}" for k in ("lengthscale", "loss", "leave_one_out")),
                ]
                for fit in fits
            ],
        )
        run.summary({"data": describe(data), **self.model.named(), "fits": fits})
        require_finite(result)

    rows_are: ClassVar[str] = "fits"

    def traced(self) -> dict[str, Any]:
        sizes = hold_out_sizes(self.hold_out, len(load(self.data, self.keys().next()).y))
        return {
            "seed": self.seed,
            "lengthscale": self.model.lengthscale,
            "learning_rate": self.training.learning_rate,
            "hold_out": sizes,
        }

    def apart(self) -> str:
        same: dict[str, Any] = {"seed": 0, "hold_out": [], "name": ""}
        same["model"] = self.model.model_copy(update={"lengthscale": 1.0})
        same["training"] = self.training.model_copy(update={"learning_rate": 1.0})
        return dump(self.model_copy(update=same))

    def numbers(
        self, traced: dict[str, jax.Array], most: dict[str, Any]
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        keys, sizes = Keys(traced["seed"]), traced["hold_out"]
        data = self.data.load(keys.next())
        fits = ak.fit_many(
            self.model.make(traced["lengthscale"]),
            data.x,
            data.y,
            objective=ak.HoldOut(sizes, at_most=int(most["hold_out"])),
            in_axes=(None, None, 0),
            optimizer=self.training.make(traced["learning_rate"]),
            steps=self.training.steps,
            key=keys.stack(len(sizes)),
        )
        left_out = eqx.filter_vmap(lambda model: ak.LeaveOneOut()(model, data.x, data.y))
        found = {
            "hold_out": sizes,
            **self.model.parameters(fits.model.kernel),
            "loss": fits.loss,
            "leave_one_out": left_out(fits.model),
        }
        return found, jnp.any(fits.starts.diverged)

    def _fit(self, run: Run, data: ak.data.Dataset, sizes: list[int], keys: jax.Array) -> ak.Fit:
        """All sizes at once: a hold-out is a mask, so the sizes are numbers of one program."""
        steps = self.training.steps
        with run.progress("training", steps) as tick, run.timed("training"):

            def on_chunk(done: int, history: dict[str, Any]) -> None:
                losses = history["loss"][:, 0]
                path = np.asarray(self.model.shown(history["lengthscale"][:, 0]))
                run.step_metrics(done, "hold_out", sizes, loss=losses, lengthscale=path)
                tick(done, "loss " + " ".join(f"{loss:.3f}" for loss in losses[:, -1]))

            return ak.fit_many(
                self.model.make(),
                data.x,
                data.y,
                objective=ak.HoldOut(jnp.array(sizes), at_most=max(sizes)),
                in_axes=(None, None, 0),
                optimizer=self.training.make(),
                steps=steps,
                key=keys,
                record=_record,
                callback=on_chunk,
                chunk=min(100, max(1, steps // 4)),
                checkpoints=run.checkpoints("training"),
            )

    def _draw(
        self,
        run: Run,
        data: ak.data.Dataset,
        sizes: list[int],
        members: list[ak.Fit],
        result: ak.Fit,
    ) -> None:
        lengthscales = [float(self.model.shown(m.model.kernel.lengthscale)) for m in members]
        titles = [
            f"held out {size} of {len(data.y)}: ℓ = {found:#.4g}"
            for size, found in zip(sizes, lengthscales, strict=True)
        ]
        label = self.model.label()
        draw_fits(run, "holdout", data, members, titles, label=label, hold_out=sizes)

        figure, axes = panels(1, width=6.0, height=3.2)
        (ax,) = axes
        path = np.asarray(self.model.shown(result.history["lengthscale"]))
        for line, size, style in zip(path, sizes, _LINES * 3, strict=False):
            ax.plot(np.arange(len(line)), line, style, label=f"held out {size}")
        ax.set_yscale("log")
        ax.set(xlabel="step", ylabel="lengthscale ℓ (units of x)")
        legend(figure, axes)
        run.figure("training", figure, lengthscale=path, loss=result.history["loss"])


_LINES = ["-", "--", "-.", ":"]


def _record(model: Any) -> dict[str, jax.Array]:
    return {"lengthscale": model.kernel.lengthscale}
