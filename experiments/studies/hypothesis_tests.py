"""How often do tests reject? Size and power over simulated data sets, in one program a case."""

import functools
from typing import Annotated, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak
from attnkernel.kernels import AitchisonAitken

from ..config import NonEmpty, Positive
from ..reports import draw_lines, label_outer, panels, save_with_legend
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study, fit_by_leave_one_out

Case = Literal["column, order 0", "column, order 1", "category", "linear model"]
KINDS = ("default", "of the fit")  # the lengthscale of the test: see `simulate`
EXPECTED_SIZE = (0.03, 0.07)  # at a level of 5 %
CORRELATION = 0.7  # of the two columns
Results = dict[Case, list[np.ndarray]]  # p-values for each effect, shape (data sets, kinds)


class HypothesisTests(Study):
    """The share of data sets in which `ak.inference` rejects a hypothesis, by the effect."""

    study: Literal["hypothesis_tests"]
    precision: Literal["float32", "float64"] = "float64"
    n: int = Field(default=100, ge=20, le=1000)
    noise: Positive = 0.5
    cases: NonEmpty[Case] = list(get_args(Case))
    effects: list[Annotated[float, Field(ge=0)]] = Field(
        default=[0.0, 0.1, 0.2, 0.3, 0.4],
        min_length=2,
        max_length=12,
        description="from 0: the hypothesis",
    )
    level: float = Field(default=0.05, gt=0, lt=1)
    data_sets: int = Field(default=1000, ge=2, le=100_000)
    power_data_sets: int = Field(default=250, ge=2, description="for effects above 0")
    draws: int = Field(default=399, ge=19)
    starts: int = Field(default=3, ge=1)
    batch: int = Field(default=25, ge=1, description="data sets per call of the program")

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        set_keys, cases = Keys(key).stack(self.data_sets), {}
        for case in self.cases:
            simulate = functools.partial(self.simulate, case)
            many = jax.jit(jax.vmap(simulate, in_axes=(None, 0)))
            for effect in self.effects:
                keys = set_keys[: self.power_data_sets] if effect else set_keys
                cases[case, effect] = functools.partial(many, effect), keys
        found = monitor.simulate(cases, self.batch)
        return {case: [found[case, effect] for effect in self.effects] for case in self.cases}

    def simulate(self, case: Case, effect: Array, key: PRNGKeyArray) -> Array:
        """Simulates a data set and returns the p-values of its tests, one for each of `KINDS`.

        By default the lengthscale of a linear model's test depends on x alone, and that of a column
        is chosen again for each sample of labels. The other kind takes those of the fit for all.
        """
        x_key, noise_key, test_key = jax.random.split(key, 3)
        z = jax.random.normal(x_key, (self.n, 2))
        second = CORRELATION * z[:, 0] + np.sqrt(1.0 - CORRELATION**2) * z[:, 1]
        x = 2.0 * jax.scipy.stats.norm.cdf(jnp.stack([z[:, 0], second], axis=1)) - 1.0
        noise = self.noise * jax.random.normal(noise_key, (self.n,))
        options: Any = {"draws": self.draws, "key": test_key}
        if case == "linear model":
            y = 1.0 + x[:, 0] + x[:, 1] + effect * jnp.sin(5.0 * x[:, 0]) + noise
            fit = fit_by_leave_one_out(ak.Gaussian(0.3 * jnp.ones(2)), 0, x, y, self.starts)
            found = [
                ak.econometrics.specification_test(x, y, **options),
                ak.econometrics.specification_test(x, y, kernel=fit.model.kernel, **options),
            ]
            return jnp.stack([each.p_value for each in found])
        mean, kernel = jnp.sin(3.0 * x[:, 0]), ak.Gaussian(0.3 * jnp.ones(2))
        if case == "category":
            x = x.at[:, 1].set(jnp.floor(1.5 * (x[:, 1] + 1.0)))  # 0, 1 or 2
            kernel = ak.Gaussian(0.3).on(0) * AitchisonAitken(0.3, categories=3).on(1)
            mean = mean + 2.0 * effect * (x[:, 1] == 1.0)
        else:
            mean = mean + effect * jnp.sin(3.0 * x[:, 1])
        order = 1 if case == "column, order 1" else 0
        fit = fit_by_leave_one_out(kernel, order, x, mean + noise, self.starts)
        found = [
            ak.econometrics.relevance_test(fit, 1, reselect=reselect, **options)
            for reselect in (True, False)
        ]
        return jnp.stack([each.p_value for each in found])

    def report(self, results: Results, run: Run) -> None:
        rows = [
            {"case": case, "lengthscale": kind, "effect": effect}
            | self._summarise(found[i][:, j], is_size=not (effect or j))
            for case, found in results.items()
            for j, kind in enumerate(KINDS)
            for i, effect in enumerate(self.effects)
        ]
        run.table_of(
            f"Share of data sets of {self.n} rows in which a test of level {self.level:g} rejects, "
            f"by its lengthscale",
            rows,
        )
        self._draw_power(run, results)
        run.summary({"level": self.level, "data_sets": self.data_sets, "rejections": rows})

    def _summarise(self, p_values: np.ndarray, *, is_size: bool) -> dict[str, Any]:
        """Returns the share of p-values up to the level, and its binomial standard error.

        `is_size`: whether it is expected to be the level.
        """
        share = float(np.mean(p_values <= self.level))
        expected = EXPECTED_SIZE if is_size and self.level == 0.05 else None
        return {
            "data_sets": len(p_values),
            "rejected": share,
            "standard_error": np.sqrt(share * (1.0 - share) / len(p_values)),
            "expected": expected,
            "reached": None if expected is None else expected[0] <= share <= expected[1],
        }

    def _draw_power(self, run: Run, results: Results) -> None:
        """Draws the share of rejections against the effect, a panel a case; saves the figure."""
        figure, axes = panels(len(results), width=4.2, height=2.6)
        for ax, (case, found) in zip(axes, results.items(), strict=True):
            share = np.stack([np.mean(p_values <= self.level, axis=0) for p_values in found])
            ax.axhline(self.level, color=ak.plot.ink(), linewidth=0.8)
            lines = {f"lengthscale: {kind}": share[:, j] for j, kind in enumerate(KINDS)}
            draw_lines(ax, self.effects, lines, markersize=4)
            title = f"rejected at {self.effects[0]:g}: {share[0, 0]:.3f} and {share[0, 1]:.3f}"
            ax.set_title(f"{case}\n{title}", fontsize=9)
            ax.set_ylim(0.0, 1.02)
        label_outer(axes, "effect", "share rejected")
        save_with_legend(run, "power", figure, axes)
