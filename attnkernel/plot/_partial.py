"""The fit along one column of several, the others held."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .._core.validation import require_bool, require_level
from ..fitting import Fit
from ..inference import Bands, bands
from ..models import LinearSmoother
from ._diagnostics import rug
from ._fit import shade
from ._style import BLUE, ORANGE, axes, grid, legend, literal, require_one, x_label, y_label

_NAMED = 4  # of the columns held, in a legend


def partial(
    result: Fit,
    column: int | str,
    *,
    at: Mapping[Any, Any] | None = None,
    band: bool = True,
    level: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    r"""The fit along one column c, the others held: $\hat f(\ldots, \tilde x_{c-1}, t, \tilde
    x_{c+1}, \ldots)$ against t, in the units of that column and of y.

    $\tilde x_k$ is the median of column k or, of categories (`Kernel.categories`), the most
    frequent of them. A column of categories is itself drawn as points with bars. It is a cut
    through the fit at one place, no average over the others.

    **Arguments:**

    - `result`: one fit, of one label per row; `column`: its number, from 0, or its name.
    - `at`: values to hold other columns at, by column: `{2: 40.0}` or `{"age": 40.0}`; of columns
      that were categories of pandas, one of them.
    - `band`: whether to draw the pointwise band of `ak.bands`, for fits of a linear smoother:
      bias-corrected, where the smoother has a correction. `level`: its coverage. The axis ends
      where labels do, though bands go on.

    **Raises:** `ValueError` for a column that is not there.
    """
    require_one(result)
    require_bool("band", band)
    require_level("level", level)
    if at is not None and not isinstance(at, Mapping):
        raise ValueError(f"at must be a dictionary, such as {{2: 40.0}}; got {at!r}.")
    dim = result.x.shape[1]
    column = _number(result, column)
    given = {_number(result, other): value for other, value in (at or {}).items()}
    if column in given:
        raise ValueError(f"Column {column} varies: at= is of the others; got {at}.")
    at = {other: _code(result, other, value) for other, value in given.items()}
    ax = axes(ax)
    x = np.asarray(result.x)
    names = set(result.model.categories(dim)) if isinstance(result.model, LinearSmoother) else set()
    names |= {each for each in range(dim) if _among(result, each) is not None}
    held = {
        other: at.get(other, _usual(x[:, other], other in names))
        for other in range(dim)
        if other != column
    }
    along = np.unique(x[:, column]) if column in names else grid(x[:, column])
    rows = np.empty((len(along), dim), x.dtype)
    rows[:, column] = along
    for other, value in held.items():
        rows[:, other] = value
    predicted = np.asarray(result(rows))
    found = None
    if band:
        model = result.model  # `bands` refuses one that is no linear smoother
        corrected = isinstance(model, LinearSmoother) and model.bias_corrected(*x.shape) is not None
        found = bands(result, rows, level=level, corrected=corrected)
    if column in names:
        if found is not None:
            _bars(along, found, ax)
        ax.plot(along, predicted, "o", color=ORANGE, markersize=5.0, label="fit", zorder=3)
        ax.set_xticks(along, [_value(result, column, float(code)) for code in along])
        ax.margins(x=0.15)
    else:
        if found is not None:
            shade(along, found, ax, BLUE, "-", zorder=0.1)
        ax.plot(along, predicted, color=ORANGE, label="fit", zorder=3)
        rug(x[:, column], ax)
    _end_at_labels(ax, np.asarray(result.y), predicted)
    first = list(held.items())[:_NAMED]
    title = ", ".join(f"{x_label(result, c)} = {_value(result, c, value)}" for c, value in first)
    if len(held) > _NAMED:
        title += f", and {len(held) - _NAMED} more"
    legend(ax, f"at {title}" if held else None)
    ax.set(xlabel=x_label(result, column), ylabel=y_label(result))
    return ax


def _number(result: Fit, column: Any) -> int:
    """The number of a column, from its number or its name."""
    dim, names = result.x.shape[1], result.x_names or ()
    if isinstance(column, str) and column in names:
        return names.index(column)
    if isinstance(column, bool) or not isinstance(column, int) or not 0 <= column < dim:
        known = f" or one of {list(names)}" if names else ""
        raise ValueError(f"column must be from 0 to {dim - 1}{known}; got {column!r}.")
    return column


def _among(result: Fit, column: int) -> tuple[Any, ...] | None:
    return None if result.x_categories is None else result.x_categories[column]


def _code(result: Fit, column: int, value: Any) -> float:
    """A value of a column as the number that the fit knows it by."""
    among = _among(result, column)
    if among is None:
        return float(value)
    if value not in among:
        raise ValueError(f"at= must be one of {list(among)} there; got {value!r}.")
    return float(among.index(value))


def _value(result: Fit, column: int, code: float) -> str:
    """A number of a column as it is shown: a category by its name."""
    among = _among(result, column)
    return f"{code:.4g}" if among is None else literal(str(among[int(code)]))


def _usual(values: np.ndarray, is_category: bool) -> float:
    """The median; of categories the most frequent, of several such the first."""
    if not is_category:
        return float(np.median(values))
    codes, counts = np.unique(values, return_counts=True)
    return float(codes[np.argmax(counts)])


def _bars(along: np.ndarray, band: Bands, ax: Axes) -> None:
    """A bar from limit to limit at each category; its middle need not be the fit."""
    low, high = np.asarray(band.lower), np.asarray(band.upper)
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    style: dict[str, Any] = {"linestyle": "none", "color": BLUE, "capsize": 4.0, "linewidth": 1.2}
    ax.errorbar(along, middle, yerr=half, **style, label=band.description, zorder=2)


def _end_at_labels(ax: Axes, y: np.ndarray, predicted: np.ndarray) -> None:
    """A band that knows nothing shall not flatten the curve: no further than labels and fit go."""
    both = np.concatenate([y, predicted[np.isfinite(predicted)]])
    margin = 0.05 * float(np.ptp(both))
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, float(both.min()) - margin), min(high, float(both.max()) + margin))
