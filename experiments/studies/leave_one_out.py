"""The exact leave-one-out lengthscale of a data set, with all minima of the criterion."""

from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak
from attnkernel.fitting._options import Options

from ..config import Data, Model
from ..reports import save_with_legend, subplots
from ..runs import NO_MONITOR, Monitor, Run
from .study import Fits, Keys, Study, describe, lengthscale_of, load
from .training import require_finite


class LeaveOneOut(Study):
    """The criterion against the lengthscale, its minima, and the curve at the best of them."""

    study: Literal["leave_one_out"]
    precision: Literal["float32", "float64"] = "float64"
    data: Data
    model: Model = Model()
    starts: int = Field(default=10, ge=1, le=1000)
    grid: int = Field(default=200, ge=10, le=10_000)

    def check(self) -> None:
        self.model.require_slope()
        load(self.data, self.keys().next())

    varying: ClassVar = ("seed", "model.lengthscale")

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Fits:
        data = self.data.load(Keys(key).next())

        def log(done: int, history: dict[str, Any]) -> str:
            losses, path = history["loss"], np.asarray(self.model.shown(history["lengthscale"]))
            monitor.step_metrics(done, "start", range(len(losses)), loss=losses, lengthscale=path)
            return f"best criterion {np.nanmin(losses[:, -1]):.6g}"

        hooks = {"record": lengthscale_of, "log": log, "resumable": False}
        model, by = self.model.make(), ak.LeaveOneOut()
        steps = Options().with_defaults(model, by).steps
        with monitor.fit("leave-one-out", steps, **hooks) as following:
            fit = ak.fit(model, data.x, data.y, objective=by, starts=self.starts, **following)
        fitted = fit.model(data.x, data.x, data.y)
        numbers = {
            **self.model.parameters(fit.model.kernel),
            "criterion": fit.loss,
            "r_squared": r_squared(data.y, fitted),
            "residual_sd": jnp.sqrt(jnp.mean((data.y - fitted) ** 2)),
        }
        return Fits(data, fit, numbers, jnp.all(fit.starts.diverged))

    def report(self, results: Fits, run: Run) -> None:
        data, fit, numbers = results.data, results.fits, results.numbers
        run.note(fit.warnings())
        lower, upper = (float(end.kernel.lengthscale) for end in fit.model.search_box(data.x))
        lengthscales = np.geomspace(lower, upper, self.grid)
        minima = [
            {**self.model.parameters(model.kernel), "criterion": loss}
            for model, loss in fit.minima()
        ]
        if len(minima) > 1:
            run.note([f"the criterion has {len(minima)} minima; the lowest is taken."])
        self._draw_criterion_and_fit(run, results, lengthscales)
        scalars = {name: float(v) for name, v in numbers.items() if jnp.ndim(v) == 0}
        cells = [[CELLS.get(name, name), f"{value:.7g}"] for name, value in scalars.items()]
        shown, letter, starts = self.model.shown, self.model.letter(), fit.starts
        for other in minima[1:]:
            at = f"{letter} = {float(other['lengthscale']):.6g}: {other['criterion']:.7g}"
            cells.append(["other minimum", at])
        run.table(f"{self.name}: leave-one-out, kernel {self.model.words()}", ["", ""], cells)
        found = {"data": describe(data), **self.model.named(), **numbers, "minima": minima}
        found["bounds"] = [shown(jnp.asarray(end)) for end in (lower, upper)]
        found["starts"] = {
            "begin": shown(starts.begin.kernel.lengthscale),
            "end": shown(starts.end.kernel.lengthscale),
            "criterion": starts.loss,
            "converged": starts.converged,
            "at_bound": starts.at_bound,
        }
        run.summary(found)
        require_finite(fit)

    def _draw_criterion_and_fit(self, run: Run, results: Fits, lengthscales: np.ndarray) -> None:
        """Draws the criterion, and the fit beside it; saves the figure in `run`. `lengthscales`:
        where the criterion is evaluated, in the convention of attnkernel; the figure shows them in
        that of the study.
        """
        data, fit = results.data, results.fits
        figure, (left, right) = subplots(1, 2, figsize=(8.4, 3.5))
        ak.plot.criterion(fit, lengthscales, convention=self.model.convention, ax=left)
        number = len(fit.minima())
        title = "one minimum" if number == 1 else f"{number} minima: the lowest is taken"
        left.set(ylabel="leave-one-out error (squared units of y)", title=title)
        found = float(self.model.shown(fit.model.kernel.lengthscale))
        ak.plot.fit(fit, ax=right, label=self.model.label())
        if data.x.shape[1] == 1:
            right.set(xlabel=ak.plot.literal(data.x_names[0]))
        share = f"explains {float(results.numbers['r_squared']):.0%} of the variance"
        title = f"{self.name}: {self.model.letter()} = {found:.4g} {share}"
        right.set(ylabel=ak.plot.literal(data.y_name), title=title)
        save_with_legend(run, "leave_one_out", figure, [right])


CELLS = {"r_squared": "R², as R's np", "residual_sd": "√(squared residuals / n), as R's np"}


def r_squared(y: Float[Array, " n"], fitted: Float[Array, " n"]) -> Float[Array, ""]:
    r"""$R^2$ as R's `np` defines it; both sides are centred at the mean of y.

    $$ \frac{\big[\sum_i (y_i - \bar y)(\hat y_i - \bar y)\big]^2}
            {\sum_i (y_i - \bar y)^2 \sum_i (\hat y_i - \bar y)^2} $$

    It is the squared correlation where the fit has the mean of y. (Hayfield and Racine, 2008.)
    """
    y, fitted = y - jnp.mean(y), fitted - jnp.mean(y)
    return jnp.sum(y * fitted) ** 2 / (jnp.sum(y**2) * jnp.sum(fitted**2))
