"""A zoo of kernels: their shapes, the fits and weights that they give, and what they cost."""

from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array
from matplotlib.figure import Figure

import attnkernel as ak

from ..parts import Data, FieldError, Name, Study, describe, load
from ..results import Run
from ._panels import heat_map, label_outer, legend, panels
from ._sides import in_turn, medians

KERNELS: dict[str, type[ak.kernels.Radial]] = {
    "Gaussian": ak.Gaussian,
    "boxcar": ak.Boxcar,
    "triangular": ak.Triangular,
    "Epanechnikov": ak.Epanechnikov,
}


class Zoo(Study):
    """Kernels of regression and of attention, side by side.

    The triangular kernel, max(0, 1 − r), goes by the name of Epanechnikov in some lecture notes;
    Epanechnikov's is the parabola (1 − r²)₊. Both are here under their own names.
    """

    study: Literal["zoo"]
    name: Name = "zoo"
    is_benchmark: ClassVar[bool] = True
    data: Data
    tokens: Annotated[int, pydantic.Field(ge=4, le=256)] = 48
    window: Annotated[int, pydantic.Field(ge=1)] = 6
    slope: Annotated[float, pydantic.Field(gt=0)] = 0.2
    dim: Annotated[int, pydantic.Field(ge=1, le=1024)] = 64
    lengths: Annotated[
        list[Annotated[int, pydantic.Field(ge=16, le=10**6)]], pydantic.Field(min_length=2)
    ]
    window_of_cost: Annotated[int, pydantic.Field(ge=1)] = 256
    repeats: Annotated[int, pydantic.Field(ge=1)] = 3
    spread: Annotated[float, pydantic.Field(gt=0)] = pydantic.Field(
        default=0.3, description="sd of the points of the random features, in lengthscales"
    )
    counts: Annotated[
        list[Annotated[int, pydantic.Field(ge=1, le=10**6)]], pydantic.Field(min_length=2)
    ] = [16, 64, 256, 1024, 4096]

    def check(self) -> None:
        if load(self.data, self.keys().next()).x.shape[1] != 1:
            raise FieldError(("data",), "this study draws one input; name one column in data.x")

    def run(self, run: Run) -> None:
        keys = self.keys()
        data = load(self.data, keys.next())
        draw_shapes(run)
        fits = self.fits(run, data)
        self.heat_maps(run, keys.next())
        errors = self.feature_errors(run, keys.next())
        costs = self.costs(run, keys.next())
        run.table(
            "Leave-one-out fits",
            ["kernel", "ℓ", "leave-one-out error"],
            [
                [name, f"{fit['lengthscale']:.4g}", f"{fit['leave_one_out']:.4f}"]
                for name, fit in fits.items()
            ],
        )
        run.table(
            "Random features: root mean square error of the output, and its slope",
            ["features", *map(str, self.counts), "slope (theory −0.5)"],
            [
                [name, *(f"{e:.2g}" for e in found["error"]), f"{found['slope']:.2f}"]
                for name, found in errors.items()
            ],
        )
        run.table(
            f"Seconds against the number of tokens, d = {self.dim}, and the order of growth",
            ["attention", *map(str, self.lengths), "order, last two"],
            [
                [name, *(f"{s:.3g}" for s in found["seconds"]), f"{found['order']:.2f}"]
                for name, found in costs.items()
            ],
        )
        run.summary(
            {"data": describe(data), "fits": fits, "features": errors, "costs": costs}
            | {"counts": self.counts, "lengths": self.lengths}
        )

    def fits(self, run: Run, data: ak.data.Dataset) -> dict[str, dict[str, float]]:
        """Each kernel on one data set, at the bandwidth of its leave-one-out."""
        figure, axes = panels(len(KERNELS))
        at = ak.plot.grid(data.x)
        found, curves = {}, {}
        for ax, (name, kernel) in zip(axes, KERNELS.items(), strict=True):
            model = ak.KernelRegression(kernel(1.0))
            fit = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut())
            run.note([f"{name}: {sentence}" for sentence in fit.warnings()])
            lengthscale = float(fit.model.kernel.lengthscale)
            curves[name] = np.asarray(fit(at))
            ak.plot.points(data.x, data.y, ax=ax)
            if data.mean is not None:
                ax.plot(np.ravel(data.x), data.mean, "--", color=ak.plot.BLUE, label="true mean")
            ax.plot(at, curves[name], color=ak.plot.ORANGE, label="prediction")
            ax.set_title(f"{name}: ℓ = {lengthscale:.3g}")
            found[name] = {"lengthscale": lengthscale, "leave_one_out": float(fit.loss)}
        label_outer(axes, data.x_names[0], data.y_name)
        legend(figure, axes)
        run.figure("fits", figure, x=data.x[:, 0], y=data.y, grid=at, **curves)
        return found

    def attentions(self, tokens: int, window: int) -> dict[str, dict[str, Any]]:
        """Kernel, prior and method of each kind of causal attention."""
        table = 2.0 * jnp.cos(jnp.arange(32.0))
        causal, dot = ak.Causal(), ak.DotProduct()
        return {
            "softmax": {"kernel": dot, "prior": causal},
            "linear": {"kernel": ak.EluFeatures(), "prior": causal, "method": ak.Linear()},
            "window": {"kernel": dot, "prior": ak.Window(window, 0)},
            "ALiBi": {"kernel": dot, "prior": causal * ak.Alibi(self.slope)},
            "T5": {"kernel": dot, "prior": causal * ak.RelativeBias(table, bidirectional=False)},
        }

    def heat_maps(self, run: Run, key: Array) -> None:
        """Weights of the same tokens, by every kind of attention; and those of regression."""
        x = jax.random.normal(key, (self.tokens, 16))
        line = jnp.linspace(-3.0, 3.0, self.tokens)[:, None]
        regression = {
            name: ak.attention_weights(line, line, kernel=kernel(1.0))
            for name, kernel in KERNELS.items()
        }
        attention = {}
        for name, parts in self.attentions(self.tokens, self.window).items():
            parts.pop("method", None)
            attention[name] = ak.attention_weights(x, x, **parts)
        figure = Figure(figsize=(10.0, 4.6))
        axes = figure.subplots(2, 5)
        axes[0, 0].set_ylabel("query, on a line")
        axes[1, 0].set_ylabel("query, a random token")
        for row, maps in zip(axes, (regression, attention), strict=True):
            for ax, (name, weights) in zip(row, maps.items(), strict=False):
                heat_map(ax, weights, most=0.3)
                ax.set_title(name)
                ax.set_xlabel("key")
            for ax in row[len(maps) :]:
                ax.remove()
        bar = figure.colorbar(axes[0, 0].images[0], ax=figure.axes, shrink=0.6, extend="max")
        bar.set_label("weight of the key")
        run.figure("heat_maps", figure, **regression, **attention)

    def feature_errors(self, run: Run, key: Array) -> dict[str, dict[str, Any]]:
        """Error of linear attention against the number of random features."""
        of_x, *of_draws = jax.random.split(key, 17)
        q, k, v = jax.random.normal(of_x, (3, 256, 4))
        q, k = self.spread * q, self.spread * k
        found: dict[str, dict[str, Any]] = {}
        figure = Figure(figsize=(4.8, 3.2))
        ax = figure.subplots()
        for (name, kernel), style in zip(
            {"Gaussian": ak.Gaussian(1.0), "softmax": ak.DotProduct(1.0)}.items(),
            ("o-", "s--"),
            strict=True,
        ):
            exact = ak.attend(q, k, v, kernel=kernel)
            errors = []
            for count in self.counts:
                squares = []
                for draw in of_draws:
                    features = ak.RandomFeatures(count, 4, key=draw)
                    out = ak.attend(q, k, v, kernel=kernel, method=ak.Linear(features))
                    squares.append(jnp.mean((out - exact) ** 2))
                errors.append(float(jnp.sqrt(jnp.mean(jnp.stack(squares)))))
            slope = float(np.polyfit(np.log(self.counts), np.log(errors), 1)[0])
            found[name] = {"error": errors, "slope": slope}
            ax.plot(self.counts, errors, style, label=f"{name}, positive features")
        first = found["Gaussian"]["error"][0]
        theory = first * np.sqrt(self.counts[0] / np.asarray(self.counts))
        ax.plot(self.counts, theory, ":", color=ak.plot.ink(), label=r"falling as $1/\sqrt{M}$")
        ax.set(xscale="log", yscale="log", xlabel="number of random features M")
        ax.set_ylabel("root mean square error of the output")
        ax.legend()
        arrays = {name: part["error"] for name, part in found.items()}
        run.figure("features", figure, counts=self.counts, **arrays)
        return found

    def costs(self, run: Run, key: Array) -> dict[str, dict[str, Any]]:
        """Seconds of each kind of attention as the sequence grows, side by side."""
        found: dict[str, dict[str, Any]] = {}
        with run.progress("cost", len(self.lengths)) as tick:
            for number, tokens in enumerate(self.lengths):
                q, k, v = jax.random.normal(key, (3, tokens, self.dim))
                sides = {}
                for name, parts in self.attentions(tokens, self.window_of_cost).items():
                    call = eqx.filter_jit(lambda q, k, v, parts=parts: ak.attend(q, k, v, **parts))
                    sides[name] = lambda call=call, q=q, k=k, v=v: call(q, k, v)
                seconds, _ = in_turn(sides, self.repeats)
                for name, median in medians(seconds).items():
                    found.setdefault(name, {"seconds": []})["seconds"].append(median)
                tick(number + 1, f"{tokens} tokens")
        figure = Figure(figsize=(5.4, 3.4))
        ax = figure.subplots()
        styles = ("o-", "s--", "^:", "D-.", "v-")
        for (name, part), style in zip(found.items(), styles, strict=True):
            steps = np.log(part["seconds"][-1] / part["seconds"][-2])
            part["order"] = float(steps / np.log(self.lengths[-1] / self.lengths[-2]))
            ax.plot(self.lengths, part["seconds"], style, label=name)
        ax.set(xscale="log", yscale="log", xlabel="tokens N")
        ax.set_ylabel(f"seconds, one head, d = {self.dim}")
        ax.legend()
        arrays = {name: part["seconds"] for name, part in found.items()}
        run.figure("cost", figure, lengths=self.lengths, **arrays)
        return found


def draw_shapes(run: Run) -> None:
    """K against the distance, of regression; the weight of a position, of attention."""
    r = np.linspace(-2.0, 2.0, 401)
    figure = Figure(figsize=(7.6, 2.9))
    left, right = figure.subplots(1, 2)
    arrays: dict[str, Any] = {"r": r}
    for (name, kernel), style in zip(KERNELS.items(), ("-", "--", ":", "-."), strict=True):
        shape = jnp.exp(kernel(1.0).pairwise(jnp.zeros((1, 1)), jnp.asarray(r)[:, None]))[0]
        left.plot(r, shape, style, label=name)
        arrays[name] = shape
    left.set(xlabel="distance, in lengthscales", ylabel="K of the kernel")
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    back = jnp.arange(33)
    here = jnp.full(1, 32)
    table = jnp.linspace(0.0, -4.0, 32)
    priors = {
        "causal": ak.Causal(),
        "window": ak.Window(8, 0),
        "ALiBi": ak.Alibi(0.2),
        "T5 (a table)": ak.RelativeBias(table, bidirectional=False),
    }
    for (name, prior), style in zip(priors.items(), ("-", "--", ":", "-."), strict=True):
        weight = jnp.exp(prior.pairwise(here, 32 - back))[0]
        right.step(back, weight, style, where="mid", label=name)
        arrays[f"prior_{name}"] = weight
    right.set(xlabel="distance back, in tokens", ylabel="π of the prior")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    run.figure("shapes", figure, **arrays)
