"""Fits of many points: the criterion with its gradient, and the figure of criterion and curve."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.colors import LogNorm
from matplotlib.ticker import LogLocator

import attnkernel as ak

from ..reports import subplots
from ..runs import Run
from .driver import Unavailable
from .r_scripts import kernsmooth


def rule_of_thumb(x: Float[Array, "n dim"]) -> float:
    r"""Scott's rule, $1.06\, s\, n^{-1/(d+4)}$ with s the mean standard deviation of the inputs."""
    n, dim = x.shape
    return 1.06 * float(jnp.mean(jnp.std(x, axis=0))) * n ** (-1 / (dim + 4))


def criterion(
    kernel: Callable[[Array], ak.kernels.Kernel],
    method: ak.methods.Method,
    lengthscale: float,
    x: Array,
    y: Array,
) -> Callable[..., Any]:
    """Leave-one-out and its derivative in log ℓ, compiled: a function of a factor of ℓ."""

    def of(log_lengthscale: Array, x: Array, y: Array) -> Float[Array, ""]:
        model = ak.KernelRegression(kernel(jnp.exp(log_lengthscale)), method=method)
        return ak.LeaveOneOut()(model, x, y)

    program = jax.jit(jax.value_and_grad(of)).lower(jnp.log(lengthscale), x, y).compile()
    return lambda factor=1.0: program(jnp.log(lengthscale * factor), x, y)


def newton_step(tol: float, lengthscale: Array, x: Array, y: Array) -> float:
    """The distance to the minimum by one Newton step in log ℓ: gradient over curvature."""
    gradient = criterion(ak.Gaussian, ak.methods.Fourier(tol), float(lengthscale), x, y)
    step = 0.01
    low, here, high = (float(gradient(factor)[1]) for factor in (1 / (1 + step), 1.0, 1 + step))
    return abs(here) * 2 * float(np.log1p(step)) / (high - low)


GRID_POINTS = 401


def curves_of(
    fit: Mapping[str, Any], x: Array, y: Array, tol: float, points: int
) -> dict[str, np.ndarray]:
    """All that the figure shows, the criterion at `points` lengthscales; R's curve if R is here."""
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
    left.set(
        xlabel="lengthscale ℓ (units of x)",
        ylabel="leave-one-out error (squared units of y)",
        title="criterion",
    )
    image = right.pcolormesh(
        curves["x_edges"],
        curves["y_edges"],
        np.where(curves["counts"] > 0, curves["counts"], np.nan).T,
        norm=LogNorm(),
        cmap="Greys",
        rasterized=True,
    )
    figure.colorbar(image, ax=right, label="points per cell")
    ours = "Fourier, ℓ by leave-one-out"
    right.plot(curves["grid"], curves["prediction"], color=ak.plot.BLUE, label=ours)
    if "kernsmooth" in curves:
        dashed = {"color": ak.plot.ORANGE, "linestyle": "--"}
        right.plot(*curves["kernsmooth"], **dashed, label="R's locpoly, binned")
        bandwidth = float(curves["kernsmooth_bandwidth"])
        left.axvline(bandwidth, **dashed, label=f"R's dpill: {bandwidth:.4g}")
    left.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.xaxis.set_major_formatter("{x:g}")
    left.minorticks_off()
    left.legend(loc="upper left")  # "best" takes seconds
    right.legend(loc="lower right")
    right.set(xlabel="x", ylabel="y", title=f"n = {int(curves['counts'].sum())}")
    run.figure("million_fit", figure, **curves)
