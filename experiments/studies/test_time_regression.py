r"""The error of each sequence layer as an estimator of a function that drifts, without training.

$$ v_t = f_t(k_t) + \sigma \varepsilon_t, \qquad
   \mathrm{Cov}\big(f_t(k), f_s(k')\big) = C(k, k')\, (1 + \omega^2 \min(t, s)) $$

$C(k, k') = k \cdot k'$ are linear functions $f_t(k) = S_t^\top k$ whose coefficients are random
walks of speed ω; a Gaussian C gives nonlinear ones. Keys and queries are uniform on the unit
sphere. At row t each layer has seen the rows up to t, and predicts $f_t$ at a query of its own.
"""

import functools
import itertools
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty, Positive
from ..reports import draw_dots, facets, label_outer, save_with_legend
from ..reports.predictions import Claims, half_width, judge_and_print, where
from ..runs import NO_MONITOR, Monitor, Run
from .sequence_estimators import LAYERS, ORACLE, errors_of_layer
from .study import Study, Task

JITTER = 1e-9  # of the variance of a function, so that its covariance is positive definite
STYLES = {"linear": "linear functions", "nonlinear": "nonlinear functions"}


class TestTimeRegression(Study):
    """Errors of sequence layers on drifting functions, against the posterior mean."""

    study: Literal["test_time_regression"]
    functions: NonEmpty[Literal["linear", "nonlinear"]] = ["linear", "nonlinear"]
    speeds: NonEmpty[Annotated[float, Field(ge=0, le=10)]] = [0.0, 0.03, 0.1]
    noises: NonEmpty[Positive] = [0.1, 0.5]
    lengthscale: Positive = Field(default=0.7, description="of nonlinear functions")
    rows: int = Field(default=256, ge=16, le=4096)
    dim: int = Field(default=4, ge=1, le=64)
    dim_v: int = Field(default=4, ge=1, le=64)
    sequences: int = Field(default=40, ge=2, le=10_000)

    def cases(self) -> list[dict[str, Any]]:
        of_all = itertools.product(self.functions, self.noises, self.speeds)
        return [{"function": f, "noise": noise, "speed": speed} for f, noise, speed in of_all]

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> list[dict[str, Any]]:
        programs = {
            name: jax.jit(jax.vmap(errors_of_layer(layer))) for name, layer in LAYERS.items()
        }

        def oracle_error(case: dict[str, Any], data: Task) -> Array:
            """The mean squared error of the posterior mean over the second half of a sequence."""
            late = (self.posterior(data, **case) - data.truth)[self.rows // 2 :]
            return jnp.mean(late**2)

        def errors(place: tuple[int, dict[str, Any]]) -> dict[str, Any]:
            i, case = place
            keys = jax.random.split(jax.random.fold_in(key, i), self.sequences)
            data = jax.lax.map(lambda key: self.draw(key, **case), keys)
            found = {ORACLE: np.asarray(jax.lax.map(functools.partial(oracle_error, case), data))}
            scalars = {}
            for name, program in programs.items():
                found[name], chosen = jax.tree.map(np.asarray, program(*data))
                scalars[name] = {scalar: float(np.median(of)) for scalar, of in chosen.items()}
            return {**case, "errors": found, "scalars": scalars}

        return monitor.collect("cases", list(enumerate(self.cases())), errors, _name)

    def covariance(self, function: str, speed: Any, a: Array, b: Array) -> Array:
        """The covariance of a function at points a with it at b, whose times are the rows, over and
        over.
        """
        at, bt = (jnp.arange(len(points)) % self.rows for points in (a, b))
        gaussian = ak.Gaussian(self.lengthscale)
        in_space = a @ b.T if function == "linear" else jnp.exp(gaussian.pairwise(a, b))
        return in_space * (1.0 + speed**2 * jnp.minimum(at[:, None], bt[None]))

    def draw(self, key: Array, function: str, noise: float, speed: float) -> Task:
        """Rows of one sequence; queries, and the function there at the time of their row."""
        of_points, of_function, of_noise = jax.random.split(key, 3)
        points = jax.random.normal(of_points, (2 * self.rows, self.dim))
        points = points / jnp.linalg.norm(points, axis=1, keepdims=True)
        covariance = self.covariance(function, speed, points, points)
        covariance = covariance + JITTER * (1 + speed**2 * self.rows) * jnp.eye(len(points))
        normal = jax.random.normal(of_function, (len(points), self.dim_v))
        values = jnp.linalg.cholesky(covariance) @ normal
        v = values[: self.rows] + noise * jax.random.normal(of_noise, (self.rows, self.dim_v))
        return Task(points[: self.rows], v, points[self.rows :], values[self.rows :])

    def posterior(self, data: Task, function: str, noise: float, speed: float) -> Array:
        """The posterior mean at each query given the rows up to its own: of linear functions, the
        Kalman filter of the random walk, which is the recursive least squares that knows the drift.

        Forward substitution solves all leading blocks of the covariance by one factor.
        """
        covariance = self.covariance(function, speed, data.x, data.x)
        factor = jnp.linalg.cholesky(covariance + noise**2 * jnp.eye(self.rows))
        of_queries = self.covariance(function, speed, data.x, data.at)
        solve = jax.scipy.linalg.solve_triangular
        left, right = (solve(factor, part, lower=True) for part in (of_queries, data.y))
        return jnp.triu(left).T @ right  # row t of a query's column enters where t ≤ its own row

    def report(self, results: list[dict[str, Any]], run: Run) -> None:
        rows = [self.summarised(found) for found in results]
        draw_errors(run, rows, self)
        for row in rows:
            run.table_of(
                f"Mean squared error, {_name(row)}, its ratio to the oracle's, and how much it is "
                f"above the best layer's; 95 % intervals over {self.sequences} sequences",
                [{"layer": name, **one} for name, one in row["layers"].items()],
            )
        predictions = judge_and_print(run, claims(), rows, _name)
        run.summary({"rows": rows, "predictions": predictions})

    def summarised(self, found: dict[str, Any]) -> dict[str, Any]:
        """Means with half widths of 95 % intervals, ratios to the oracle, and paired differences
        from the layer of the least mean."""
        errors = {name: np.asarray(values) for name, values in found["errors"].items()}
        layers = [name for name in errors if name != ORACLE]
        best = min(layers, key=lambda name: errors[name].mean())
        oracle = errors[ORACLE]
        table = {}
        for name, values in errors.items():
            ratio = values.mean() / oracle.mean()
            above = values - errors[best]
            table[name] = {
                "error": values.mean(),
                "half_width": half_width(values),
                "ratio": ratio,
                "ratio_half_width": half_width(values - ratio * oracle) / oracle.mean(),
                "above_best": above.mean(),
                "above_best_half_width": half_width(above),
                "scalars": found["scalars"].get(name, {}),
            }
        case = {name: found[name] for name in ("function", "noise", "speed")}
        return {**case, "best": best, "layers": table}


_name = "{function}, noise {noise:g}, speed {speed:g}".format_map


def claims() -> Claims:
    """What was predicted before the first run."""

    def error(row: dict[str, Any], name: str) -> float:
        return row["layers"][name]["error"]

    def least(row: dict[str, Any], *names: str) -> float:
        return min(error(row, name) for name in names)

    recursive = "Mesa, forgetting"
    others = [name for name in LAYERS if name != recursive]
    local = ("softmax", "window", "softmax, forgetting", "order 1", "order 1, forgetting")
    return {
        "linear: Mesa with forgetting has the least error": where(
            lambda row: row["function"] == "linear",
            lambda row: error(row, recursive) <= least(row, *others),
        ),
        "linear: Mesa with forgetting is within 10 % of the oracle": where(
            lambda row: row["function"] == "linear",
            lambda row: row["layers"][recursive]["ratio"] <= 1.1,
        ),
        "linear, no drift: the delta rule has twice the error of Mesa or more": where(
            lambda row: row["function"] == "linear" and not row["speed"],
            lambda row: error(row, "delta") >= 2 * error(row, "Mesa"),
        ),
        "linear, drift: gates change the error of the delta rule by less than 5 %": where(
            lambda row: row["function"] == "linear" and row["speed"],
            lambda row: abs(error(row, "gated delta") / error(row, "delta") - 1) < 0.05,
        ),
        "linear: order 1 has less error than softmax": where(
            lambda row: row["function"] == "linear",
            lambda row: error(row, "order 1") < error(row, "softmax"),
        ),
        "drift: forgetting lowers the error of every layer that has it": where(
            lambda row: row["speed"],
            lambda row: all(
                error(row, after) <= error(row, before)
                for before, after in (
                    ("softmax", "softmax, forgetting"),
                    ("linear", "decay"),
                    ("Mesa", recursive),
                    ("order 1", "order 1, forgetting"),
                )
            ),
        ),
        "nonlinear: a local layer (softmax or order 1) has the least error": where(
            lambda row: row["function"] == "nonlinear",
            lambda row: row["best"] in local,
        ),
        "linear attention has the largest error": lambda row: (
            error(row, "linear") >= max(error(row, name) for name in LAYERS)
        ),
    }


def draw_errors(run: Run, rows: list[dict[str, Any]], study: TestTimeRegression) -> None:
    """The ratio of each layer's error to the oracle's, a panel for each function and noise."""
    functions, noises = study.functions, study.noises
    figure, axes = facets(functions, noises, width=3.4, height=3.0, sharey=True)
    for (function, noise), ax in axes.items():
        here = [row for row in rows if (row["function"], row["noise"]) == (function, noise)]
        ratios, widths = (
            {
                f"speed {row['speed']:g}": [row["layers"][name][part] for name in LAYERS]
                for row in here
            }
            for part in ("ratio", "ratio_half_width")
        )
        draw_dots(ax, list(LAYERS), ratios, widths)
        ax.axvline(1.0, color=ak.plot.ink(), linewidth=0.8)
        ax.set(xscale="log", title=f"{STYLES[function]}, noise {noise:g}")
    label_outer(axes.values(), "squared error ÷ oracle's", "")
    save_with_legend(run, "errors", figure, figure.axes[:1])
