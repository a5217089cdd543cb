"""Noise that differs from place to place: what a fit gains by knowing it."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Positive
from ..reports import save_with_legend, subplots
from ..runs import Run
from .study import SimulationStudy

Results = dict[tuple[float], dict[str, np.ndarray]]  # by growth: arrays over the data sets
METHODS = ("one sd", "local sd", "reweighted", "likelihood", "true weights")


class Heteroskedasticity(SimulationStudy):
    """Fits with one sd, with sd(x), or weighted by it, over many data sets."""

    study: Literal["heteroskedastic"]
    n: int = Field(default=150, ge=20, le=2000)
    growth: list[Positive] = Field(
        default=[0.05, 0.5],
        min_length=1,
        max_length=4,
        description="g of the noise's sd 0.2 + g|x|; 0.05: Czyż (2024)",
    )
    order: Literal[0, 1] = 1
    data_sets: int = Field(default=200, ge=2, le=100_000)
    hold_out: int = Field(default=30, ge=1)
    steps: int = Field(default=150, ge=1)
    learning_rate: Positive = 0.05
    points: int = Field(default=61, ge=3, le=1000)

    def cases(self) -> list[tuple[float]]:
        return [(growth,) for growth in self.growth]

    def simulate(self, key: PRNGKeyArray, growth: float) -> dict[str, Array]:
        r"""Returns, for each method: lengthscale, error of the mean, sd at each input, log score,
        and whether the interval of a new label holds it.

        The error is $\frac{1}{6} \int_{-3}^3 (\hat f - f)^2 / s^2$, in units of the noise.
        """
        data_key, label_key, fit_key = jax.random.split(key, 3)
        x, at = np.linspace(-3.0, 3.0, self.n), np.linspace(-3.0, 3.0, self.points)

        def true_sd(x: np.ndarray) -> np.ndarray:
            return 0.2 + growth * np.abs(x)

        def labels(x: np.ndarray, key: PRNGKeyArray) -> Float[Array, " n"]:
            noise = jax.random.normal(key, x.shape, float)
            return ak.data.heteroskedastic_mean(x) + true_sd(x) * noise

        y, new, truth = labels(x, data_key), labels(at, label_key), ak.data.heteroskedastic_mean(at)
        model = ak.KernelRegression(ak.Gaussian(0.3), order=self.order)

        def fit_weighted(weights: Array | np.ndarray | None) -> ak.Fit:
            search = {"objective": ak.LeaveOneOut(), "starts": 3, "steps": 30}
            return ak.fit(model, x, y, weights=weights, **search)

        plain = fit_weighted(None)
        weighted = fit_weighted(1.0 / ak.noise_variance(plain, x))
        by_truth = fit_weighted(1.0 / true_sd(x) ** 2)
        both = ak.MeanVarianceRegression(plain.model, ak.KernelRegression(ak.Gaussian(1.0)))
        score = ak.HoldOut(self.hold_out, score=ak.objectives.log_score)
        how = {"optimizer": optax.adam(self.learning_rate), "steps": self.steps, "key": fit_key}
        max_likelihood = ak.fit(both, x, y, objective=score, **how)

        def predictive(fit: ak.Fit, noise: str, assumed: Any = 1.0) -> tuple[Array, Array, Array]:
            """The mean, the sd of the noise, and the variance of a new label.

            `assumed`: one over the weight of a new label in the fit.
            """
            bands = ak.bands(fit, at, noise=noise, corrected=False)
            if noise == "constant":
                freedom = ak.degrees_of_freedom(fit).residual
                variance = jnp.sum((fit.y - fit(fit.x)) ** 2) / freedom * jnp.ones(len(at))
            else:
                variance = ak.noise_variance(fit, at) * assumed
            return bands.centre, jnp.sqrt(variance), variance + bands.standard_error**2

        mean, variance = max_likelihood(at)
        methods = {
            "one sd": predictive(plain, "constant"),
            "local sd": predictive(plain, "local"),
            "reweighted": predictive(weighted, "local", ak.noise_variance(plain, at)),
            "likelihood": (mean, jnp.sqrt(variance), variance),
            "true weights": predictive(by_truth, "local", true_sd(at) ** 2),
        }
        fits = (plain, plain, weighted, max_likelihood, by_truth)
        kernels = [getattr(fit.model, "mean", fit.model).kernel for fit in fits]
        means, sds, variances = (jnp.stack(part) for part in zip(*methods.values(), strict=True))
        squares = ((means - truth[None, :]) / true_sd(at)[None, :]) ** 2
        score_of = jax.vmap(lambda m, v: jnp.mean(ak.objectives.log_score((m, v), new)))
        return {
            "lengthscale": jnp.stack([kernel.lengthscale for kernel in kernels]),
            "error": jnp.trapezoid(squares, dx=1.0 / (self.points - 1), axis=1),
            "sd": sds,
            "log_score": score_of(means, variances),
            "inside": jnp.abs(new[None, :] - means) <= 1.959964 * jnp.sqrt(variances),
        }

    def report(self, results: Results, run: Run) -> None:
        at = np.linspace(-3.0, 3.0, self.points)
        rows = [
            {"growth": growth, "method": name} | _summarise(found, i, 0.2 + growth * np.abs(at))
            for (growth,), found in results.items()
            for i, name in enumerate(METHODS)
        ]
        run.table_of(
            f"{self.data_sets} data sets of {self.n} points, order {self.order}, sd of the noise "
            f"0.2 + growth |x|. Coverage: of 95 % intervals of new labels, at the worst x and the "
            f"best",
            rows,
        )
        self._draw_noise_sd(run, results, rows)
        run.summary({"data_sets": self.data_sets, "n": self.n, "methods": rows})

    def _draw_noise_sd(self, run: Run, results: Results, rows: list[dict[str, Any]]) -> None:
        """Draws the sd of the noise, true and estimated by each method, a panel for each growth;
        saves the figure in `run`. `rows`: those of the table.
        """
        at = np.linspace(-3.0, 3.0, self.points)
        size = (4.2 * len(results), 3.2)
        figure, (axes,) = subplots(1, len(results), squeeze=False, figsize=size)
        looks = {0: ("-.", ak.plot.PURPLE), 1: ("-", ak.plot.BLUE), 3: ("--", ak.plot.ORANGE)}
        for ax, ((growth,), numbers) in zip(axes, results.items(), strict=True):
            ax.plot(at, 0.2 + growth * np.abs(at), color=ak.plot.ink(), label="true sd")
            for i, (style, color) in looks.items():
                low, middle, high = np.quantile(numbers["sd"][:, i], (0.25, 0.5, 0.75), axis=0)
                ax.plot(at, middle, style, color=color, label=METHODS[i])
                look = {"alpha": 0.15, "linewidth": 0, "label": f"_{METHODS[i]}, quartiles"}
                ax.fill_between(at, low, high, color=color, **look)
            ax.set_ylim(bottom=0.0)
            of = {(row["growth"], row["method"]): row["error_over_one_sd"] for row in rows}
            gain = f"reweighting: {of[growth, 'reweighted']:.2f} × the error of the mean"
            ax.set_title(f"sd 0.2 + {growth:g}|x|\n{gain}")
            ax.set(xlabel="x", ylabel="sd of the noise: median and quartiles")
        save_with_legend(run, "heteroskedastic", figure, axes)


def _summarise(results: dict[str, np.ndarray], method: int, truth: np.ndarray) -> dict[str, float]:
    """Returns a method's errors, log score and coverage over all data sets. `results`: arrays (data
    sets, methods, ...); `method`: its place; `truth`: the sd of the noise where coverage is asked.
    """
    of_method = {name: values[:, method] for name, values in results.items()}
    error, plain = of_method["error"], results["error"][:, 0]
    # paired: the same data for both
    ratio = error.mean() / plain.mean()
    away = (error - ratio * plain) / plain.mean()
    coverage = of_method["inside"].mean(axis=0)
    return {
        "median_lengthscale": np.median(of_method["lengthscale"]),
        "error_of_mean": error.mean(),
        "error_over_one_sd": ratio,
        "standard_error": away.std(ddof=1) / np.sqrt(len(away)),
        "error_of_log_sd": np.sqrt(np.mean(np.log(of_method["sd"] / truth) ** 2)),
        "log_score": of_method["log_score"].mean(),
        "worst_coverage": coverage.min(),
        "most_coverage": coverage.max(),
    }
