"""Plots of data, fits and criteria. Each takes `ax=`, draws on it and returns it.

Colours are those of Okabe and Ito, told apart by colour-blind readers and, with line styles and
markers beside them, in greyscale.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from cycler import cycler
from jax.typing import ArrayLike
from matplotlib.axes import Axes

from .data import Dataset
from .fit import Fit, LeaveOneOut, Objective, profile
from .kernels import convert_lengthscale
from .priors import LeaveOneOut as LeaveOneOutMask

INK, BLUE, ORANGE, GREEN, PURPLE, SKY = (
    "#222222",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
)

STYLE: Any = {
    "figure.constrained_layout.use": True,
    "figure.dpi": 120,
    "savefig.dpi": 150,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, PURPLE, SKY, INK]),
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}
"""Use as `with matplotlib.rc_context(ak.plot.STYLE): ...`."""

_GRID = 201


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # noqa: PLC0415  opens a window system: only when asked

    return plt.subplots()[1]


def literal(text: str) -> str:
    """A name as it is written: matplotlib reads what stands between dollars as mathematics."""
    return text.replace("$", r"\$")


def grid(x: ArrayLike, points: int = _GRID) -> np.ndarray:
    """Evenly spaced points over the range of one-dimensional inputs, shape (points,)."""
    x = np.asarray(x)
    return np.linspace(x.min(), x.max(), points, dtype=x.dtype)


def points(x: ArrayLike, y: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Observations as small open circles; `x` of shape (n,) or (n, 1), `y` of shape (n,)."""
    ax = _axes(ax)
    ax.plot(
        np.ravel(np.asarray(x)),
        np.asarray(y),
        "o",
        color=INK,
        markersize=3.2,
        markerfacecolor="none",
        markeredgewidth=0.7,
        alpha=0.55,
        label="observations",
        zorder=1,
    )
    return ax


def data(dataset: Dataset, *, ax: Axes | None = None) -> Axes:
    """Observations and, where it is known, the truth: the mean and the band mean ± 2 sd."""
    ax = _axes(ax)
    points(dataset.x, dataset.y, ax=ax)
    x = np.ravel(np.asarray(dataset.x))
    if dataset.mean is not None:
        ax.plot(x, np.asarray(dataset.mean), color=BLUE, label="true mean f(x)", zorder=3)
    if dataset.mean is not None and dataset.sd is not None:
        low, high = dataset.mean - 2 * dataset.sd, dataset.mean + 2 * dataset.sd
        ax.fill_between(
            x,
            np.asarray(low),
            np.asarray(high),
            color=SKY,
            alpha=0.25,
            linewidth=0,
            label="f(x) ± 2 s(x)",
            zorder=0,
        )
    ax.set(xlabel=literal(dataset.x_names[0]), ylabel=literal(dataset.y_name))
    return ax


def fit(result: Fit, *, ax: Axes | None = None, label: str = "fit") -> Axes:
    """The fitted curve over the observations.

    For inputs of several dimensions: observed labels against leave-one-out predictions.
    """
    ax = _axes(ax)
    if result.loss.ndim:
        raise ValueError("This is a batch of fits: plot one of them, fit.member(i).")
    if result.y.ndim != 1:
        raise ValueError(f"Plots are of one label per row; y has shape {result.y.shape}.")
    if result.x.shape[1] == 1:
        points(result.x, result.y, ax=ax)
        at = grid(result.x)
        ax.plot(at, np.asarray(result(at)), color=ORANGE, label=label, zorder=3)
        ax.set(xlabel="x", ylabel="y")
        return ax
    predicted = result.model(result.x, result.x, result.y, prior=LeaveOneOutMask())
    points(predicted, result.y, ax=ax)
    ends = [float(jnp.min(result.y)), float(jnp.max(result.y))]
    ax.plot(ends, ends, color=ORANGE, linestyle="--", linewidth=1.0, label="observed = predicted")
    ax.set(xlabel="leave-one-out prediction", ylabel="observed")
    return ax


def criterion(
    result: Fit,
    lengthscales: ArrayLike | None = None,
    *,
    objective: Objective | None = None,
    convention: str = "standard",
    ax: Axes | None = None,
) -> Axes:
    """A criterion against the lengthscale, with the minima that the fit found marked.

    **Arguments:** `lengthscales`: where to evaluate it; default, 200 points over
    `model.bounds(x)`. `objective`: default, that of the fit if deterministic, else leave-one-out.
    `convention`: what a lengthscale means on the axis; see `kernels.convert_lengthscale`.
    """
    ax = _axes(ax)
    if np.ndim(result.model.kernel.lengthscale) != 0:
        raise ValueError("A criterion is drawn over one lengthscale; this model has several.")
    if objective is None:
        objective = LeaveOneOut() if result.objective.is_stochastic else result.objective
    if lengthscales is None:
        lower, upper = (side.kernel.lengthscale for side in result.model.bounds(result.x))
        lengthscales = np.geomspace(float(lower), float(upper), 200)
    values = profile(result.model, result.x, result.y, lengthscales, objective=objective)

    def shown(lengthscale: ArrayLike) -> np.ndarray:
        return np.asarray(convert_lengthscale(lengthscale, target=convention))

    ax.plot(shown(np.asarray(lengthscales)), np.asarray(values), color=BLUE)
    if not result.objective.is_stochastic:
        marks = [
            ("minimum", "o", ORANGE),
            *[("other minimum", "s", "white")] * len(result.starts.loss),
        ]
        minima = result.minima()
        if not minima:  # the search ended on a bound, or where the criterion is flat
            minima, marks = (
                [(result.model, float(result.loss))],
                [("least value found", "D", "white")],
            )
        for (model, loss), (name, marker, face) in zip(minima, marks, strict=False):
            at = float(shown(model.kernel.lengthscale))
            ax.plot(
                at,
                loss,
                marker=marker,
                markersize=6,
                markerfacecolor=face,
                markeredgecolor=ORANGE,
                linestyle="none",
                label=f"{name}: ℓ = {at:.4g}",
            )
        ax.legend()
    ax.set_xscale("log")
    ax.set(xlabel="lengthscale ℓ (units of x)", ylabel="criterion (squared units of y)")
    return ax
