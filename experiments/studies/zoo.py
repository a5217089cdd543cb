"""Kernels of regression and attention: shapes, fits, weights, and seconds as lengths grow."""

import functools
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..benchmarks.driver import interleaved, medians
from ..config import Data, Several
from ..reports import (
    draw_fits,
    draw_heat_maps,
    draw_lines,
    lengths_axis,
    save_with_legend,
    subplots,
)
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study, describe, require_one_input

KERNELS: dict[str, type[ak.kernels.Radial]] = {
    "Gaussian": ak.Gaussian,
    "boxcar": ak.kernels.Boxcar,
    "triangular": ak.kernels.Triangular,
    "Epanechnikov": ak.Epanechnikov,
}
FEATURES = {"Gaussian": ak.Gaussian, "softmax": ak.DotProduct}


Table = dict[str, dict[str, Any]]
# the data, fits by kernel, tokens, errors of random features, and seconds by kind of attention
Results = tuple[ak.data.Dataset, dict[str, ak.Fit], Array, Table, Table]


def t5_table() -> Array:
    """A relative bias of each bucket of distances."""
    return 2.0 * jnp.cos(jnp.arange(32.0))


def attentions(table: Array, window: int, slope: float) -> Table:
    """Kernel and prior of each kind of causal attention; `table`: of the relative biases of T5."""
    causal, dot = ak.Causal(), ak.DotProduct()
    return {
        "softmax": {"kernel": dot, "prior": causal},
        "linear": {"kernel": ak.kernels.EluFeatures(), "prior": causal},
        "window": {"kernel": dot, "prior": ak.Window(window, 0)},
        "ALiBi": {"kernel": dot, "prior": causal * ak.Alibi(slope)},
        "T5": {"kernel": dot, "prior": causal * ak.priors.RelativeBias(table, bidirectional=False)},
    }


class Zoo(Study):
    """Kernels of regression and of attention, side by side.

    The triangular kernel, max(0, 1 − r), goes by the name of Epanechnikov in some lecture notes;
    Epanechnikov's is the parabola (1 − r²)₊. Both are here under their own names.
    """

    study: Literal["zoo"]
    is_benchmark: ClassVar[bool] = True
    data: Data
    tokens: int = Field(default=48, ge=4, le=256)
    window: int = Field(default=6, ge=1)
    slope: float = Field(default=0.2, gt=0)
    dim: int = Field(default=64, ge=1, le=1024)
    lengths: Several[Annotated[int, Field(ge=16, le=10**6)]]
    window_of_cost: int = Field(default=256, ge=1)
    repeats: int = Field(default=3, ge=1)
    spread: float = Field(default=0.3, gt=0, description="sd of random features, in lengthscales")
    counts: Several[Annotated[int, Field(ge=1, le=10**6)]] = [16, 64, 256, 1024, 4096]

    def check(self) -> None:
        require_one_input(self)

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        keys = Keys(key)
        data = self.data.load(keys.next())
        monitor.print(f"fits of {len(KERNELS)} kernels, then errors of random features")
        fits = {
            name: ak.fit(ak.KernelRegression(kernel(1.0)), data.x, data.y)  # by leave-one-out
            for name, kernel in KERNELS.items()
        }
        tokens = jax.random.normal(keys.next(), (self.tokens, 16))
        errors = self.feature_errors(keys.next())
        return data, fits, tokens, errors, self.costs(monitor, keys.next())

    def report(self, results: Results, run: Run) -> None:
        data, fitted, tokens, errors, costs = results
        fits, titles, lowest = {}, [], min(fit.loss for fit in fitted.values())
        for name, fit in fitted.items():
            run.note([f"{name}: {sentence}" for sentence in fit.warnings()])
            fits[name] = {"lengthscale": fit.model.kernel.lengthscale, "leave_one_out": fit.loss}
            error = f"{fit.loss:.4f}{', the lowest' if fit.loss == lowest else ''}"
            titles.append(f"{name}: error {error} (ℓ = {fit.model.kernel.lengthscale:.3g})")
        draw_shapes(run)
        draw_fits(run, "fits", data, list(fitted.values()), titles)
        self.draw_heat_maps(run, tokens)
        self.draw_feature_errors(run, errors)
        self.draw_costs(run, costs)
        run.table_of("Leave-one-out fits", [{"kernel": name, **fit} for name, fit in fits.items()])
        run.table_of(
            f"Root mean square error of the output of {', '.join(map(str, self.counts))} random "
            f"features, and its slope (theory −0.5)",
            [{"features": name, **found} for name, found in errors.items()],
        )
        run.table_of(
            f"Seconds of {', '.join(map(str, self.lengths))} tokens, d = {self.dim}",
            [{"attention": name, **found} for name, found in costs.items()],
        )
        run.summary(
            {"data": describe(data), "fits": fits, "features": errors, "costs": costs}
            | {"counts": self.counts, "lengths": self.lengths}
        )

    def draw_heat_maps(self, run: Run, x: Array) -> None:
        """Weights of the same tokens by every kind of attention, and weights of regression."""
        line = jnp.linspace(-3.0, 3.0, self.tokens)[:, None]
        regression = {
            name: ak.attention_weights(line, line, kernel=kernel(1.0))
            for name, kernel in KERNELS.items()
        }
        attention = {
            name: ak.attention_weights(x, x, **parts)
            for name, parts in attentions(t5_table(), self.window, self.slope).items()
        }
        label = "weight of the key (grey: hidden)"
        figure = draw_heat_maps(regression | attention, 3, label, most=0.3)
        figure.suptitle("Kernels of the distance of points, then causal attention of random tokens")
        run.figure("heat_maps", figure)

    def feature_errors(self, key: Array) -> Table:
        """Error of linear attention against the number of random features."""
        points_key, *draw_keys = jax.random.split(key, 17)
        q, k, v = jax.random.normal(points_key, (3, 256, 4))
        q, k = self.spread * q, self.spread * k
        found: Table = {}
        for name, make in FEATURES.items():
            kernel = make(1.0)
            exact = ak.attend(q, k, v, kernel=kernel)
            errors = []
            for count in self.counts:
                drawn = (ak.kernels.RandomFeatures(count, 4, key=one) for one in draw_keys)
                methods = map(ak.methods.Linear, drawn)
                outs = [ak.attend(q, k, v, kernel=kernel, method=method) for method in methods]
                errors.append(float(jnp.sqrt(jnp.mean((jnp.stack(outs) - exact[None]) ** 2))))
            slope = float(np.polyfit(np.log(self.counts), np.log(errors), 1)[0])
            found[name] = {"error": errors, "slope": slope}
        return found

    def draw_feature_errors(self, run: Run, found: Table) -> None:
        figure, ax = subplots(figsize=(4.8, 4.0))
        errors = {name: part["error"] for name, part in found.items()}
        draw_lines(ax, self.counts, errors)
        theory = errors["Gaussian"][0] * np.sqrt(self.counts[0] / np.asarray(self.counts))
        ax.plot(self.counts, theory, ":", color=ak.plot.ink(), label=r"falling as $1/\sqrt{M}$")
        ax.set(xscale="log", yscale="log", xlabel="number of positive random features M")
        ax.set_ylabel("root mean square error of the output")
        slopes = ", ".join(f"$M^{{{part['slope']:.2f}}}$" for part in found.values())
        ax.set_title(f"the error falls as {slopes}")
        save_with_legend(run, "features", figure, [ax], columns=1)

    def costs(self, monitor: Monitor, key: Array) -> Table:
        """Seconds of each kind of attention as the sequence grows, side by side."""

        def measure(length: int) -> dict[str, float]:
            q, k, v = jax.random.normal(key, (3, length, self.dim))
            contenders = {}
            for name, parts in attentions(t5_table(), self.window_of_cost, self.slope).items():
                if name == "linear":
                    parts["method"] = ak.methods.Linear()
                call = eqx.filter_jit(lambda q, k, v, parts=parts: ak.attend(q, k, v, **parts))
                contenders[name] = functools.partial(call, q, k, v)
            return medians(interleaved(contenders, self.repeats).seconds)

        rows = monitor.collect("cost", self.lengths, measure)
        return {name: {"seconds": [row[name] for row in rows]} for name in rows[0]}

    def draw_costs(self, run: Run, found: Table) -> None:
        figure, ax = subplots(figsize=(5.4, 3.4))
        draw_lines(ax, self.lengths, {name: part["seconds"] for name, part in found.items()})
        times, (first, *_) = np.asarray(self.lengths) / self.lengths[0], found["softmax"]["seconds"]
        for power, words in ((1, "N"), (2, "N²")):
            line = first * times**power
            ax.plot(self.lengths, line, ":", color=ak.plot.GREY, linewidth=1.0)
            ax.annotate(f"   ∝ {words}", (self.lengths[-1], line[-1]), va="center")
        lengths_axis(ax, self.lengths, "tokens N")
        ax.set_ylabel(f"seconds, one head, d = {self.dim}")
        last = ", ".join(f"{name} {part['seconds'][-1]:.2g}" for name, part in found.items())
        ax.set_title(f"{self.lengths[-1]:,} tokens, seconds:\n{last}")
        save_with_legend(run, "cost", figure, [ax])


def draw_shapes(run: Run) -> None:
    """K against the distance, of regression; the weight of a position, of attention."""
    r = np.linspace(-2.0, 2.0, 401)
    figure, (left, right) = subplots(1, 2, figsize=(7.6, 2.9))
    for (name, kernel), style in zip(KERNELS.items(), ("-", "--", ":", "-."), strict=True):
        shape = jnp.exp(kernel(1.0).pairwise(jnp.zeros((1, 1)), jnp.asarray(r)[:, None]))[0]
        left.plot(r, shape, style, label=name)
    left.set(xlabel="distance, in lengthscales", ylabel="K of the kernel")
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    back = jnp.arange(33)
    here = jnp.full(1, 32)
    table = jnp.linspace(0.0, -4.0, 32)
    priors = {
        "causal": ak.Causal(),
        "window": ak.Window(8, 0),
        "ALiBi": ak.Alibi(0.2),
        "T5 (a table)": ak.priors.RelativeBias(table, bidirectional=False),
    }
    for (name, prior), style in zip(priors.items(), ("-", "--", ":", "-."), strict=True):
        weight = jnp.exp(prior.pairwise(here, 32 - back))[0]
        right.step(back, weight, style, where="mid", label=name)
    right.set(xlabel="distance back, in tokens", ylabel="π of the prior")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    run.figure("shapes", figure)
