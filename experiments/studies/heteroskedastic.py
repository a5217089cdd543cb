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

        def labels(x: np.ndarray, key: PRNGKeyArray) -> Float[Array, " n"]:
            noise = jax.random.normal(key, x.shape, float)
            return ak.data.heteroskedastic_mean(x) + (0.2 + growth * np.abs(x)) * noise

        y, new, truth = labels(x, data_key), labels(at, label_key), ak.data.heteroskedastic_mean(at)
        model = ak.KernelRegression(ak.Gaussian(0.3), order=self.order)

        def fit_weighted(weights: Array | np.ndarray | None) -> ak.Fit:
            search = {"objective": ak.LeaveOneOut(), "starts": 3, "steps": 30}
            return ak.fit(model, x, y, weights=weights, **search)

        plain = fit_weighted(None)
        weighted = fit_weighted(1.0 / ak.noise_variance(plain, x))
        by_truth = fit_weighted(1.0 / (0.2 + growth * np.abs(x)) ** 2)
        max_likelihood = ak.fit(
            ak.MeanVarianceRegression(plain.model, ak.KernelRegression(ak.Gaussian(1.0))),
            x,
            y,
            objective=ak.HoldOut(self.hold_out, score=ak.objectives.log_score),
            optimizer=optax.adam(self.learning_rate),
            steps=self.steps,
            key=fit_key,
        )

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
            "true weights": predictive(by_truth, "local", (0.2 + growth * jnp.abs(at)) ** 2),
        }
        fits = (plain, plain, weighted, max_likelihood, by_truth)
        kernels = [getattr(fit.model, "mean", fit.model).kernel for fit in fits]
        means, sds, variances = (jnp.stack(part) for part in zip(*methods.values(), strict=True))
        squares = ((means - truth[None, :]) / (0.2 + growth * jnp.abs(at))[None, :]) ** 2
        scores = jax.vmap(lambda m, v: jnp.mean(ak.objectives.log_score((m, v), new)))(
            means, variances
        )
        return {
            "lengthscale": jnp.stack([kernel.lengthscale for kernel in kernels]),
            "error": jnp.trapezoid(squares, dx=1.0 / (self.points - 1), axis=1),
            "sd": sds,
            "log_score": scores,
            "inside": jnp.abs(new[None, :] - means) <= 1.959964 * jnp.sqrt(variances),
        }

    def report(self, results: Results, run: Run) -> None:
        at = np.linspace(-3.0, 3.0, self.points)
        rows = [
            _summarise_method(growth, i, found, at)
            for (growth,), found in results.items()
            for i in range(len(METHODS))
        ]
        run.table_of(
            f"{self.data_sets} data sets of {self.n} points, order {self.order}, sd of the noise "
            f"0.2 + growth |x|. Coverage: of 95 % intervals of new labels, at the worst x and the "
            f"best",
            rows,
        )
        self._draw_noise_sd(run, at, results, rows)
        run.summary({"data_sets": self.data_sets, "n": self.n, "methods": rows})

    def _draw_noise_sd(
        self, run: Run, at: np.ndarray, results: Results, rows: list[dict[str, Any]]
    ) -> None:
        """Draws the sd of the noise at the inputs `at`, true and estimated by each method, a panel
        for each growth; saves the figure in `run`. `rows`: those of `_summarise_method`.
        """
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
            error = {
                row["method"]: row["error_over_one_sd"] for row in rows if row["growth"] == growth
            }
            gain = f"reweighting: {error['reweighted']:.2f} × the error of the mean"
            ax.set_title(f"sd 0.2 + {growth:g}|x|\n{gain}")
            ax.set(xlabel="x", ylabel="sd of the noise: median and quartiles")
        save_with_legend(run, "heteroskedastic", figure, axes)


def _summarise_method(
    growth: float, method: int, results: dict[str, np.ndarray], x: np.ndarray
) -> dict[str, Any]:
    """Returns a method's errors, log score and coverage over all data sets with noise of sd 0.2 +
    growth |x|. `method`: its place in `METHODS`; `results`: arrays (data sets, methods, ...); `x`:
    the inputs of sd and coverage.
    """
    error, truth = results["error"], 0.2 + growth * np.abs(x)
    # paired: the same data for both
    ratio = error[:, method].mean() / error[:, 0].mean()
    away = (error[:, method] - ratio * error[:, 0]) / error[:, 0].mean()
    coverage = results["inside"][:, method].mean(axis=0)
    return {
        "growth": growth,
        "method": METHODS[method],
        "median_lengthscale": float(np.median(results["lengthscale"][:, method])),
        "error_of_mean": float(error[:, method].mean()),
        "error_over_one_sd": float(ratio),
        "standard_error": float(away.std(ddof=1) / np.sqrt(len(away))),
        "error_of_log_sd": float(np.sqrt(np.mean(np.log(results["sd"][:, method] / truth) ** 2))),
        "log_score": float(results["log_score"][:, method].mean()),
        "worst_coverage": float(coverage.min()),
        "most_coverage": float(coverage.max()),
    }
