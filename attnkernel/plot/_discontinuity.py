"""The figure of a regression discontinuity: binned means, and the fits on both sides."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .._core.validation import as_integer, require_instance
from ..econometrics import Discontinuity
from ._fit import shade
from ._style import BLUE, ORANGE, axes, ink, legend, literal, paper


def discontinuity(result: Discontinuity, *, bins: int = 20, ax: Axes | None = None) -> Axes:
    r"""The means $\hat m_-$, $\hat m_+$ on both sides of a cutoff, with their bands, over the
    means of y in bins of x, in units of x and y.

    The jump of the curves at the cutoff is `estimate`; the bands are bias-corrected.

    ```python
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, 500)
    y = np.sin(2.0 * x) + 0.5 * (x >= 0.0) + 0.3 * rng.normal(size=500)
    ak.plot.discontinuity(ak.econometrics.discontinuity(x, y, cutoff=0.0))
    ```

    **Arguments:** `result`: of `ak.econometrics.discontinuity`; `bins`: the number of bins on each
    side, equally wide.

    **Raises:** `ValueError` for another result.
    """
    require_instance(
        "result", result, Discontinuity, "ak.econometrics.discontinuity(x, y, cutoff=0)"
    )
    bins = as_integer("bins", bins, 1)
    ax = axes(ax)
    cutoff = float(result.cutoff)
    x, y = np.asarray(result.x)[:, 0], np.asarray(result.y)[:, 0]
    weights = np.ones_like(x) if result.weights is None else np.asarray(result.weights, x.dtype)
    x, y, weights = (part[weights > 0] for part in (x, y, weights))
    step = np.finfo(x.dtype).eps * max(np.ptp(x), abs(cutoff))
    before = np.asarray(cutoff - step, x.dtype)  # where the rows below the cutoff are taken
    curve_points = 101  # of each side
    for color, dashes, (low, high), name, bin_label in (
        (BLUE, "-", (x.min(), before), "fit below the cutoff", f"means in {bins} bins"),
        (ORANGE, "--", (np.asarray(cutoff, x.dtype), x.max()), "fit from the cutoff on", "_"),
    ):
        here = (x >= low) & (x <= high)
        means = _bin_means(x[here], y[here], weights[here], (low, high), bins)
        style: dict[str, Any] = {"color": color, "markerfacecolor": paper(), "markersize": 3.6}
        ax.plot(*means, "o", **style, zorder=1, label=bin_label)
        at = np.linspace(low, high, curve_points, dtype=x.dtype)
        ax.plot(at, np.asarray(result(at)), color=color, zorder=3, label=name)
        shade(at, result.bands(at), ax, color, dashes, zorder=0.1)
    ax.collections[1].set_label("_")
    ax.axvline(cutoff, color=ink(), linewidth=0.8, linestyle=":", zorder=0)
    names = (("x", result.x_name), ("y", result.y_name))
    xlabel, ylabel = (literal(default if name is None else str(name)) for default, name in names)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    legend(ax)
    return ax


def _bin_means(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray, ends: tuple[Any, Any], bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the middles of equally wide bins that hold rows, and the means of y in them."""
    edges = np.linspace(*ends, bins + 1)
    total = np.histogram(x, edges, weights=weights)[0]
    sums = np.histogram(x, edges, weights=weights * y)[0]
    has_rows = total > 0
    return 0.5 * (edges[1:] + edges[:-1])[has_rows], sums[has_rows] / total[has_rows]
