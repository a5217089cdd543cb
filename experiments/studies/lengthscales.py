"""Fixed lengthscales, from an oversmoothed to an undersmoothed curve."""

from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Data, Model, Positive
from ..reports import draw_fits, smoothing_verdicts
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study, describe, require_one_input

Results = tuple[ak.data.Dataset, list[dict[str, Any]]]  # the data, and a fit per lengthscale


class Lengthscales(Study):
    """The same data smoothed at several lengthscales."""

    study: Literal["lengthscales"]
    data: Data
    model: Model = Model()
    lengthscales: list[Positive] = Field(min_length=1, max_length=12)

    def check(self) -> None:
        require_one_input(self)

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        data = self.data.load(Keys(key).next())
        fits = []
        for lengthscale in self.lengthscales:
            model = self.model.make(lengthscale)
            residual_sd = float(jnp.std(data.y - model(data.x, data.x, data.y)))
            error = float(ak.LeaveOneOut()(model, data.x, data.y))
            row = {"lengthscale": lengthscale, "residual_sd": residual_sd}
            fits.append(row | {"leave_one_out": error})
        return data, fits

    def report(self, results: Results, run: Run) -> None:
        data, fits = results
        verdicts = smoothing_verdicts(self.lengthscales, [fit["leave_one_out"] for fit in fits])
        titles = [
            f"{self.model.letter()} = {length:g}: {verdict}"
            for length, verdict in zip(self.lengthscales, verdicts, strict=True)
        ]
        curves = [
            lambda at, model=self.model.make(length): model(at, data.x, data.y)
            for length in self.lengthscales
        ]
        draw_fits(run, "lengthscales", data, curves, titles, label=self.model.label())
        run.table_of(
            f"Fixed lengthscales {self.model.letter()}, kernel {self.model.words()}",
            fits,
        )
        run.summary({"data": describe(data), **self.model.named(), "fits": fits})
