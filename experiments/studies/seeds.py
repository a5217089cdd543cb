"""Which hold-out size is best? Many data sets, every size and leave-one-out, in one program."""

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Heteroskedastic, HoldOutSize, Model, Training
from ..reports import subplots, ticks_at
from ..runs import NO_MONITOR, Monitor, Run
from .study import HoldOutSizes, Keys, Study, tables_as_rows

STEPS = 15  # of a search


class IntegratedSquaredError(ak.objectives.Objective):
    r"""The distance to the truth, $\int_{-3}^{3} (\hat f(x) - f(x))^2 dx$, by the trapezoid rule.

    Minimised over ℓ it gives the best lengthscale in hindsight, a bound for every method.
    """

    is_stochastic: ClassVar[bool] = False

    def __call__(self, model: Any, x: Array, y: Array, *, key: PRNGKeyArray | None = None) -> Array:
        at = jnp.linspace(-3.0, 3.0, 201)
        error = model(at, x, y) - ak.data.heteroskedastic_mean(at)
        return jnp.trapezoid(error**2, at)


Results = dict[str, np.ndarray]  # over data sets; the searches are leave-one-out and hindsight


class Seeds(Study):
    """Distribution of fitted lengthscales, and what each costs against the best in hindsight."""

    study: Literal["seeds"]
    data: Heteroskedastic
    model: Model = Model()
    training: Training = Training()
    hold_out: list[HoldOutSize] = Field(min_length=1, max_length=12)
    seeds: int = Field(default=100, ge=2, le=100_000)
    batch: int = Field(default=20, ge=1, description="data sets per call of the program")

    def check(self) -> None:
        self.model.require_slope()
        HoldOutSizes.from_config(self.hold_out, self.data.n)

    def methods(self) -> list[str]:
        """The names of what is compared: hold-out sizes, leave-one-out, and hindsight last."""
        sizes = HoldOutSizes.from_config(self.hold_out, self.data.n).sizes
        return [f"hold out {size}" for size in sizes] + ["leave one out", "hindsight"]

    def simulate(self, key: PRNGKeyArray) -> dict[str, Array]:
        """Simulates a data set and fits it by each method: hold-out of all sizes, leave-one-out,
        hindsight. Returns lengthscales, integrated squared errors, and whether the searches
        converged.
        """
        error = IntegratedSquaredError()
        data_key, *fit_keys = jax.random.split(key, len(self.hold_out) + 1)
        data, model = self.data.load(data_key), self.model.make()
        held_out = ak.fit_many(
            model,
            data.x,
            data.y,
            objective=HoldOutSizes.from_config(self.hold_out, self.data.n).objective(),
            in_axes=(None, None, 0),
            **self.training.options(jnp.stack(fit_keys)),
        )
        searches = [
            ak.fit(model, data.x, data.y, objective=objective, steps=STEPS)
            for objective in (ak.LeaveOneOut(), error)
        ]
        kernels = jax.tree.map(
            lambda many, *others: jnp.concatenate([many, jnp.stack(others)]),
            *(fitted.model.kernel for fitted in (held_out, *searches)),
        )
        errors = jax.lax.map(
            lambda kernel: error(self.model.with_kernel(kernel), data.x, data.y), kernels
        )
        starts = [(fit.starts, fit.loss) for fit in searches]
        converged = [jnp.any(of.converged & (of.loss <= loss)) for of, loss in starts]
        found = {"lengthscales": kernels.lengthscale, "errors": errors}
        return found | {"converged": jnp.stack(converged)}

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        keys = Keys(key).stack(self.seeds)
        many = jax.jit(jax.vmap(self.simulate))
        found = monitor.simulate({(): (many, keys)}, self.batch)[()]
        lengthscales = np.asarray(self.model.shown(found["lengthscales"]))
        errors, names = found["errors"], self.methods()
        monitor.metrics(
            [
                {"data_set": i, "method": names[j], "lengthscale": length, "error": errors[i, j]}
                for (i, j), length in np.ndenumerate(lengthscales)
            ]
        )
        return found | {"lengthscales": lengthscales}

    def report(self, results: Results, run: Run) -> None:
        lengthscales, errors = results["lengthscales"], results["errors"]
        if missed := int(np.sum(~results["converged"])):
            run.note([f"{missed} searches had not converged in {STEPS} steps."])
        ratios, names = errors / errors[:, -1:], self.methods()
        best = int(np.argmin(errors[:, :-1].mean(axis=0)))
        worse = errors - errors[:, [best]]  # paired: the same data for all
        columns = {
            "method": names,
            "lengthscale_quartiles": np.quantile(lengthscales, [0.25, 0.5, 0.75], axis=0).T,
            "mean_error": errors.mean(axis=0),
            "median_ratio_to_hindsight": np.median(ratios, axis=0),
            "mean_error_over_best": worse.mean(axis=0),
            "standard_error_of_that": worse.std(axis=0, ddof=1) / np.sqrt(len(worse)),
        }
        rows = tables_as_rows({"methods": columns})["methods"]
        self._draw(run, rows, results)
        run.table_of(
            f"{len(errors)} data sets of {self.data.n} points, kernel "
            f"{self.model.words()}, lengthscales {self.model.letter()}; error: integrated, squared",
            rows,
        )
        found = {"data_sets": len(errors), **self.model.named(), "best": names[best]}
        run.summary(found | {"methods": rows})

    def _draw(self, run: Run, rows: list[dict[str, Any]], results: Results) -> None:
        """Draws box plots of lengthscales, and of errors over those of the best lengthscale, by
        method; saves the figure in `run`. `rows`: the table, a row for each method.
        """
        lengthscales, errors = results["lengthscales"], results["errors"]
        figure, (left, right) = subplots(1, 2, figsize=(8.4, 3.6))
        names, over_best = [row["method"] for row in rows], errors[:, :-1] / errors[:, -1:]
        line = {"color": ak.plot.ink(), "linewidth": 0.9}
        for ax, values, shown in ((left, lengthscales, names), (right, over_best, names[:-1])):
            ax.boxplot(
                values,
                orientation="horizontal",
                tick_labels=shown,
                widths=0.55,
                patch_artist=True,
                boxprops={**line, "facecolor": ak.plot.SKY},
                medianprops={"color": ak.plot.ORANGE, "linewidth": 2.0},
                whiskerprops=line,
                capprops=line,
                flierprops={"markersize": 3, "markeredgecolor": ak.plot.ink()},
            )
            ax.invert_yaxis()
        low, _, high = np.transpose([row["lengthscale_quartiles"] for row in rows])
        widest = names[int(np.argmax(np.log(high / low)))]
        left.set(xlabel=f"fitted {self.model.letter()} (units of x)")
        left.set_title(f"ℓ scatters most by “{widest}”")
        right.axvline(1.0, color=ak.plot.BLUE, linestyle="--", linewidth=1.0)
        right.set(xscale="log", xlabel="integrated squared error ÷ that of the best ℓ")
        ticks_at(right.xaxis, [1, 2, 4, 8])
        best = min(rows[:-1], key=lambda row: row["mean_error"])
        right.set_title(f"lowest mean error: “{best['method']}”")
        run.figure("seeds", figure, lengthscales=lengthscales, errors=errors, methods=names)
