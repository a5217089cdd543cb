"""The figure of a fit of many points: its criterion, and its curve over a histogram."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

import attnkernel as ak

from ..runs import Run
from .driver import Unavailable
from .kernsmooth import kernsmooth

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
    figure = Figure(figsize=(8.4, 3.5))
    left, right = figure.subplots(1, 2)
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
