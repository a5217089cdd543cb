"""Fixed lengthscales: from a curve that misses the bumps to one that chases the noise."""

from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np
import pydantic

import attnkernel as ak

from ..parts import Data, FieldError, Model, Name, Positive, Study, describe, load
from ..results import Run
from ._panels import label_outer, legend, panels


class Lengthscales(Study):
    """The same data smoothed at several lengthscales."""

    study: Literal["lengthscales"]
    name: Name = "lengthscales"
    data: Data
    model: Model = Model()
    lengthscales: Annotated[list[Positive], pydantic.Field(min_length=1, max_length=12)]

    def check(self) -> None:
        if load(self.data, self.keys().next()).x.shape[1] != 1:
            raise FieldError(("data",), "this study draws one input; name one column in data.x")

    def run(self, run: Run) -> None:
        data = load(self.data, self.keys().next())
        objective = ak.LeaveOneOut()
        figure, axes = panels(len(self.lengthscales))
        at = ak.plot.grid(data.x)
        curves, fits = [], []
        for ax, lengthscale in zip(axes, self.lengthscales, strict=True):
            model = self.model.make(lengthscale)
            curve = np.asarray(model(at, data.x, data.y))
            ak.plot.points(data.x, data.y, ax=ax)
            if data.mean is not None:
                ax.plot(np.ravel(data.x), data.mean, "--", color=ak.plot.BLUE, label="true mean")
            ax.plot(at, curve, color=ak.plot.ORANGE, label=self.model.label())
            ax.set_title(f"ℓ = {lengthscale:g}")
            curves.append(curve)
            fits.append(
                {
                    "lengthscale": lengthscale,
                    "residual_sd": jnp.std(data.y - model(data.x, data.x, data.y)),
                    "leave_one_out": objective(model, data.x, data.y),
                }
            )
        label_outer(axes, data.x_names[0], data.y_name)
        legend(figure, axes)
        run.figure(
            "lengthscales",
            figure,
            x=data.x[:, 0],
            y=data.y,
            grid=at,
            predictions=np.stack(curves),
            lengthscales=self.lengthscales,
        )
        run.table(
            f"Fixed lengthscales, kernel {self.model.words()}",
            ["ℓ", "residual sd", "leave-one-out error"],
            [
                [
                    f"{fit['lengthscale']:g}",
                    f"{float(fit['residual_sd']):.4f}",
                    f"{float(fit['leave_one_out']):.4f}",
                ]
                for fit in fits
            ],
        )
        run.summary({"data": describe(data), **self.model.named(), "fits": fits})
