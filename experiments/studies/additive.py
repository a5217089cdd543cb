"""More columns: the error of an additive fit, of a surface and of boosted trees."""

import functools
import importlib
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import jax
import numpy as np
import pydantic
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.figure import Figure

import attnkernel as ak

from ..config_fields import Name, Positive
from ..config_source import FieldError
from ..figures import legend
from ..monitor import NO_MONITOR, Monitor
from ..run import Run
from ..study import Keys, Study

METHODS = ("additive", "surface", "boosted trees")
MEANS = ("additive", "product", "pure interaction")
Results = list[dict[str, Any]]


class Additive(Study):
    """Errors of fits to simulated data of which five columns count and the others do not."""

    study: Literal["additive"]
    name: Name = "additive"
    precision: Literal["float32", "float64"] = "float64"
    n: Annotated[int, pydantic.Field(ge=30, le=2000)] = 200
    dims: Annotated[
        list[Annotated[int, pydantic.Field(ge=5, le=20)]], pydantic.Field(min_length=1)
    ] = [5, 10]
    noise: Positive = 1.0
    test_rows: Annotated[int, pydantic.Field(ge=10, le=100_000)] = 1000
    data_sets: Annotated[int, pydantic.Field(ge=2, le=1000)] = 5

    def check(self) -> None:
        try:
            importlib.import_module("sklearn.ensemble")
        except ModuleNotFoundError:
            needed = "needs scikit-learn: pip install 'attnkernel[sklearn]'"
            raise FieldError(("study",), needed) from None

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        places = list(itertools.product(self.dims, MEANS, range(self.data_sets)))
        keys = Keys(key).stack(len(places))
        rows: Results = []
        with monitor.progress("data sets", len(places)) as tick:
            measure = functools.partial(self._measure, places, keys)
            for row in monitor.each("data_sets", len(places), measure):
                rows.append(row)
                monitor.metrics([row])
                tick(len(rows), f"{row['mean']}, d = {row['dim']}")
        return rows

    def _measure(
        self, places: Sequence[tuple[int, str, int]], keys: Array, i: int
    ) -> dict[str, Any]:
        """Returns the root mean square error of each method on data set i."""
        (dim, mean, _), (x_key, noise_key) = places[i], jax.random.split(keys[i])
        rows = self.n + self.test_rows
        x = np.asarray(jax.random.uniform(x_key, (rows, dim)), float)
        truth = mean_of(mean, x)
        labels = truth[: self.n] + self.noise * np.asarray(jax.random.normal(noise_key, (self.n,)))
        row: dict[str, Any] = {"dim": dim, "mean": mean}
        for name, fit in _regressors().items():
            with warnings.catch_warnings():
                # lengthscales of columns without effect end on their upper bounds
                warnings.simplefilter("ignore", ak.fitting.FitWarning)
                warnings.simplefilter("ignore", ak.ExtrapolationWarning)
                predicted = fit(x[: self.n], labels)(x[self.n :])
            row[name] = float(np.sqrt(np.mean((predicted - truth[self.n :]) ** 2)))
        return row

    def report(self, results: Results, run: Run) -> None:
        rows = []
        for dim, mean in itertools.product(self.dims, MEANS):
            here = [row for row in results if (row["dim"], row["mean"]) == (dim, mean)]
            row: dict[str, Any] = {"dim": dim, "mean": mean}
            for name in METHODS:
                errors = np.array([each[name] for each in here])
                row[name] = float(np.mean(errors))
                row[f"{name}_standard_error"] = float(np.std(errors, ddof=1) / np.sqrt(len(errors)))
            rows.append(row)
        columns = {"dim": "{dim}", "mean": "{mean}"}
        columns |= {name: f"{{{name}:.2f}}" for name in METHODS}
        run.table_of(
            f"Root mean square error at {self.test_rows} new inputs, {self.data_sets} data sets of "
            f"{self.n} rows with noise {self.noise:g}",
            rows,
            columns,
        )
        self._draw(run, rows)
        run.summary({"data_sets": self.data_sets, "errors": rows})

    def _draw(self, run: Run, rows: list[dict[str, Any]]) -> None:
        """Draws the errors of all methods, a panel for each mean; saves the figure."""
        figure = Figure(figsize=(9.4, 3.3))
        panels, arrays = figure.subplots(1, len(MEANS), sharey=True), {}
        colors = (ak.plot.BLUE, ak.plot.ORANGE, ak.plot.GREY)
        for ax, mean in zip(panels, MEANS, strict=True):
            here = [row for row in rows if row["mean"] == mean]
            for shift, name, marker, color in zip((-1, 0, 1), METHODS, "osD", colors, strict=True):
                error = np.array([row[name] for row in here])
                bar = np.array([row[f"{name}_standard_error"] for row in here])
                at = np.arange(len(self.dims)) + 0.1 * shift
                ax.errorbar(at, error, bar, fmt=marker, color=color, label=name, markersize=5)
                key = f"{mean}_{name}".replace(" ", "_")
                arrays |= {key: error, f"{key}_standard_error": bar}
            ax.set_xticks(range(len(self.dims)), map(str, self.dims))
            ax.set(xlabel="columns", title=f"mean: {mean}", ylim=(0.0, None))
            ax.margins(x=0.2)
        panels[0].set(ylabel="error of the fit ± standard error")
        legend(figure, list(panels))
        run.figure("additive", figure, dims=self.dims, **arrays)


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
    trees = importlib.import_module("sklearn.ensemble").GradientBoostingRegressor
    surface = importlib.import_module("attnkernel.sklearn").KernelRegressor

    def additive(x: np.ndarray, y: np.ndarray) -> Callable:
        model = ak.AdditiveRegression([ak.Gaussian(0.2)] * x.shape[1])
        fit = ak.fit(model, x, y, objective=ak.AICc(), starts=1)
        return lambda at: np.asarray(fit(at))

    return {
        "additive": additive,
        "surface": lambda x, y: surface().fit(x, y).predict,
        "boosted trees": lambda x, y: trees(random_state=0).fit(x, y).predict,
    }
