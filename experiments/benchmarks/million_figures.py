"""Figures of a million points: criterion, curve over a histogram, seconds against n."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

import attnkernel as ak

from ..panels import legend
from ..run import Run

GRID_POINTS = 401


class Curves(NamedTuple):
    """The criterion near its minimum, the fit on a grid, and a histogram of the points."""

    lengthscale: float
    least: float
    lengthscales: Float[np.ndarray, " curve"]
    criterion: Float[np.ndarray, " curve"]
    grid: Float[np.ndarray, " grid"]
    prediction: Float[np.ndarray, " grid"]
    counts: Float[np.ndarray, "columns rows"]
    x_edges: np.ndarray
    y_edges: np.ndarray
    kernsmooth: dict[str, Any] | None


def curves_of(
    fit: ak.Fit,
    x: Array,
    y: Array,
    row: Mapping[str, Any],
    kernsmooth: Mapping[str, Any] | None,
    points: int,
) -> Curves:
    """All that the figure of a fit shows; the criterion at `points` lengthscales."""
    found = float(row["lengthscale"])
    at = np.geomspace(found / 4, 4 * found, points)
    values = ak.profile(fit.model, x, y, at, objective=ak.LeaveOneOut())
    grid = np.linspace(float(jnp.min(x)), float(jnp.max(x)), GRID_POINTS)
    histogram = np.histogram2d(np.asarray(x[:, 0]), np.asarray(y), bins=(300, 200))
    return Curves(
        found,
        float(row["criterion"]),
        at,
        np.asarray(values),
        grid,
        np.asarray(fit(grid)),
        *histogram,
        None if kernsmooth is None else dict(kernsmooth),
    )


def draw_fit(run: Run, curves: Curves) -> None:
    """The criterion, and the curve over the histogram."""
    found = curves.lengthscale
    figure = Figure(figsize=(8.4, 3.5))
    left, right = figure.subplots(1, 2)
    left.semilogx(curves.lengthscales, curves.criterion, color=ak.plot.BLUE)
    left.plot(found, curves.least, "o", color=ak.plot.BLUE, label=f"ℓ = {found:.4g}")
    left.set(
        xlabel="lengthscale ℓ (units of x)",
        ylabel="leave-one-out error (squared units of y)",
        title="criterion",
    )
    image = right.pcolormesh(
        curves.x_edges,
        curves.y_edges,
        np.where(curves.counts > 0, curves.counts, np.nan).T,
        norm=LogNorm(),
        cmap="Greys",
        rasterized=True,
    )
    figure.colorbar(image, ax=right, label="points per cell")
    right.plot(
        curves.grid, curves.prediction, color=ak.plot.BLUE, label="Fourier, ℓ by leave-one-out"
    )
    arrays: dict[str, Any] = {}
    if curves.kernsmooth is not None:
        arrays["kernsmooth"] = curves.kernsmooth["curve"]
        right.plot(*arrays["kernsmooth"], "--", color=ak.plot.ORANGE, label="R's locpoly, binned")
        left.axvline(
            curves.kernsmooth["bandwidth"],
            color=ak.plot.ORANGE,
            linestyle="--",
            label=f"R's dpill: {curves.kernsmooth['bandwidth']:.4g}",
        )
    left.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.xaxis.set_major_formatter("{x:g}")
    left.minorticks_off()
    left.legend(loc="upper left")  # "best" takes seconds
    right.legend(loc="lower right")
    right.set(xlabel="x", ylabel="y", title=f"n = {int(curves.counts.sum())}")
    run.figure(
        "million",
        figure,
        lengthscales=curves.lengthscales,
        criterion=curves.criterion,
        counts=curves.counts,
        x_edges=curves.x_edges,
        y_edges=curves.y_edges,
        grid=curves.grid,
        prediction=curves.prediction,
        **arrays,
    )


def draw_times(
    run: Run, times: Sequence[Mapping[str, Any]], looks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Seconds against n, a panel for each dimension."""
    dims = sorted({row["dim"] for row in times})
    figure = Figure(figsize=(3.2 * max(len(dims), 2) + 1.0, 3.6))
    axes = figure.subplots(1, len(dims), sharey=True, squeeze=False)[0]
    arrays: dict[str, Any] = {}
    for ax, dim in zip(axes, dims, strict=True):
        for name, look in looks.items():
            rows = [row for row in times if row["dim"] == dim and row["contender"] == name]
            if not rows:
                continue
            n, seconds = ([row[key] for row in rows] for key in ("n", "seconds"))
            ax.loglog(n, seconds, label=name, **look)
            arrays[f"{name} d={dim}"] = np.array([n, seconds])
        ax.set(xlabel="points n", title=f"d = {dim}")
    axes[0].set(ylabel="seconds: criterion and slope")
    legend(figure, axes)
    run.figure("times", figure, **arrays)
