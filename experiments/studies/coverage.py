"""How often do bands hold the truth, and intervals a new label? Many data sets in one program."""

import itertools
from collections.abc import Iterable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty
from ..reports import label_outer, looks_of, panels, save_with_legend
from ..runs import Run
from .study import SimulationStudy, fit_by_leave_one_out

Design = Literal["even", "boundary"]

# the range in which the coverage of a level of 95 % is expected
METHODS: dict[str, tuple[float, float] | None] = {
    "naive": None,
    "corrected": (0.93, 0.97),
    "naive, everywhere": None,
    "corrected, everywhere": (0.92, 0.98),
    "conformal": (0.94, 0.96),
    "conformal, local": (0.94, 0.96),
}
Results = dict[tuple[Design, int], dict[str, dict[str, np.ndarray]]]  # by design, order, method
_POINTWISE = ("naive", "corrected", "conformal", "conformal, local")


class Coverage(SimulationStudy):
    """Coverage and width of bands and intervals, on an even and a boundary-heavy design."""

    study: Literal["coverage"]
    n: int = Field(default=150, ge=20, le=2000)
    designs: NonEmpty[Design] = ["even", "boundary"]
    orders: NonEmpty[Literal[0, 1]] = [0, 1]
    data_sets: int = Field(default=1000, ge=2, le=100_000)
    level: float = Field(default=0.95, gt=0, lt=1)
    points: int = Field(default=61, ge=3, le=1000, description="inputs, evenly over [-3, 3]")
    draws: int = Field(default=500, ge=20, description="of noise, for each simultaneous band")
    starts: int = Field(default=3, ge=1)

    def cases(self) -> Iterable[tuple[Design, int]]:
        return itertools.product(self.designs, self.orders)

    def simulate(self, key: PRNGKeyArray, design: Design, order: int) -> dict[str, Any]:
        """Returns for each method whether its band holds the truth (`inside`, at each input or
        everywhere), and its mean `width`.

        Bands of the mean are evaluated evenly, intervals of labels at inputs distributed as the
        design.
        """
        x = inputs(design, self.n)
        data_key, label_key, draw_key = jax.random.split(key, 3)
        y = labels_at(x, data_key)
        fit = fit_by_leave_one_out(ak.Gaussian(0.3), order, x, y, self.starts)
        at = np.linspace(-3.0, 3.0, self.points)
        new = inputs(design, self.points)
        true_mean, labels = ak.data.heteroskedastic_mean(at), labels_at(new, label_key)
        drawn = {"kind": "simultaneous", "draws": self.draws, "key": draw_key}
        out = {}
        for name in METHODS:
            if "conformal" in name:
                band, truth = (
                    ak.conformal(fit, new, level=self.level, local="local" in name),
                    labels,
                )
            else:
                options = {"corrected": "corrected" in name, **(drawn if "every" in name else {})}
                band, truth = ak.bands(fit, at, level=self.level, **options), true_mean
            inside = (band.lower <= truth) & (truth <= band.upper)
            out[name] = {
                "inside": jnp.all(inside) if "everywhere" in name else inside,
                "width": jnp.mean(band.upper - band.lower),
            }
        return out

    def report(self, results: Results, run: Run) -> None:
        rows = [
            {"design": design, "order": order, "method": name} | self._summarise(name, found[name])
            for (design, order), found in results.items()
            for name in METHODS
        ]
        run.table_of(
            f"Coverage of {100 * self.level:g} % bands, in {self.data_sets} data sets of {self.n} "
            f"points; worst: of all inputs",
            rows,
        )
        self._draw_coverage(run, results)
        self._draw_example_bands(run)
        run.summary({"level": self.level, "data_sets": self.data_sets, "methods": rows})

    def _summarise(self, method: str, results: dict[str, np.ndarray]) -> dict[str, Any]:
        """Returns the coverage of a method over all data sets, its standard error, the lowest one
        among inputs, and the mean width. `results`: arrays `inside` (data sets, inputs), `width`.
        """
        inside = results["inside"].astype(float)
        of_sets = inside if inside.ndim == 1 else inside.mean(axis=1)
        expected = METHODS[method] if self.level == 0.95 else None
        coverage = float(of_sets.mean())
        return {
            "coverage": coverage,
            "standard_error": of_sets.std(ddof=1) / np.sqrt(len(of_sets)),
            "worst": None if inside.ndim == 1 else inside.mean(axis=0).min(),
            "width": results["width"].mean(),
            "expected": expected,
            "reached": None if expected is None else expected[0] <= coverage <= expected[1],
        }

    def _draw_coverage(self, run: Run, results: Results) -> None:
        """Draws the coverage of pointwise bands and intervals against x, a panel for each design
        and order, and saves the figure in `run`.
        """
        at = np.linspace(-3.0, 3.0, self.points)
        figure, axes = panels(len(results), width=3.9, height=2.7)
        looks = looks_of(_POINTWISE)
        for ax, ((design, order), found) in zip(axes, results.items(), strict=True):
            ax.axhline(self.level, color=ak.plot.ink(), linewidth=0.8)
            for name, look in looks.items():
                share = np.mean(found[name]["inside"], axis=0)
                places = inputs(design, self.points) if "conformal" in name else at
                ax.plot(places, share, **look, label=name, linewidth=1.2, markevery=5)
            naive, corrected = (np.mean(found[name]["inside"]) for name in _POINTWISE[:2])
            title = f"{design} design, local {('constant', 'linear')[order]}"
            ax.set_title(f"{title}\nnaive {naive:.2f}, corrected {corrected:.2f}")
        axes[0].set_ylim(top=1.005)
        label_outer(axes, "x", "share of data sets")
        save_with_legend(run, "coverage", figure, axes)

    def _draw_example_bands(self, run: Run) -> None:
        """Draws one data set of each design with three kinds of bands, and saves the figure in
        `run`.
        """
        at, key = np.linspace(-3.0, 3.0, self.points), self.keys().next()
        figure, axes = panels(len(self.designs), width=4.4, height=3.2)
        kinds: Any = (
            ("conformal, local", "#EAF1F7", ak.conformal, {"local": True}),
            (
                "simultaneous",
                "#BBDDF2",
                ak.bands,
                {"kind": "simultaneous", "draws": self.draws, "key": key},
            ),
            ("pointwise", ak.plot.SKY, ak.bands, {}),
        )
        for ax, design in zip(axes, self.designs, strict=True):
            x = inputs(design, self.n)
            y = labels_at(x, key)
            fit = fit_by_leave_one_out(ak.Gaussian(0.3), self.orders[-1], x, y, self.starts)
            for name, color, method, options in kinds:
                band = method(fit, at, level=self.level, **options)
                ax.fill_between(at, band.lower, band.upper, color=color, linewidth=0, label=name)
            ak.plot.points(x, y, ax=ax)
            truth = ak.data.heteroskedastic_mean(at)
            ax.plot(at, truth, color=ak.plot.ORANGE, linewidth=1.3, label="true mean")
            ax.set_title(f"{design} design")
        label_outer(axes, "x", "y")
        save_with_legend(run, "bands", figure, axes)


def inputs(design: Design, n: int) -> Float[np.ndarray, " n"]:
    """Over [-3, 3]: equally spaced; or the quantiles of the arcsine law, crowded at both ends."""
    even = np.linspace(-1.0, 1.0, n)
    return 3.0 * (even if design == "even" else np.sin(0.5 * np.pi * even))


def labels_at(x: Float[np.ndarray, " n"], key: PRNGKeyArray) -> Float[Array, " n"]:
    """Labels at inputs, of the mean and the noise of `ak.data.heteroskedastic`."""
    noise = jax.random.normal(key, x.shape, float)
    return ak.data.heteroskedastic_mean(x) + ak.data.heteroskedastic_sd(x) * noise
