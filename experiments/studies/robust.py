"""Outliers: the error of least squares, of robust iterations and of the local median, by share."""

from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Positive
from ..reports import draw_lines, save_with_legend, subplots
from ..runs import Run
from .study import SimulationStudy

METHODS = ("least squares", "Huber", "bisquare", "local median")
NOISE = 0.2
Results = dict[str, np.ndarray]


class Robust(SimulationStudy):
    """The error of fits of a given lengthscale to data of which a share is moved, to one side."""

    study: Literal["robust"]
    n: int = Field(default=150, ge=20, le=2000)
    lengthscale: Positive = 0.2
    shares: list[Annotated[float, Field(ge=0, le=0.5)]] = Field(
        default=[0.0, 0.04, 0.08, 0.12, 0.2, 0.3],
        min_length=2,
        max_length=12,
        description="of outliers",
    )
    shift: Positive = Field(default=10.0, description="by which outliers are moved")
    iterations: int = Field(default=3, ge=1, le=100)

    def simulate(self, key: PRNGKeyArray) -> dict[str, Array]:
        """Returns labels, curves and mean squares of their errors, for each share and method.

        The same noise for all shares; more outliers contain the fewer ones.
        """
        noise_key, order_key = jax.random.split(key)
        x = jnp.linspace(-3.0, 3.0, self.n)
        truth = ak.data.heteroskedastic_mean(x)
        clean = truth + NOISE * jax.random.normal(noise_key, x.shape, x.dtype)
        rank = jax.random.permutation(order_key, self.n)
        counts = jnp.round(jnp.asarray(self.shares) * self.n)
        labels = clean[None] + jnp.where(rank[None] < counts[:, None], self.shift, 0.0)
        model = ak.KernelRegression(ak.Gaussian(self.lengthscale), order=1)
        options: Any = {"iterations": self.iterations}
        models: list[Any] = [
            model,
            ak.RobustRegression(model, loss=ak.Huber(), **options),
            ak.RobustRegression(model, **options),
            ak.LocalQuantile(model.kernel),
        ]
        curves = jnp.stack([each(x, x, labels.T).T for each in models], axis=1)
        square = jnp.mean((curves - truth[None, None]) ** 2, axis=-1)
        return {"labels": labels, "curves": curves, "square": square}

    def report(self, results: dict[tuple[()], Results], run: Run) -> None:
        (found,) = results.values()
        error = np.sqrt(found["square"].mean(axis=0))  # by share and method
        rows = [
            {"share": share, **dict(zip(METHODS, map(float, errors), strict=True))}
            for share, errors in zip(self.shares, error, strict=True)
        ]
        run.table_of(
            f"Root mean square error of fits, {self.data_sets} data sets of {self.n} labels with "
            f"noise {NOISE}, of which a share is moved by {self.shift:g}",
            rows,
            ("share", *METHODS),
        )
        self._draw_errors(run, error, found)
        run.summary({"data_sets": self.data_sets, "errors": rows})

    def _draw_errors(self, run: Run, error: np.ndarray, results: Results) -> None:
        """Draws one data set with its fits, and errors, of shape (shares, methods), against the
        share; saves the figure.
        """
        figure, (left, right) = subplots(1, 2, figsize=(9.4, 3.5))
        place = min(2, len(self.shares) - 1)
        x = np.linspace(-3.0, 3.0, self.n)
        y, curves = results["labels"][0, place], results["curves"][0, place]
        left.plot(x, y, ".", color=ak.plot.ink(), markersize=3, alpha=0.5)
        shares = 100 * np.asarray(self.shares)
        draw_lines(left, x, dict(zip(METHODS, curves, strict=True)), markersize=4, markevery=10)
        draw_lines(right, shares, dict(zip(METHODS, error.T, strict=True)), markersize=4)
        left.set(xlabel="x", ylabel="y", title=f"one data set, {self.shares[place]:.0%} moved")
        right.set(xlabel="outliers, %", ylabel="error of the fit", yscale="log")
        ratio = f"{error[place, 2] / error[0, 2]:.2f} × the error without outliers"
        right.set_title(f"bisquare at {self.shares[place]:.0%}: {ratio}")
        save_with_legend(run, "robust", figure, [left, right])
