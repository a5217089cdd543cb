"""The exact leave-one-out lengthscale of a data set, with all minima of the criterion."""

from typing import Annotated, Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, Float
from matplotlib.figure import Figure

import attnkernel as ak

from ..config import dump
from ..parts import Data, FieldError, Keys, Model, Name, Positive, Study, describe, load
from ..results import Run
from ._panels import legend
from ._training import require_finite


class LeaveOneOut(Study):
    """The criterion against the lengthscale, its minima, and the curve at the best of them."""

    study: Literal["leave_one_out"]
    name: Name = "leave_one_out"
    precision: Literal["float32", "float64"] = "float64"
    data: Data
    model: Model = Model()
    bounds: list[Positive] | None = pydantic.Field(
        default=None,
        min_length=2,
        max_length=2,
        description="smallest and largest lengthscale to try",
    )
    starts: Annotated[int, pydantic.Field(ge=1, le=1000)] = 10
    grid: Annotated[int, pydantic.Field(ge=10, le=10_000)] = 200

    def check(self) -> None:
        self.model.require_slope()
        load(self.data, self.keys().next())
        if self.bounds is not None:
            low, high = self.bounds
            if not low < self.model.lengthscale < high:
                raise FieldError(
                    ("bounds",),
                    f"expected [smallest, largest] around model.lengthscale = "
                    f"{self.model.lengthscale:g}, got {self.bounds}",
                )

    def traced(self) -> dict[str, Any]:
        return {"seed": self.seed, "lengthscale": self.model.lengthscale}

    def apart(self) -> str:
        model = self.model.model_copy(update={"lengthscale": 1.0})
        return dump(self.model_copy(update={"seed": 0, "name": "", "model": model}))

    def numbers(
        self, traced: dict[str, Array], most: dict[str, Any]
    ) -> tuple[dict[str, Array], Array]:
        data = self.data.load(Keys(traced["seed"]).next())
        result = ak.fit(
            self.model.make(traced["lengthscale"]),
            data.x,
            data.y,
            objective=ak.LeaveOneOut(),
            bounds=self._bounds(),
            starts=self.starts,
        )
        return self._numbers(data, result), jnp.all(result.starts.diverged)

    def _bounds(self) -> tuple[Any, Any] | None:
        if self.bounds is None:
            return None
        where = lambda model: model.kernel.log_lengthscale  # noqa: E731
        sides = zip(ak.kernels.unbounded(self.model.make()), self.bounds, strict=True)
        low, high = (eqx.tree_at(where, m, where(self.model.make(at))) for m, at in sides)
        return low, high

    def _numbers(self, data: ak.data.Dataset, result: ak.Fit) -> dict[str, Any]:
        fitted = result.model(data.x, data.x, data.y)
        return {
            **self.model.parameters(result.model.kernel),
            "criterion": result.loss,
            "r_squared": r_squared(data.y, fitted),
            "residual_sd": jnp.sqrt(jnp.mean((data.y - fitted) ** 2)),
        }

    def run(self, run: Run) -> None:
        data = load(self.data, self.keys().next())
        model, bounds = self.model.make(), self._bounds()
        with run.progress("leave-one-out", 100) as tick, run.timed("fit"):

            def on_chunk(done: int, history: dict[str, Any]) -> None:
                losses, path = history["loss"], np.asarray(self.model.shown(history["lengthscale"]))
                run.step_metrics(done, "start", range(len(losses)), loss=losses, lengthscale=path)
                tick(done, f"best criterion {np.nanmin(losses[:, -1]):.6g}")

            result = ak.fit(
                model,
                data.x,
                data.y,
                objective=ak.LeaveOneOut(),
                bounds=bounds,
                starts=self.starts,
                record=_record,
                callback=on_chunk,
            )
        run.note(result.warnings())
        self._report(run, data, result, bounds)
        require_finite(result)

    def _report(self, run: Run, data: ak.data.Dataset, result: ak.Fit, bounds: Any) -> None:
        sides = bounds if bounds is not None else result.model.search_box(data.x)
        lower, upper = (float(side.kernel.lengthscale) for side in sides)
        curve = np.geomspace(lower, upper, self.grid)
        criterion = ak.profile(result.model, data.x, data.y, curve, objective=result.objective)
        minima = [
            {**self.model.parameters(model.kernel), "criterion": loss}
            for model, loss in result.minima()
        ]
        if len(minima) > 1:
            run.note([f"the criterion has {len(minima)} minima; the least is taken."])
        fitted = result.model(data.x, data.x, data.y)
        numbers = self._numbers(data, result)
        self._draw(run, data, result, curve, criterion, fitted)
        run.table(
            f"{self.name}: leave-one-out, kernel {self.model.words()}",
            ["", ""],
            [
                [name.replace("_", " "), f"{float(v):.7g}"]
                for name, v in numbers.items()
                if jnp.ndim(v) == 0
            ]
            + [
                ["other minimum", f"ℓ = {float(m['lengthscale']):.6g}: {m['criterion']:.7g}"]
                for m in minima[1:]
            ],
        )
        run.summary(
            {
                "data": describe(data),
                **self.model.named(),
                **numbers,
                "minima": minima,
                "bounds": [self.model.shown(jnp.asarray(side)) for side in (lower, upper)],
                "starts": {
                    "begin": self.model.shown(result.starts.begin.kernel.lengthscale),
                    "end": self.model.shown(result.starts.end.kernel.lengthscale),
                    "criterion": result.starts.loss,
                    "converged": result.starts.converged,
                    "at_bound": result.starts.at_bound,
                },
            }
        )

    def _draw(
        self,
        run: Run,
        data: ak.data.Dataset,
        result: ak.Fit,
        curve: np.ndarray,
        criterion: Any,
        fitted: Any,
    ) -> None:
        figure = Figure(figsize=(8.4, 3.5))
        left, right = figure.subplots(1, 2)
        ak.plot.criterion(result, curve, convention=self.model.convention, ax=left)
        left.set(ylabel="leave-one-out error (squared units of y)", title="criterion")
        found = float(self.model.shown(result.model.kernel.lengthscale))
        ak.plot.fit(result, ax=right, label=self.model.label())
        arrays: dict[str, Any] = {
            "lengthscales": self.model.shown(curve),
            "criterion": criterion,
            "x": data.x,
            "y": data.y,
            "fitted": fitted,
        }
        if data.x.shape[1] == 1:
            at = ak.plot.grid(data.x)
            arrays |= {"grid": at, "prediction": result(at)}
            right.set(xlabel=ak.plot.literal(data.x_names[0]))
        right.set(ylabel=ak.plot.literal(data.y_name), title=f"{self.name}: ℓ = {found:.4g}")
        legend(figure, [right])
        run.figure("leave_one_out", figure, **arrays)


def r_squared(y: Float[Array, " n"], fitted: Float[Array, " n"]) -> Float[Array, ""]:
    r"""$R^2$ as R's `np` defines it; both sides are centred at the mean of y.

    $$ \frac{\big[\sum_i (y_i - \bar y)(\hat y_i - \bar y)\big]^2}
            {\sum_i (y_i - \bar y)^2 \sum_i (\hat y_i - \bar y)^2} $$

    It is the squared correlation where the fit has the mean of y. (Hayfield and Racine, 2008.)
    """
    y, fitted = y - jnp.mean(y), fitted - jnp.mean(y)
    return jnp.sum(y * fitted) ** 2 / (jnp.sum(y**2) * jnp.sum(fitted**2))


def _record(model: Any) -> dict[str, Any]:
    return {"lengthscale": model.kernel.lengthscale}
