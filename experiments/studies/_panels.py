"""Figures of several panels that share their axes."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import attnkernel as ak


def panels(number: int, *, width: float = 3.4, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """A figure with `number` panels, two in a row, on common axes."""
    columns = min(2, number)
    rows = -(-number // columns)
    figure = Figure(figsize=(width * columns, height * rows))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for ax in grid.ravel()[number:]:
        ax.remove()
    return figure, list(grid.ravel()[:number])


def label_outer(axes: Sequence[Axes], x: str, y: str) -> None:
    """Axis labels at the left and the bottom of the figure only."""
    for ax in axes:
        ax.set(xlabel=ak.plot.literal(x), ylabel=ak.plot.literal(y))
        ax.label_outer()


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, below them: it covers no data."""
    entries = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=len(entries)
    )
