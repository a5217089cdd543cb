"""Figures of several panels that share their axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import attnkernel as ak

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from ..runs import Run


def subplots(
    rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **options: Any
) -> tuple[Figure, Any]:
    """A figure and its axes, as of `plt.subplots`, without pyplot's state."""
    from matplotlib.figure import Figure  # noqa: PLC0415  with the first figure

    figure = Figure(figsize=figsize)
    return figure, figure.subplots(rows, columns, **options)


def panels(number: int, *, width: float = 3.4, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """A figure with `number` panels, two in a row, on common axes."""
    columns = min(2, number)
    rows = -(-number // columns)
    size, shared = (width * columns, height * rows), {"sharex": True, "sharey": True}
    figure, grid = subplots(rows, columns, figsize=size, squeeze=False, **shared)
    for ax in grid.ravel()[number:]:
        ax.remove()
    return figure, list(grid.ravel()[:number])


def facets(
    rows: Sequence[Any], columns: Sequence[Any], *, width: float, height: float, **options: Any
) -> tuple[Figure, dict[tuple[Any, Any], Axes]]:
    """A figure with a panel for each row and column, of this size in inches, by row and column."""
    size = (1.4 + width * len(columns), 0.8 + height * len(rows))
    figure, axes = subplots(
        len(rows), len(columns), sharex=True, squeeze=False, figsize=size, **options
    )
    return figure, dict(zip(itertools.product(rows, columns), axes.flat, strict=True))


def looks_of(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A colour and a marker for each name, as arguments of `Axes.plot`."""
    colors = itertools.cycle(ak.plot.STYLE["axes.prop_cycle"].by_key()["color"])
    return {
        name: {"color": color, "marker": marker}
        for name, color, marker in zip(names, colors, "o^Dvsx+*Pdhp<", strict=False)
    }


def label_outer(axes: Iterable[Axes], x: str, y: str) -> None:
    """Axis labels at the left and the bottom of the figure only."""
    for ax in axes:
        ax.set(xlabel=ak.plot.literal(x), ylabel=ak.plot.literal(y))
        ax.label_outer()


def legend(figure: Figure, axes: Iterable[Axes], *, columns: int = 0) -> None:
    """One legend for all panels, below them, in one row or in `columns` columns."""
    entries = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=columns or len(entries),
    )


def ticks_at(axis: Axis, values: Any) -> None:
    """Puts the ticks of an axis, a logarithmic one too, at these values alone."""
    axis.set_ticks(values, [f"{value:,}" for value in values])
    axis.set_ticks([], minor=True)


def lengths_axis(ax: Axes, lengths: Sequence[int], label: str) -> None:
    """Makes the axes logarithmic, with ticks at up to 4 of the lengths, the last one among them."""
    ax.set(xscale="log", yscale="log", xlabel=label)
    ticks_at(ax.xaxis, lengths[:: -len(lengths) // 4])


def draw_lines(ax: Axes, at: Any, values: Mapping[str, Any], **options: Any) -> None:
    """Draws a line with markers for each series; `options`: of `Axes.plot`."""
    for name, look in looks_of(values).items():
        ax.plot(at, values[name], **look, label=name, **options)


def draw_dots(
    ax: Axes,
    rows: Sequence[str],
    values: Mapping[str, Any],
    half_widths: Mapping[str, Any] | None = None,
) -> None:
    """Draws a marker of each series in each row, the first row at the top; `half_widths`: those of
    intervals about the values.
    """
    step = 0.7 / max(len(values), 4)
    for i, (name, look) in enumerate(looks_of(values).items()):
        at = np.arange(len(rows)) + step * (i - (len(values) - 1) / 2)
        look |= {"label": name, "linestyle": "none", "markersize": 4.5}
        if half_widths is None:
            ax.plot(values[name], at, **look)
        else:
            ax.errorbar(values[name], at, xerr=half_widths[name], elinewidth=1.0, **look)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)


def save_with_legend(
    run: Run, name: str, figure: Figure, axes: Iterable[Axes], columns: int = 0, **arrays: Any
) -> None:
    """Adds the legend of these panels, and saves the figure in the run."""
    legend(figure, axes, columns=columns)
    run.figure(name, figure, **arrays)


def heat_map(ax: Axes, title: str, weights: Any, *, most: float = 1.0) -> None:
    """Weights, one row for each query: white for 0, dark for `most`. Where no key after its query
    has a weight, those keys are grey.
    """
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    weights = np.asarray(weights)
    if not np.triu(weights, 1).any():
        ax.set_facecolor((ak.plot.GREY, 0.3))
        weights = np.where(np.tri(*weights.shape, dtype=bool), weights, np.nan)
    look = {"vmin": 0.0, "vmax": most, "cmap": "Blues", "interpolation": "nearest"}
    ax.imshow(weights, **look, label=title)
    ax.set_title(title)
    for axis in (ax.xaxis, ax.yaxis):  # of rows and columns, which are counted
        axis.set_major_locator(MaxNLocator(4, integer=True))
    for side in ("top", "right"):
        ax.spines[side].set_visible(True)


def draw_heat_maps(
    maps: Mapping[str, Any],
    columns: int,
    label: str,
    *,
    x: str = "key",
    y: str = "query",
    most: float = 1.0,
    size: float = 2.4,
) -> Figure:
    """A figure with a heat map of each of the weights, by title, of this size in inches, and one
    colour bar.
    """
    rows = -(-len(maps) // columns)
    area = (size * columns + 0.8, size * rows + 0.3)
    figure, grid = subplots(rows, columns, squeeze=False, figsize=area)
    for ax, (title, weights) in zip(grid.flat, maps.items(), strict=True):
        heat_map(ax, title, weights, most=most)
        ax.set(xlabel=x, ylabel=y)
        ax.label_outer(remove_inner_ticks=False)
    extend = "max" if most < 1.0 else "neither"
    image = grid[0, 0].images[0]
    figure.colorbar(image, ax=figure.axes, shrink=0.7, extend=extend, label=label)
    return figure


def draw_fits(
    run: Run,
    name: str,
    data: ak.data.Dataset,
    members: Sequence[Any],
    titles: Sequence[str],
    *,
    label: str = "prediction",
) -> None:
    """A figure with a panel for each of `members`, functions of new inputs: its curve, of this
    label in the legend, the data, and the truth where it is known. Of several inputs, members are
    fits, and labels are drawn against leave-one-out predictions.
    """
    figure, axes = panels(len(members))
    is_curve = data.x.shape[1] == 1
    for ax, member, title in zip(axes, members, titles, strict=True):
        if is_curve:
            at = ak.plot.grid(data.x)
            ak.plot.points(data.x, data.y, ax=ax)
            if data.mean is not None:
                ax.plot(np.ravel(data.x), data.mean, "--", color=ak.plot.BLUE, label="true mean")
            ax.plot(at, np.asarray(member(at)), color=ak.plot.ORANGE, label=label, zorder=3)
        else:
            ak.plot.fit(member, ax=ax, label=label)
        ax.set_title(title)
    label_outer(axes, data.x_names[0] if is_curve else "leave-one-out prediction", data.y_name)
    save_with_legend(run, name, figure, axes)


def smoothing_verdicts(lengthscales: Sequence[Any], errors: Sequence[Any]) -> list[str]:
    """For each fit, in words: whether it is over- or undersmoothed, by leave-one-out errors.

    It is where its error is more than 5 % above the minimum of all, and its lengthscale longer or
    shorter than the lengthscale there.
    """
    lengths, found = (np.asarray(column, float) for column in (lengthscales, errors))
    if not np.isfinite(found).any():
        return ["no leave-one-out error"] * len(found)
    best = int(np.nanargmin(found))
    words = []
    for i, (length, error) in enumerate(zip(lengths, found, strict=True)):
        if i == best:
            words.append("lowest error" if len(found) > 1 else f"error {error:.3g}")
        elif not np.isfinite(error):
            words.append("no leave-one-out error")
        elif error <= 1.05 * found[best]:
            words.append("as good within 5 %")
        else:
            words.append("oversmoothed" if length > lengths[best] else "undersmoothed")
    return words
