"""More columns: the error of an additive fit, of a surface and of boosted trees."""

import importlib
import itertools
import warnings
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import FieldError, NonEmpty, Positive
from ..reports import draw_dots, save_with_legend, subplots
from ..reports.predictions import half_width
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study

METHODS = ("additive", "surface", "gradient boosting", "histogram boosting")
MEANS = ("additive", "product", "pure interaction")
MAX_STEPS = 60  # of the search for lengthscales: AICc is then within 1e-3 of its minimum
Results = list[dict[str, Any]]


class Additive(Study):
    """Errors of fits to simulated data of which five columns count and the others do not."""

    study: Literal["additive"]
    precision: Literal["float32", "float64"] = "float64"
    rows: NonEmpty[Annotated[int, Field(ge=30, le=2000)]] = [200, 400]
    dims: NonEmpty[Annotated[int, Field(ge=5, le=20)]] = [5, 10]
    noise: Positive = 1.0
    test_rows: int = Field(default=1000, ge=10, le=100_000)
    data_sets: int = Field(default=5, ge=2, le=1000)

    def check(self) -> None:
        try:
            importlib.import_module("sklearn.ensemble")
        except ModuleNotFoundError:
            needed = "needs scikit-learn: pip install 'attnkernel[sklearn]'"
            raise FieldError(("study",), needed) from None

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        places = itertools.product(self.rows, self.dims, MEANS, range(self.data_sets))
        keys, regressors = Keys(key), _regressors()
        data_sets = [(n, dim, mean, keys.next()) for n, dim, mean, _ in places]

        def measure(data_set: tuple[int, int, str, PRNGKeyArray]) -> dict[str, Any]:
            """Returns the root mean square error of each method on a data set."""
            n, dim, mean, own_key = data_set
            x_key, noise_key = jax.random.split(own_key)
            x = np.asarray(jax.random.uniform(x_key, (n + self.test_rows, dim)), float)
            truth = mean_of(mean, x)
            labels = truth[:n] + self.noise * np.asarray(jax.random.normal(noise_key, (n,)))
            row: dict[str, Any] = {"rows": n, "dim": dim, "mean": mean}
            for name, fit in regressors.items():
                with warnings.catch_warnings():
                    # lengthscales of columns without effect end on their upper bounds
                    warnings.simplefilter("ignore", ak.fitting.FitWarning)
                    warnings.simplefilter("ignore", ak.local.ExtrapolationWarning)
                    predicted = fit(x[:n], labels)(x[n:])
                row[name] = float(np.sqrt(np.mean((predicted - truth[n:]) ** 2)))
            return row

        label = "{mean}, n = {rows}, d = {dim}".format_map
        found = monitor.collect("data sets", data_sets, measure, label)
        monitor.metrics(found)
        return found

    def report(self, results: Results, run: Run) -> None:
        rows, place = [], ("rows", "dim", "mean")
        for values in itertools.product(self.rows, self.dims, MEANS):
            where = dict(zip(place, values, strict=True))
            here = [row for row in results if where.items() <= row.items()]
            rows.append(where | _intervals(here))
        ratios = [name for name in rows[0] if " ratio" in name]
        run.table_of(
            f"Root mean square error at {self.test_rows} new inputs ± half of a 95 % interval over "
            f"{self.data_sets} data sets, noise {self.noise:g}",
            rows,
            [name for name in rows[0] if name not in ratios],
        )
        title = "Error over that of the additive fit, paired by data set, 95 % intervals"
        run.table_of(title, rows, (*place, *ratios))
        self._draw(run, rows)
        run.summary({"data_sets": self.data_sets, "errors": rows})

    def _draw(self, run: Run, rows: list[dict[str, Any]]) -> None:
        """Draws the errors of all methods, a panel for each mean; saves the figure."""
        figure, panels = subplots(1, len(MEANS), sharey=True, figsize=(9.4, 3.5))
        places = [f"n = {n}, d = {dim}" for n, dim in itertools.product(self.rows, self.dims)]
        for ax, mean in zip(panels, MEANS, strict=True):
            here = [row for row in rows if row["mean"] == mean]
            errors, halves = (
                {name: [row[f"{name}{of}"] for row in here] for name in METHODS}
                for of in ("", " ±")
            )
            draw_dots(ax, places, errors, halves)
            ax.set(title=f"mean: {mean}", xlim=(0.0, None), xlabel="root mean square error")
        save_with_legend(run, "additive", figure, list(panels))


def _intervals(rows: Results) -> dict[str, float]:
    """Returns the mean error of each method, and the geometric mean of its ratio to that of the
    additive fit, with intervals of Student's t over data sets."""
    found = {}
    for name in METHODS:
        errors = np.array([row[name] for row in rows])
        found |= {name: float(np.mean(errors)), f"{name} ±": half_width(errors)}
    for name in METHODS[1:]:
        logs = np.log([row[name] / row[METHODS[0]] for row in rows])
        centre, half = np.mean(logs), half_width(logs)
        ends = {"": centre, " lower": centre - half, " upper": centre + half}
        found |= {f"{name} ratio{end}": np.exp(value) for end, value in ends.items()}
    return {name: float(value) for name, value in found.items()}


def mean_of(name: str, x: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
    r"""Returns the mean at inputs in [0, 1]; columns from the sixth on have no effect.

    $20 (x_2 - \tfrac12)^2 + 10 x_3 + 5 x_4$, and a function of $x_0$ and $x_1$: `"additive"`,
    $5 \sin 2\pi x_0 + 5 \sin 2\pi x_1$; `"product"`, $10 \sin \pi x_0 x_1$ (Friedman, 1991);
    `"pure interaction"`, $5 \sin 2\pi x_0 \sin 2\pi x_1$, whose mean along each column is 0.
    """
    waves = np.sin(2.0 * np.pi * x[:, :2])
    of_two = {
        "additive": 5.0 * np.sum(waves, axis=1),
        "product": 10.0 * np.sin(np.pi * x[:, 0] * x[:, 1]),
        "pure interaction": 5.0 * np.prod(waves, axis=1),
    }
    return of_two[name] + 20.0 * (x[:, 2] - 0.5) ** 2 + 10.0 * x[:, 3] + 5.0 * x[:, 4]


def _regressors() -> dict[str, Callable[[np.ndarray, np.ndarray], Callable]]:
    """Returns by method a function from inputs and labels to predictions at new inputs."""
    trees = importlib.import_module("sklearn.ensemble")
    estimators = {
        "surface": importlib.import_module("attnkernel.sklearn").KernelRegressor(),
        "gradient boosting": trees.GradientBoostingRegressor(random_state=0),
        "histogram boosting": trees.HistGradientBoostingRegressor(random_state=0),
    }

    def additive(x: np.ndarray, y: np.ndarray) -> Callable:
        model = ak.AdditiveRegression([ak.Gaussian(0.2)] * x.shape[1])
        fit = ak.fit(model, x, y, objective=ak.AICc(), starts=1, steps=MAX_STEPS)
        return lambda at: np.asarray(fit(at))

    others = {
        name: lambda x, y, estimator=estimator: estimator.fit(x, y).predict
        for name, estimator in estimators.items()
    }
    return {"additive": additive, **others}
