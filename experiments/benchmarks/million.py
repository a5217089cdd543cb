"""Leave-one-out at a million points: whole fits, and the time of one criterion against n.

The criterion is a sum over all pairs of n points. Transforms and sorted sums need n log n steps.
They are compared with methods that evaluate every pair, and with R's KernSmooth, which bins the
data and takes a plug-in bandwidth (`dpill`, then `locpoly`), without a criterion.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty, Part, Positive
from ..reports import subplots
from ..runs import NO_MONITOR, Monitor, Run
from .benchmark import Benchmark, Results
from .driver import Case, Contender, Unavailable, agreement, compiled
from .r_scripts import kernsmooth
from .regression import keops
from .reports import note_unavailable, ratios, target

OURS, R, KEOPS = "attnkernel", "R: dpill + locpoly", "KeOps, a sum"
Rows = Annotated[int, Field(ge=100, le=100_000_000)]
SAME_CRITERION = ("Fourier", "Blockwise", "Dense")  # the criterion of one Gaussian
# by dimension, the lengthscale of a fit over that of the rule of thumb, about
TYPICAL_LENGTHSCALE = {1: 0.2, 2: 0.25, 3: 0.4}
BOUNDS = (0.05, 3.0)  # times Scott's rule
GRID_POINTS = 401
MAX_DENSE_ROWS = 20_000  # 3 GiB of scores
FIT_COLUMNS = ("n", "dim", "lengthscale", "off_by", "criterion", "recomputed", "median", "first")


class FitOf(Part):
    """A whole leave-one-out fit of n points in some dimensions."""

    n: Rows
    dim: int = Field(default=1, ge=1, le=3)


class Million(Benchmark):
    """Whole fits, their criterion and curve, and seconds of every contender against n."""

    study: Literal["million"]
    # a certificate needs its digits
    precision: Literal["float64"] = "float64"  # pyright: ignore[reportIncompatibleVariableOverride]
    fits: NonEmpty[FitOf] = [
        FitOf(n=1_000_000),
        FitOf(n=10_000_000),
        FitOf(n=1_000_000, dim=2),
        FitOf(n=1_000_000, dim=3),
    ]
    tol: float = Field(default=1e-6, ge=1e-12, le=1e-2)
    curve: int = Field(
        default=25, ge=3, le=1000, description="lengthscales at which the criterion is drawn"
    )
    sizes: list[Rows] = [1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 10_000_000]
    dims: list[Annotated[int, Field(ge=1, le=3)]] = [1, 2, 3]
    repeats: int = Field(default=3, ge=1, le=1000)
    max_seconds: Positive = 12.0
    compared: ClassVar = ("Fourier", "Sorted", "Blockwise", "Dense", KEOPS, R)
    axes: ClassVar = ("dims", "sizes")
    along: ClassVar = "n"
    x_label: ClassVar = "points n"
    panel_title: ClassVar = "d = {dim}"
    unit: ClassVar = "seconds: criterion and slope"

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        whole = [functools.partial(self._make_fit_case, key, size) for size in self.fits]
        fits = self.measured(monitor, whole, "fits")
        x, y = self._simulate_data(key, fits[0]["n"], fits[0]["dim"])
        drawn = curves_of(fits[0], x, y, self.tol, self.curve) if fits[0]["dim"] == 1 else {}
        more = {"tol": self.tol, "fits": fits}
        return super().compute(key, monitor)._replace(more=more, drawn=drawn)

    def _simulate_data(self, key: PRNGKeyArray, n: int, dim: int) -> tuple[Array, Array]:
        """Simulates x, shape (n, dim), and y, shape (n,): the curve of Czyż (2024) and its noise;
        in more dimensions, the mean of one such curve for each input.
        """
        if dim == 1:
            data = ak.data.heteroskedastic(key=key, n=n)
            return data.x, data.y
        x_key, noise_key = jax.random.split(key)
        x = jax.random.uniform(x_key, (n, dim), minval=-3.0, maxval=3.0)
        mean = jnp.mean(ak.data.heteroskedastic_mean(x), axis=1)
        sd = jnp.mean(ak.data.heteroskedastic_sd(x), axis=1)
        return x, mean + sd * jax.random.normal(noise_key, (n,))

    def _make_fit_case(self, key: PRNGKeyArray, size: FitOf) -> Case:
        """Returns the `Case` that times the choice of a bandwidth and a fit of `size.n` simulated
        points in `size.dim` dimensions: attnkernel by leave-one-out and, in one dimension, the
        KernSmooth of R by plug-in (`dpill`, `locpoly`).
        """
        x, y = self._simulate_data(key, size.n, size.dim)

        def describe(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            fit = results[OURS]
            parts = {"kernel": fit.model.kernel, "prior": ak.priors.ExcludeSelf()}
            recomputed = ak.methods.Fourier(self.tol).recomputed(x, x, y[:, None], **parts)
            return {
                "start": rule_of_thumb(x),
                "lengthscale": float(fit.model.kernel.lengthscale),
                "criterion": float(fit.loss),
                "off_by": newton_step(self.tol, fit.model.kernel.lengthscale, x, y),
                "steps": int(fit.starts.steps[0]),
                "recomputed": int(recomputed),
            }

        fit = functools.partial(fit_by_fourier, x, y, ak.LeaveOneOut(), self.tol)
        contenders: dict[str, Callable[[], Any]] = {OURS: lambda: fit}
        if size.dim == 1:
            contenders[R] = lambda: kernsmooth(x[:, 0], y)
        label = f"fit of n = {size.n}, d = {size.dim}"
        return Case({"n": size.n, "dim": size.dim}, label, contenders, describe)

    def make_case(self, key: PRNGKeyArray, dim: int, n: int) -> Case:
        """Returns the `Case` that times one leave-one-out criterion of n simulated points, with its
        gradient in the lengthscale, by each method; of KeOps a sum, of R bandwidth and curve.
        """
        x, y = self._simulate_data(key, n, dim)
        lengthscale = rule_of_thumb(x) * TYPICAL_LENGTHSCALE[dim]

        def criterion(method: Any, kernel: Any = ak.Gaussian, factor: float = 1.0) -> Contender:
            if isinstance(method, ak.methods.Dense) and n > MAX_DENSE_ROWS:
                raise Unavailable(f"at most {MAX_DENSE_ROWS} rows")
            both = jax.value_and_grad(leave_one_out(kernel, method))
            return compiled(both, jnp.log(factor * lengthscale), x, y)

        makers: dict[str, Callable[[], Contender]] = {
            "Fourier": lambda: criterion(ak.methods.Fourier(self.tol)),
            "Blockwise": lambda: criterion(ak.methods.Blockwise()),
            "Dense": lambda: criterion(ak.methods.Dense()),
            KEOPS: lambda: keops(jnp.asarray(lengthscale), x, y[:, None]),
        }
        if dim == 1:
            makers["Sorted"] = lambda: criterion(ak.methods.Sorted(), ak.Epanechnikov, 2.0)
            makers[R] = lambda: kernsmooth(x[:, 0], y)

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            found = {name: results[name][0] for name in SAME_CRITERION if name in results}
            return {"deviation": agreement(found, next(iter(found)), 10.0 * self.tol)}

        return Case({"n": n, "dim": dim}, f"n = {n}, d = {dim}", makers, check)

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        found = ratios(results.more["fits"], OURS, R)
        yield target("whole fit, over R's dpill + locpoly", 3.0, found, at_most=True)

    def print_tables(self, results: Results, run: Run) -> None:
        fits = results.more["fits"]
        note_unavailable(run, fits)
        run.table_of("Whole leave-one-out fits; seconds, warm and compiling", fits, FIT_COLUMNS)
        super().print_tables(results, run)

    def draw(self, results: Results, run: Run) -> None:
        if results.drawn:
            draw_fit(run, results.drawn)
        super().draw(results, run)


def rule_of_thumb(x: Float[Array, "n dim"]) -> float:
    r"""Scott's rule, $1.06\, s\, n^{-1/(d+4)}$ with s the mean standard deviation of the inputs."""
    n, dim = x.shape
    return 1.06 * float(jnp.mean(jnp.std(x, axis=0))) * n ** (-1 / (dim + 4))


def fit_by_fourier(x: Array, y: Array, objective: Any, tol: float, order: int = 0) -> ak.Fit:
    """The fit of a Gaussian kernel by `Fourier`, from Scott's rule, within `BOUNDS` times it."""
    start, fourier = rule_of_thumb(x), ak.methods.Fourier(tol)
    model, low, high = (
        ak.KernelRegression(ak.Gaussian(start * factor), order=order, method=fourier)
        for factor in (1.0, *BOUNDS)
    )
    return ak.fit(model, x, y, objective=objective, bounds=(low, high), starts=1)


def leave_one_out(kernel: Any, method: ak.methods.Method) -> Callable[..., Float[Array, ""]]:
    """Leave-one-out of a class of kernels: a function of log ℓ, x and y."""

    def of(log_lengthscale: Array, x: Array, y: Array) -> Float[Array, ""]:
        model = ak.KernelRegression(kernel(jnp.exp(log_lengthscale)), method=method)
        return ak.LeaveOneOut()(model, x, y)

    return of


def newton_step(tol: float, lengthscale: Array, x: Array, y: Array) -> float:
    """The distance to the minimum by one Newton step in log ℓ: gradient over curvature."""
    gradient = jax.jit(jax.grad(leave_one_out(ak.Gaussian, ak.methods.Fourier(tol))))
    at, step = jnp.log(lengthscale), float(np.log1p(0.01))
    low, here, high = (float(gradient(at + moved, x, y)) for moved in (-step, 0.0, step))
    return abs(here) * 2 * step / (high - low)


def curves_of(fit: Any, x: Array, y: Array, tol: float, points: int) -> dict[str, np.ndarray]:
    """All that the figure shows of a row of fits, the criterion at `points` lengthscales; R's curve
    if R is here.
    """
    model = ak.KernelRegression(ak.Gaussian(fit["lengthscale"]), method=ak.methods.Fourier(tol))
    at = np.geomspace(fit["lengthscale"] / 4, 4 * fit["lengthscale"], points)
    grid = np.linspace(float(jnp.min(x)), float(jnp.max(x)), GRID_POINTS)
    counts, x_edges, y_edges = np.histogram2d(np.asarray(x[:, 0]), np.asarray(y), bins=(300, 200))
    curves = {
        "minimum": np.array([fit["lengthscale"], fit["criterion"]]),
        "lengthscales": at,
        "criterion": np.asarray(ak.profile(model, x, y, at, objective=ak.LeaveOneOut())),
        "grid": grid,
        "prediction": np.asarray(model(grid, x, y)),
        "counts": counts,
        "x_edges": x_edges,
        "y_edges": y_edges,
    }
    try:
        smooth = kernsmooth(x[:, 0], y)().result
    except Unavailable:
        return curves
    return curves | {"kernsmooth": smooth.curve, "kernsmooth_bandwidth": smooth.bandwidth}


def draw_fit(run: Run, curves: Mapping[str, np.ndarray]) -> None:
    """The criterion, and the curve over the histogram."""
    length, error = curves["minimum"]
    figure, (left, right) = subplots(1, 2, figsize=(8.4, 3.5))
    left.semilogx(curves["lengthscales"], curves["criterion"], color=ak.plot.BLUE)
    left.plot(length, error, "o", color=ak.plot.BLUE, label=f"ℓ = {length:.4g}")
    left.set(xlabel="lengthscale ℓ (units of x)", title="criterion")
    left.set_ylabel("leave-one-out error (squared units of y)")
    counts = np.where(curves["counts"] > 0, curves["counts"], np.nan).T
    look: dict[str, Any] = {"norm": "log", "cmap": "Greys", "rasterized": True}
    image = right.pcolormesh(curves["x_edges"], curves["y_edges"], counts, **look)
    figure.colorbar(image, ax=right, label="points per cell")
    ours = "Fourier, ℓ by leave-one-out"
    right.plot(curves["grid"], curves["prediction"], color=ak.plot.BLUE, label=ours)
    if "kernsmooth" in curves:
        dashed = {"color": ak.plot.ORANGE, "linestyle": "--"}
        right.plot(*curves["kernsmooth"], **dashed, label="R's locpoly, binned")
        bandwidth = float(curves["kernsmooth_bandwidth"])
        left.axvline(bandwidth, **dashed, label=f"R's dpill: {bandwidth:.4g}")
    left.xaxis.get_major_locator().set_params(subs=(1.0, 2.0, 5.0))
    left.xaxis.set_major_formatter("{x:g}")
    left.minorticks_off()
    left.legend(loc="upper left")  # "best" takes seconds
    right.legend(loc="lower right")
    right.set(xlabel="x", ylabel="y", title=f"n = {int(curves['counts'].sum())}")
    run.figure("million_fit", figure, **curves)
