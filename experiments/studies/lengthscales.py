"""Fixed lengthscales, from an oversmoothed to an undersmoothed curve."""

from typing import Annotated, Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Float, PRNGKeyArray

import attnkernel as ak

from ..config_source import FieldError
from ..panels import label_outer, legend, panels
from ..parts import Data, Model, Name, Positive
from ..run import Run
from ..study import Keys, Study, describe, load
from ..watch import SILENT, Watch


class Results(NamedTuple):
    """A fit per lengthscale, and the curves on a grid."""

    data: ak.data.Dataset
    fits: list[dict[str, Any]]
    grid: Float[np.ndarray, " points"]
    curves: Float[np.ndarray, "fits points"]


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

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> Results:
        data = self.data.load(Keys(key).next())
        at, fits, curves = ak.plot.grid(data.x), [], []
        for lengthscale in self.lengthscales:
            model = self.model.make(lengthscale)
            curves.append(np.asarray(model(at, data.x, data.y)))
            fits.append(
                {
                    "lengthscale": lengthscale,
                    "residual_sd": jnp.std(data.y - model(data.x, data.x, data.y)),
                    "leave_one_out": ak.LeaveOneOut()(model, data.x, data.y),
                }
            )
        return Results(data, fits, at, np.stack(curves))

    def report(self, results: Results, run: Run) -> None:
        data, fits, at, curves = results
        figure, axes = panels(len(self.lengthscales))
        for ax, lengthscale, curve in zip(axes, self.lengthscales, curves, strict=True):
            ak.plot.points(data.x, data.y, ax=ax)
            if data.mean is not None:
                ax.plot(np.ravel(data.x), data.mean, "--", color=ak.plot.BLUE, label="true mean")
            ax.plot(at, curve, color=ak.plot.ORANGE, label=self.model.label())
            ax.set_title(f"ℓ = {lengthscale:g}")
        label_outer(axes, data.x_names[0], data.y_name)
        legend(figure, axes)
        run.figure(
            "lengthscales",
            figure,
            x=data.x[:, 0],
            y=data.y,
            grid=at,
            predictions=curves,
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
