"""Colours and axes that all plots share.

Colours are those of Okabe and Ito, told apart by colour-blind readers and, with line styles and
markers beside them, in greyscale.
"""

from typing import Any

import numpy as np
from cycler import cycler
from jax.typing import ArrayLike
from matplotlib import rcParams
from matplotlib.axes import Axes

from .._core.arrays import as_points, require_finite
from .._core.pandas_frames import display_names
from .._core.validation import as_integer, require_instance, require_string
from ..fitting import Fit

GREY, BLUE, ORANGE, GREEN, PURPLE, SKY = (
    "#767676",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
)


def _of(ink: str, paper: str) -> Any:
    """What is drawn in ink, and what is paper."""
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return dict.fromkeys(inked, ink) | dict.fromkeys(("figure.facecolor", "axes.facecolor"), paper)


STYLE: Any = {
    "figure.constrained_layout.use": True,
    "figure.dpi": 120,
    "savefig.dpi": 150,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, PURPLE, SKY, GREY]),
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    **_of("#000000", "#ffffff"),
}
"""Use as `with matplotlib.rc_context(ak.plot.STYLE): ...`."""

DARK: Any = STYLE | _of("#ececec", "#14171b")
"""The same on a dark page: the colours stand out from both."""

GRID = 201


def ink() -> str:
    """The colour of text, where a line is to have it too: dark on light, light on dark."""
    return str(rcParams["text.color"])


def paper() -> str:
    """The colour behind the axes, for what is to look hollow."""
    return str(rcParams["axes.facecolor"])


def axes(ax: Axes | None) -> Axes:
    if ax is not None:
        require_instance("ax", ax, Axes, "plt.subplots()[1]")
        return ax
    import matplotlib.pyplot as plt  # noqa: PLC0415  opens a window system: only when asked

    return plt.subplots()[1]


def literal(text: str) -> str:
    """A name as it is written: matplotlib reads what stands between dollars as mathematics."""
    require_string("text", text)
    return text.replace("$", r"\$")


def grid(x: ArrayLike, points: int = GRID) -> np.ndarray:
    """Evenly spaced points over the range of one-dimensional inputs, shape (points,)."""
    points = as_integer("points", points, 1)
    x = np.asarray(as_points("x", x))
    require_finite("x", x)
    if not x.size:
        raise ValueError("x must have at least one row.")
    return np.linspace(x.min(), x.max(), points, dtype=x.dtype)


def require_one(result: Fit) -> None:
    """Raise `ValueError` unless it is one fit, of one label per row."""
    require_instance("result", result, Fit, "ak.fit(...)")
    if result.loss.ndim:
        raise ValueError("This is a batch of fits: plot one of them, fit.member(i).")
    if result.y.ndim != 1:
        raise ValueError(f"Plots are of one label per row; y has shape {result.y.shape}.")


def legend(ax: Axes, title: str | None = None) -> None:
    """A legend that stays legible over points and areas."""
    ax.legend(title=title, frameon=True, framealpha=0.85, edgecolor="none")


def x_label(result: Fit, column: int = 0) -> str:
    """The name of a column of inputs."""
    return literal(display_names(result.x_names, result.x.shape[1])[column])


def y_label(result: Fit, of: str = "") -> str:
    """The name of the label, or what else is in its units: the residual of wage."""
    if result.y_name is not None:
        return literal(f"{of} of {result.y_name}" if of else str(result.y_name))
    return f"{of} (units of y)" if of else "y"
