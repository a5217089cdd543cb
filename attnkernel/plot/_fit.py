"""The fitted curve, its bands, and the observations; a band alone, with the curve in its middle; a
regression discontinuity: binned means, and the fits on both sides."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from matplotlib.axes import Axes

from .._core.pandas_frames import display_names
from .._core.validation import as_integer, require_instance, require_string
from ..econometrics import Discontinuity
from ..fitting import Fit
from ..inference import Bands
from ..priors import ExcludeSelf
from ._data import label_inputs, points
from ._style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    axes,
    category_columns,
    grid,
    ink,
    legend,
    literal,
    paper,
    require_one,
    y_label,
)

# colour and dashes of the edges of the first band, the second, ...
BAND_EDGES = ((BLUE, "-"), (GREEN, "--"), (PURPLE, ":"), (GREY, "-."))


def fit(
    result: Fit,
    band: Bands | Sequence[Bands] | None = None,
    *,
    ax: Axes | None = None,
    label: str = "fit",
) -> Axes:
    r"""The fitted curve $\hat f(x)$ over the observations $(x_i, y_i)$, in units of x and y.

    For inputs with several columns: observed labels against leave-one-out predictions.

    ```python
    >>> data = ak.data.load("faithful")
    >>> model = ak.KernelRegression(ak.Gaussian(0.5))
    >>> fit = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut())
    >>> ax = ak.plot.fit(fit, ak.bands(fit, ak.plot.grid(data.x)))
    >>> [text.get_text() for text in ax.get_legend().get_texts()][-2:]
    ['95 % pointwise band, bias-corrected', 'centre of the band']
    ```

    **Arguments:**

    - `result`: one fit, of one label per row.
    - `band`: a result of `ak.bands` or `ak.conformal`, or up to four of them, for inputs with one
      column: the area between the limits, over the inputs of the band. The centre of a
      bias-corrected band is not the fit.
    - `label`: of the curve, in a legend. A legend is drawn if there are bands.

    **Raises:** `ValueError` for a batch of fits, for several labels per row, for a single column of
    categories, for more than four bands, and for a band of several columns or labels, of infinite
    width, or not of the mean.
    """
    require_one(result)
    bands = [] if band is None else list(band) if isinstance(band, Sequence) else [band]
    for each in bands:
        require_instance("band", each, Bands, "ak.bands(result, x_new)")
    require_string("label", label)
    _require_drawable(result, bands)
    ax = axes(ax)
    if result.x.shape[1] == 1:
        points(result.x, result.y, ax=ax)
        at = grid(result.x)
        ax.plot(at, np.asarray(result(at)), color=ORANGE, label=label, zorder=3)
        widths = [float(np.nanmean(each.upper - each.lower)) for each in bands]
        for each, width, edges in zip(bands, widths, BAND_EDGES, strict=False):
            narrower = sum(other < width for other in widths)  # these are drawn in front
            shade(each.x[:, 0], each, ax, *edges, zorder=0.1 - 0.01 * narrower, has_centre=True)
        if bands:
            legend(ax)
        label_inputs(ax, result)
        ax.set_ylabel(y_label(result))
        return ax
    weights = result.objective.weight_kwargs()
    left_out = result.model(result.x, result.x, result.y, prior=ExcludeSelf(), **weights)
    return draw_left_out(result, left_out, ax)


def draw_left_out(result: Fit, predicted: ArrayLike, ax: Axes) -> Axes:
    """Draws observed labels against their leave-one-out predictions."""
    points(predicted, result.y, ax=ax)
    y = np.asarray(result.y)
    ends = [y.min(), y.max()]
    ax.plot(ends, ends, color=ORANGE, linestyle="--", linewidth=1.0, label="observed = predicted")
    of = "" if result.y_name is None else f" {y_label(result)}"
    ax.set(xlabel=f"leave-one-out prediction{of and ' of'}{of}", ylabel=f"observed{of}")
    return ax


def shade(
    x: ArrayLike,
    band: Bands,
    ax: Axes,
    color: str,
    dashes: str,
    *,
    zorder: float,
    has_centre: bool = False,
) -> None:
    """Draws the area between the limits; dashed edges tell bands apart in greyscale.

    `has_centre`: whether to draw the centre of a bias-corrected band, which is not the fit.
    """
    order = np.argsort(np.asarray(x))
    x, low, high = (np.asarray(of)[order] for of in (x, band.lower, band.upper))
    style: dict[str, Any] = {"facecolor": (color, 0.15), "edgecolor": (color, 0.8)}
    ax.fill_between(
        x,
        low,
        high,
        **style,
        linewidth=0.8,
        linestyle=dashes,
        label=band_label(band),
        zorder=zorder,
    )
    if has_centre and band.is_bias_corrected:
        style = {"color": color, "linestyle": (0, (2, 2)), "linewidth": 0.9}
        ax.plot(x, np.asarray(band.centre)[order], **style, label="centre of the band", zorder=2)


def band_label(band: Bands) -> str:
    """Returns the words for a band in a legend: `95 % pointwise band, bias-corrected`."""
    level, _, kind = band.description.partition(f" {band.kind}")
    return f"{level} {band.kind} {'interval' if band.kind == 'conformal' else 'band'}{kind}"


def _require_drawable(result: Fit, bands: list[Bands]) -> None:
    """Raises `ValueError` if x is one column of categories, or if bands are given and x has several
    columns.

    Also raises for more than four bands, and for a band that is infinite, not of the mean, or not
    of one column and one label.
    """
    dim = result.x.shape[1]
    if dim == 1 and category_columns(result):
        raise ValueError(
            "x holds categories, between which there is no curve: try ak.plot.partial(result, 0)."
        )
    if bands and dim != 1:
        raise ValueError(
            f"A band is drawn over one column; x has {dim}. Try ak.plot.partial, along one of them."
        )
    if len(bands) > len(BAND_EDGES):
        raise ValueError(f"At most {len(BAND_EDGES)} bands can be drawn; got {len(bands)}.")
    for band in bands:
        if band.x.shape[1] != 1 or band.centre.ndim != 1:
            raise ValueError(
                f"A band must be of one column and one label, as the fit is; got one of inputs "
                f"{band.x.shape} and limits {band.centre.shape}."
            )
        if band.estimated:
            raise ValueError(
                f"A band of the mean can be drawn about the labels; got one of the "
                f"{band.estimated}. Draw it by ak.plot.band(band)."
            )
        require_finite_limits(band)


def require_finite_limits(band: Bands) -> None:
    """Raises `ValueError` for a band of infinite width."""
    if np.any(np.isinf(band.lower)) or np.any(np.isinf(band.upper)):
        raise ValueError(
            f"The band {band.description} is infinite: there are too few rows for its level. "
            f"Ask for a lower level."
        )


def band(bands: Bands, *, ax: Axes | None = None, label: str | None = None) -> Axes:
    r"""The centre of a band over x, and the area between its limits, without observations.

    For a derivative or the curve of one component, a line at 0 is drawn too. Exactly one column of
    the inputs may vary; the others must be constant.

    ```python
    >>> data = ak.data.load("faithful")
    >>> fit = ak.fit(ak.KernelRegression(ak.Gaussian(0.5), order=1), data.x, data.y)
    >>> ax = ak.plot.band(ak.bands(fit, ak.plot.grid(data.x), derivative=1))
    >>> ax.get_ylabel()
    'first derivative of y'
    ```

    **Arguments:**

    - `bands`: a result of `ak.bands` or `ak.conformal`, of one label per row.
    - `label`: of the centre, in the legend. Default: `estimate`.

    **Raises:** `ValueError` for several labels, limits of infinite width, and inputs of which not
    exactly one column varies.
    """
    require_instance("bands", bands, Bands, "ak.bands(result, x_new)")
    if label is not None:
        require_string("label", label)
    x = np.asarray(bands.x)
    varying = np.flatnonzero(np.ptp(x, axis=0) > 0) if len(x) else np.array([], int)
    if bands.centre.ndim != 1 or len(varying) != 1:
        raise ValueError(
            f"A band is drawn for one label, along the one column of x that varies; got limits of "
            f"shape {bands.centre.shape}, and {len(varying)} columns that vary."
        )
    require_finite_limits(bands)
    column, ax = int(varying[0]), axes(ax)
    along = x[:, column]
    order = np.argsort(along)
    if bands.estimated:
        ax.axhline(0.0, color=ink(), linewidth=0.6)
    centre = np.asarray(bands.centre)[order]
    ax.plot(along[order], centre, color=ORANGE, label=label or "estimate", zorder=3)
    shade(along, bands, ax, BLUE, "-", zorder=0.1)
    legend(ax)
    name = "y" if bands.y_name is None else str(bands.y_name)
    of = f"{bands.estimated} {'in' if bands.derivative is None else 'of'} {name}"
    of = of if bands.estimated else name
    names = display_names(bands.x_names, x.shape[1])
    ax.set(xlabel=literal(names[column]), ylabel=literal(of))
    return ax


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
    before = np.asarray(cutoff - step, x.dtype)  # the right end of the side below the cutoff
    curve_points = 101  # of each side
    for color, dashes, (low, high), name, bin_label in (
        (BLUE, "-", (x.min(), before), "fit below the cutoff", f"means in {bins} bins"),
        (ORANGE, "--", (np.asarray(cutoff, x.dtype), x.max()), "fit from the cutoff on", "_"),
    ):
        here = (x >= low) & (x <= high)
        edges, of_rows = np.linspace(low, high, bins + 1), (weights[here], (weights * y)[here])
        total, sums = (np.histogram(x[here], edges, weights=of)[0] for of in of_rows)
        has_rows, middles = total > 0, 0.5 * (edges[1:] + edges[:-1])
        means = middles[has_rows], sums[has_rows] / total[has_rows]
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
