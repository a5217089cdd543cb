"""Colours, style sheets and axes that all plots share.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart; line styles and
markers tell curves apart in greyscale.
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
from ..models import Smoother

GREY, BLUE, ORANGE = "#767676", "#0072B2", "#D55E00"
GREEN, PURPLE, SKY = "#009E73", "#CC79A7", "#56B4E9"


def _colours(ink: str, paper: str) -> Any:
    """Returns matplotlib settings; `ink`: the colour of text and axes, `paper`: of backgrounds."""
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
    **_colours("#000000", "#ffffff"),
}
"""The light style: `with matplotlib.rc_context(ak.plot.STYLE): ...`."""

DARK: Any = STYLE | _colours("#ececec", "#14171b")
"""The dark style, with the same colours on a dark background."""

GRID_POINTS = 201


def ink() -> str:
    """Returns the colour of text in the current style, for lines that are to match it.

    ```python
    >>> with plt.rc_context(ak.plot.DARK):
    ...     ak.plot.ink(), ak.plot.paper()
    ('#ececec', '#14171b')
    ```
    """
    return str(rcParams["text.color"])


def paper() -> str:
    """Returns the background colour of the current style, for markers that are to look hollow.

    ```python
    plt.plot([0.0, 1.0], "o", markerfacecolor=ak.plot.paper())
    ```
    """
    return str(rcParams["axes.facecolor"])


def axes(ax: Axes | None) -> Axes:
    """Returns the axes, or new ones for None; `ValueError` for anything else."""
    if ax is not None:
        require_instance("ax", ax, Axes, "plt.subplots()[1]")
        return ax
    import matplotlib.pyplot as plt  # noqa: PLC0415  starts a window system

    return plt.subplots()[1]


def literal(text: str) -> str:
    r"""Returns text that matplotlib draws as it is written: a dollar sign starts no formula.

    ```python
    >>> print(ak.plot.literal("wage ($ per hour)"))
    wage (\$ per hour)
    ```
    """
    require_string("text", text)
    return text.replace("$", r"\$")


def grid(x: ArrayLike, points: int = GRID_POINTS) -> np.ndarray:
    r"""Returns evenly spaced points $\min x, \ldots, \max x$, shape (points,), in units of x.

    ```python
    >>> ak.plot.grid(np.array([0.0, 5.0, 1.0]), points=3)
    array([0. , 2.5, 5. ], dtype=float32)
    ```

    **Arguments:** `x`: one-dimensional inputs, shape (n,) or (n, 1); `points`: their number.

    **Raises:** `ValueError` if x is empty or not finite.
    """
    points = as_integer("points", points, 1)
    x = np.asarray(as_points("x", x))
    require_finite("x", x)
    if not x.size:
        raise ValueError("x must have at least one row.")
    return np.linspace(x.min(), x.max(), points, dtype=x.dtype)


def require_one(result: Fit) -> None:
    """Raises `ValueError` unless it is one fit, of one label per row."""
    require_instance("result", result, Fit, "ak.fit(...)")
    if result.loss.ndim:
        raise ValueError("This is a batch of fits: plot one of them, fit.member(i).")
    if result.y.ndim != 1:
        raise ValueError(f"Plots are of one label per row; y has shape {result.y.shape}.")


def legend(ax: Axes, title: str | None = None) -> None:
    """Draws a legend that stays legible over points and areas."""
    ax.legend(title=title, frameon=True, framealpha=0.85, edgecolor="none")


def category_columns(result: Fit) -> set[int]:
    """Returns the numbers of the input columns that hold codes of categories, as the kernel or a
    frame of pandas says."""
    dim, model = result.x.shape[1], result.model
    found = set(model.category_counts(dim)) if isinstance(model, Smoother) else set()
    return found | {c for c, words in enumerate(result.x_categories or ()) if words is not None}


def x_label(result: Fit, column: int = 0) -> str:
    """Returns the name of a column of inputs, `x` or `x1`, `x2`, ... without names; a dollar sign
    in it starts no formula."""
    return literal(display_names(result.x_names, result.x.shape[1])[column])


def y_label(result: Fit, of: str = "") -> str:
    """Returns the name of the label y; with a quantity `of`, such as "residual", the name of this
    quantity: `residual of wage`, or `residual (units of y)` if y has no name."""
    if result.y_name is not None:
        return literal(f"{of} of {result.y_name}" if of else str(result.y_name))
    return f"{of} (units of y)" if of else "y"
