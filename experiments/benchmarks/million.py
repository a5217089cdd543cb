"""Leave-one-out at a million points: whole fits, and the time of one criterion against n.

The criterion is a sum over all pairs of n points. Transforms and sorted sums need n log n steps.
Beside them stand the methods that look at every pair, and R's KernSmooth, which does neither: it
bins the data and takes a plug-in bandwidth (`dpill`, then `locpoly`), without a criterion.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, Float
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

import attnkernel as ak

from ..config import FieldError
from ..panels import legend
from ..parts import Name, Part, Positive
from ..run import Run
from ..study import Study
from .driver import (
    Unavailable,
    agreement,
    interleaved,
    medians,
    note_unavailable,
    table_of_targets,
    target,
    timed,
)
from .kernsmooth import kernsmooth
from .regression import keops

R, KEOPS = "R: dpill + locpoly", "KeOps, a sum"
Rows = Annotated[int, pydantic.Field(ge=100, le=100_000_000)]
_SAME_NUMBER = ("Fourier", "Blockwise", "Dense")  # the criterion of one Gaussian
_BEST = {1: 0.2, 2: 0.25, 3: 0.4}  # the lengthscale of a fit, of a rule of thumb, about
_GRID = 401
_FEWER = 20_000  # points, from which KeOps is extrapolated
_LOOK = {
    "Fourier": {"color": ak.plot.BLUE, "marker": "o"},
    "Sorted": {"color": ak.plot.GREEN, "marker": "D"},
    "Blockwise": {"color": ak.plot.SKY, "marker": "s"},
    "Dense": {"color": ak.plot.PURPLE, "marker": "v"},
    KEOPS: {"color": ak.plot.ORANGE, "marker": "^"},
    R: {"color": ak.plot.GREY, "marker": "x", "linestyle": ":"},
}


class FitOf(Part):
    """A whole leave-one-out fit of n points in some dimensions."""

    n: Rows
    dim: Annotated[int, pydantic.Field(ge=1, le=3)] = 1


class Million(Study):
    """Whole fits, their criterion and curve, and seconds against n of every method and peer."""

    study: Literal["million"]
    name: Name = "million"
    precision: Literal["float32", "float64"] = "float64"
    fits: Annotated[list[FitOf], pydantic.Field(min_length=1)] = [
        FitOf(n=1_000_000),
        FitOf(n=10_000_000),
        FitOf(n=1_000_000, dim=2),
        FitOf(n=1_000_000, dim=3),
    ]
    tol: Annotated[float, pydantic.Field(ge=1e-12, le=1e-2)] = 1e-6
    curve: Annotated[int, pydantic.Field(ge=3, le=1000)] = pydantic.Field(
        default=25, description="lengthscales at which the criterion is drawn"
    )
    sizes: list[Rows] = [1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 10_000_000]
    dims: list[Annotated[int, pydantic.Field(ge=1, le=3)]] = [1, 2, 3]
    most_seconds: Positive = pydantic.Field(
        default=12.0,
        description="a method that took longer is not run at larger n; of a fit that took "
        "five times as long, compiling, one more is timed",
    )
    repeats: Annotated[int, pydantic.Field(ge=1, le=100)] = 3
    is_benchmark: ClassVar[bool] = True

    def check(self) -> None:
        if self.precision != "float64":
            raise FieldError(("precision",), "expected float64: a certificate needs its digits")

    def run(self, run: Run) -> None:
        places = [(n, dim) for dim in self.dims for n in sorted(self.sizes)]
        fits, times, absent = [], [], []
        slow: set[tuple[str, int]] = set()
        with run.progress("million", len(self.fits) + len(places)) as tick:
            for done, what in enumerate(self.fits, 1):
                fits.append(self._fit(run, what))
                tick(done, f"fit of n = {what.n}, d = {what.dim}")
            for done, (n, dim) in enumerate(places, len(fits) + 1):
                times += self._times(n, dim, slow, absent)
                tick(done, f"n = {n}, d = {dim}")
        note_unavailable(run, absent)
        self._tables(run, fits, times)
        ratios = {
            f"n = {fit['n']}": fit["seconds"] / fit[R]["seconds"]
            for fit in fits
            if fit.get(R) is not None
        }
        targets = [target("whole fit, over R's dpill + locpoly", 3.0, ratios, at_most=True)]
        table_of_targets(run, targets)
        self._draw_times(run, times)
        run.summary({"tol": self.tol, "fits": fits, "times": times, "targets": targets})

    def _data(self, n: int, dim: int) -> tuple[Array, Array]:
        """The curve of the 2024 post; in more dimensions the mean of one such curve per input."""
        key = jax.random.PRNGKey(self.seed)
        if dim == 1:
            data = ak.data.heteroskedastic(key=key, n=n)
            return data.x, data.y
        of_x, of_noise = jax.random.split(key)
        x = jax.random.uniform(of_x, (n, dim), minval=-3.0, maxval=3.0)
        mean = jnp.mean(ak.data.heteroskedastic_mean(x), axis=1)
        sd = jnp.mean(ak.data.heteroskedastic_sd(x), axis=1)
        return x, mean + sd * jax.random.normal(of_noise, (n,))

    def _fit(self, run: Run, what: FitOf) -> dict[str, Any]:
        x, y = self._data(what.n, what.dim)
        start = rule_of_thumb(x)
        fourier = ak.Fourier(self.tol)
        model, *bounds = (
            ak.KernelRegression(ak.Gaussian(start * factor), method=fourier)
            for factor in (1.0, 0.05, 3.0)
        )

        def fit() -> ak.Fit:
            return ak.fit(
                model, x, y, objective=ak.LeaveOneOut(), bounds=(bounds[0], bounds[1]), starts=1
            )

        cold, result = timed(fit)
        repeats = self.repeats if cold < 5.0 * self.most_seconds else 1
        warm = [timed(lambda: fit().loss)[0] for _ in range(repeats)]
        found = result.model.kernel.lengthscale
        recomputed = fourier.recomputed(
            x, x, y[:, None], kernel=result.model.kernel, prior=ak.priors.ExcludeSelf()
        )
        row = {
            "n": what.n,
            "dim": what.dim,
            "start": start,
            "lengthscale": found,
            "criterion": result.loss,
            "off_by": _newton_step(self.tol, found, x, y),
            "steps": int(result.starts.steps[0]),
            "recomputed": int(recomputed),
            "cold_seconds": cold,
            "seconds": float(np.median(warm)),
            "all_seconds": warm,
        }
        if what.dim == 1:
            try:
                row[R] = kernsmooth(x[:, 0], y, self.repeats)
            except Unavailable as reason:
                row[R] = None
                run.note([f"no {R}: {reason}"])
                self._beside_keops(run, row)
            if what == self.fits[0]:
                self._draw_fit(run, result, x, y, row)
            if row[R] is not None:
                del row[R]["curve"]  # it is among the arrays of the figure
        return row

    def _beside_keops(self, run: Run, row: dict[str, Any]) -> None:
        """Without R: how long KeOps would take for the criteria of the fit, by n² from fewer."""
        x, y = self._data(_FEWER, 1)
        try:
            side = keops(jnp.asarray(row["lengthscale"]), x, y[:, None])
        except Unavailable as reason:
            run.note([f"no {KEOPS} in its place: {reason}"])
            return
        seconds = medians(interleaved({KEOPS: side}, self.repeats)[0])[KEOPS]
        row[KEOPS] = seconds * (row["n"] / _FEWER) ** 2 * (row["steps"] + 1)
        run.note(
            [
                f"KeOps, extrapolated from {_FEWER} points, would take {row[KEOPS]:.3g} s for "
                f"the {row['steps'] + 1} criteria of the fit of {row['n']}, "
                f"{row[KEOPS] / row['seconds']:.3g} times as long, without their slopes."
            ]
        )

    def _times(
        self, n: int, dim: int, slow: set[tuple[str, int]], absent: list[tuple[str, str, str]]
    ) -> list[dict[str, Any]]:
        """Seconds of the leave-one-out criterion and its slope, by every method and peer."""
        x, y = self._data(n, dim)
        lengthscale = rule_of_thumb(x) * _BEST[dim]
        makers: dict[str, Callable[[], Callable[[], Any]]] = {
            "Fourier": lambda: criterion(ak.Gaussian, ak.Fourier(self.tol), lengthscale, x, y),
            "Blockwise": lambda: criterion(ak.Gaussian, ak.Blockwise(), lengthscale, x, y),
            "Dense": lambda: criterion(ak.Gaussian, ak.Dense(), lengthscale, x, y),
            KEOPS: lambda: keops(jnp.asarray(lengthscale), x, y[:, None]),
        }
        if dim == 1:
            makers["Sorted"] = lambda: criterion(
                ak.Epanechnikov, ak.Sorted(), 2 * lengthscale, x, y
            )
            makers[R] = lambda: lambda: None  # it times itself
        rows, found = [], {}
        for name, make in makers.items():
            if (name, dim) in slow or (name == "Dense" and n > 20_000):  # 3 GiB of scores
                continue
            try:
                if name == R:
                    median = kernsmooth(x[:, 0], y, self.repeats)["seconds"]
                else:
                    side = make()
                    first, result = timed(side)
                    if name in _SAME_NUMBER:
                        found[name] = result[0]
                    # the first of a peer may compile: of a long one, one more
                    repeats = self.repeats if first < self.most_seconds else int(name == KEOPS)
                    again = [timed(side)[0] for _ in range(repeats)]
                    median = float(np.median(again or [first]))
            except Unavailable as reason:
                slow.add((name, dim))
                absent.append((name, f"d = {dim}", str(reason)))
                continue
            if median > self.most_seconds:
                slow.add((name, dim))
            rows.append({"side": name, "n": n, "dim": dim, "seconds": median})
        if found:
            agreement(found, next(iter(found)), 10.0 * self.tol)
        return rows

    def _tables(self, run: Run, fits: list[dict[str, Any]], times: list[dict[str, Any]]) -> None:
        run.table(
            "Leave-one-out fits, whole",
            ["n", "d", "ℓ", "off by", "criterion", "recomputed", "s", "s, compiling", "R, s"],
            [
                [
                    str(fit["n"]),
                    str(fit["dim"]),
                    f"{float(fit['lengthscale']):.6g}",
                    f"{fit['off_by']:.1e}",
                    f"{float(fit['criterion']):.7g}",
                    str(fit["recomputed"]),
                    f"{fit['seconds']:.2f}",
                    f"{fit['cold_seconds']:.1f}",
                    "" if fit.get(R) is None else f"{fit[R]['seconds']:.2f}",
                ]
                for fit in fits
            ],
        )
        sides = list(dict.fromkeys(row["side"] for row in times))
        found = {(row["dim"], row["n"], row["side"]): row["seconds"] for row in times}
        run.table(
            "One criterion and its slope (of KeOps: a sum; of R: bandwidth and curve), seconds",
            ["d", "n", *sides],
            [
                [str(dim), str(n)]
                + [f"{found[dim, n, s]:.3g}" if (dim, n, s) in found else "" for s in sides]
                for dim, n in sorted({(row["dim"], row["n"]) for row in times})
            ],
        )

    def _draw_fit(self, run: Run, result: ak.Fit, x: Array, y: Array, row: dict[str, Any]) -> None:
        found = float(row["lengthscale"])
        at = np.geomspace(found / 4, 4 * found, self.curve)
        values = ak.profile(result.model, x, y, at, objective=ak.LeaveOneOut())
        grid = np.linspace(float(jnp.min(x)), float(jnp.max(x)), _GRID)
        prediction = result(grid)
        figure = Figure(figsize=(8.4, 3.5))
        left, right = figure.subplots(1, 2)
        left.semilogx(at, values, color=ak.plot.BLUE)
        left.plot(found, float(row["criterion"]), "o", color=ak.plot.BLUE, label=f"ℓ = {found:.4g}")
        left.set(
            xlabel="lengthscale ℓ (units of x)",
            ylabel="leave-one-out error (squared units of y)",
            title="criterion",
        )
        counts, x_edges, y_edges = np.histogram2d(
            np.asarray(x[:, 0]), np.asarray(y), bins=(300, 200)
        )
        image = right.pcolormesh(
            x_edges,
            y_edges,
            np.where(counts > 0, counts, np.nan).T,
            norm=LogNorm(),
            cmap="Greys",
            rasterized=True,
        )
        figure.colorbar(image, ax=right, label="points per cell")
        right.plot(grid, prediction, color=ak.plot.BLUE, label="Fourier, ℓ by leave-one-out")
        arrays: dict[str, Any] = {}
        if row[R] is not None:
            arrays["kernsmooth"] = row[R]["curve"]
            right.plot(
                *arrays["kernsmooth"], "--", color=ak.plot.ORANGE, label="R's locpoly, binned"
            )
            left.axvline(
                row[R]["bandwidth"],
                color=ak.plot.ORANGE,
                linestyle="--",
                label=f"R's dpill: {row[R]['bandwidth']:.4g}",
            )
        left.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        left.xaxis.set_major_formatter("{x:g}")
        left.minorticks_off()
        left.legend(loc="upper left")  # to look for the best place takes seconds
        right.legend(loc="lower right")
        right.set(xlabel="x", ylabel="y", title=f"n = {len(x)}")
        run.figure(
            "million",
            figure,
            lengthscales=at,
            criterion=values,
            counts=counts,
            x_edges=x_edges,
            y_edges=y_edges,
            grid=grid,
            prediction=prediction,
            **arrays,
        )

    def _draw_times(self, run: Run, times: list[dict[str, Any]]) -> None:
        dims = sorted({row["dim"] for row in times})
        figure = Figure(figsize=(3.2 * max(len(dims), 2) + 1.0, 3.6))
        axes = figure.subplots(1, len(dims), sharey=True, squeeze=False)[0]
        arrays: dict[str, Any] = {}
        for ax, dim in zip(axes, dims, strict=True):
            for name, look in _LOOK.items():
                rows = [row for row in times if row["dim"] == dim and row["side"] == name]
                if not rows:
                    continue
                n, seconds = ([row[key] for row in rows] for key in ("n", "seconds"))
                ax.loglog(n, seconds, label=name, **look)
                arrays[f"{name} d={dim}"] = np.array([n, seconds])
            ax.set(xlabel="points n", title=f"d = {dim}")
        axes[0].set(ylabel="seconds: criterion and slope")
        legend(figure, axes)
        run.figure("times", figure, **arrays)


def rule_of_thumb(x: Float[Array, "n dim"]) -> float:
    r"""Scott's rule, $1.06\, s\, n^{-1/(d+4)}$ with s the mean standard deviation of the inputs."""
    n, dim = x.shape
    return 1.06 * float(jnp.mean(jnp.std(x, axis=0))) * n ** (-1 / (dim + 4))


def criterion(
    kernel: Callable[[Array], ak.Kernel], method: ak.Method, lengthscale: float, x: Array, y: Array
) -> Callable[..., Any]:
    """Leave-one-out and its derivative in log ℓ, compiled: a function of a factor of ℓ."""

    def of(log_lengthscale: Array, x: Array, y: Array) -> Float[Array, ""]:
        model = ak.KernelRegression(kernel(jnp.exp(log_lengthscale)), method=method)
        return ak.LeaveOneOut()(model, x, y)

    program = jax.jit(jax.value_and_grad(of)).lower(jnp.log(lengthscale), x, y).compile()
    return lambda factor=1.0: program(jnp.log(lengthscale * factor), x, y)


def _newton_step(tol: float, lengthscale: Array, x: Array, y: Array) -> float:
    """How far the criterion says the minimum is, relative to ℓ: slope over curvature."""
    slope = criterion(ak.Gaussian, ak.Fourier(tol), float(lengthscale), x, y)
    step = 0.01
    low, here, high = (float(slope(factor)[1]) for factor in (1 / (1 + step), 1.0, 1 + step))
    return abs(here) * 2 * float(np.log1p(step)) / (high - low)
