"""The fit along one column, the other columns held constant."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from .._core.pandas_frames import column_number
from .._core.validation import require_bool, require_level
from ..fitting import Fit
from ..inference import Bands, bands
from ..models import Smoother
from ._data import date_column, label_inputs, quantiles_of_column
from ._diagnostics import rug
from ._fit import band_label, shade
from ._style import (
    BLUE,
    ORANGE,
    axes,
    category_columns,
    grid,
    legend,
    literal,
    require_one,
    x_label,
    y_label,
)


def partial(
    result: Fit,
    column: int | str,
    *,
    at: Mapping[Any, Any] | None = None,
    band: bool = True,
    level: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    r"""The fit along column c, the others held constant, in the units of that column and of y.

    $$ t \mapsto \hat f(\ldots, \tilde x_{c-1}, t, \tilde x_{c+1}, \ldots) $$

    $\tilde x_k$ is the median of column k; for a column of categories
    (`ak.kernels.category_counts`) it is the most frequent one. If column c holds categories, points
    with bars are drawn. The curve is a slice through the fit at one point, not an average over the
    other columns (which is a partial dependence plot).

    ```python
    >>> data = ak.data.load("wage1", x=("educ", "exper"))
    >>> model = ak.KernelRegression(ak.Gaussian(np.array([2.0, 8.0])))
    >>> fit = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut())
    >>> ak.plot.partial(fit, 0, at={1: 10.0}, band=False).get_legend().get_title().get_text()
    'at x2 = 10'
    ```

    **Arguments:**

    - `result`: one fit, of one label per row; `column`: its number, from 0, or its name.
    - `at`: the values of other columns, by number or name: `{2: 40.0}` or `{"age": 40.0}`; for a
      categorical column of pandas, one of its categories.
    - `band`: whether to draw the pointwise band of `ak.bands`, bias-corrected where the smoother
      has a correction. A model without bands, such as a `RobustRegression`, needs `band=False`.
      `level`: the coverage. The vertical axis ends at the labels and the fit, also where the band
      is wider.

    **Raises:** `ValueError` for a batch of fits, for several labels per row, for a column or a
    category that is not there, for the column itself in `at`, and for a band that the model does
    not have.
    """
    require_one(result)
    require_bool("band", band)
    require_level("level", level)
    if at is not None and not isinstance(at, Mapping):
        raise ValueError(f"at must be a dictionary, such as {{2: 40.0}}; got {at!r}.")
    find = lambda of: column_number("column", of, result.x.shape[1], result.x_names)  # noqa: E731
    column, given = find(column), {find(other): value for other, value in (at or {}).items()}
    if column in given:
        raise ValueError(f"Column {column} varies: at= is for the other columns; got {at}.")
    at = {other: _to_code(result, other, value) for other, value in given.items()}
    ax = axes(ax)
    line = slice_along(result, column, at)
    found = None
    if band:
        model = result.model  # `bands` refuses what is not a smoother
        corrected = isinstance(model, Smoother) and has_bias_correction(result)
        found = bands(result, line.rows, level=level, corrected=corrected)
    draw_slice(result, line, np.asarray(result(line.rows)), found, ax)
    legend(ax, f"at {held_text(result, line)}" if line.held else None)
    return ax


class Slice(NamedTuple):
    """Inputs along one column, the other columns held constant."""

    column: int
    along: np.ndarray  # the values of that column, shape (m,): a grid, or codes of categories
    rows: np.ndarray  # the inputs, shape (m, dim)
    held: dict[int, float]  # the values of the other columns
    is_category: bool


def slice_along(result: Fit, column: int, at: Mapping[int, float] | None = None) -> Slice:
    """Returns inputs along a column: a grid, or its codes of categories.

    The other columns are held at the values in `at`, by number. A column that is not in it is held
    at its median, or at its most frequent category.
    """
    dim = result.x.shape[1]
    x = np.asarray(result.x)
    names = category_columns(result)
    held = {
        other: (at or {}).get(other, _typical_value(result, other, other in names))
        for other in range(dim)
        if other != column
    }
    along = np.unique(x[:, column]) if column in names else grid(x[:, column])
    rows = np.empty((len(along), dim), x.dtype)
    rows[:, column] = along
    for other, value in held.items():
        rows[:, other] = value
    return Slice(column, along, rows, held, column in names)


def has_bias_correction(result: Fit) -> bool:
    """Whether the smoother of a fit has a robust bias correction."""
    return result.model.bias_corrected(*result.x.shape) is not None


def draw_slice(
    result: Fit, line: Slice, predicted: np.ndarray, band: Bands | None, ax: Axes
) -> None:
    """Draws predictions along a slice, and a band at the same inputs: curves, or points with bars
    at categories; without a legend."""
    if line.is_category:
        if band is not None:
            low, middle, high = map(np.asarray, (band.lower, band.centre, band.upper))
            style: dict[str, Any] = {"color": BLUE, "fmt": "_", "capsize": 4.0, "linewidth": 1.2}
            ends, label = [middle - low, high - middle], band_label(band)
            ax.errorbar(line.along, middle, yerr=ends, **style, label=label, zorder=2)
        ax.plot(line.along, predicted, "o", color=ORANGE, markersize=5.0, label="fit", zorder=3)
        ticks = [_value_text(result, line.column, float(code)) for code in line.along]
        ax.set_xticks(line.along, ticks)
        ax.margins(x=0.15)
    else:
        if band is not None:
            shade(line.along, band, ax, BLUE, "-", zorder=0.1, has_centre=True)
        ax.plot(line.along, predicted, color=ORANGE, label="fit", zorder=3)
        rug(np.asarray(result.x[:, line.column]), ax)
    # a band that is wider than labels and fit does not set the vertical axis
    both = np.concatenate([np.asarray(result.y), predicted[np.isfinite(predicted)]])
    margin, (low, high) = 0.05 * float(np.ptp(both)), ax.get_ylim()
    ax.set_ylim(max(low, float(both.min()) - margin), min(high, float(both.max()) + margin))
    label_inputs(ax, result, line.column)
    ax.set_ylabel(y_label(result))


def held_text(result: Fit, line: Slice) -> str:
    """Returns the values of the other columns, as in `age = 40, sex = female`: of the first four,
    then the number of the rest."""
    max_named_columns = 4  # of those held constant, in a legend
    first = list(line.held.items())[:max_named_columns]
    title = ", ".join(f"{_name(result, c)} = {_value_text(result, c, value)}" for c, value in first)
    if len(line.held) > max_named_columns:
        title += f", and {len(line.held) - max_named_columns} more"
    return title


def _categories_of(result: Fit, column: int) -> tuple[Any, ...] | None:
    """Returns the categories that pandas gave a column; None if it gave none, or for a fit to
    arrays."""
    return None if result.x_categories is None else result.x_categories[column]


def _to_code(result: Fit, column: int, value: Any) -> float:
    """Returns a value of a column as a float: a category of pandas as its code, from 0;
    `ValueError` for a category that the column does not have."""
    among = _categories_of(result, column)
    if among is None:
        return float(value)
    if value not in among:
        raise ValueError(f"at= must be one of {list(among)} there; got {value!r}.")
    return float(among.index(value))


def _value_text(result: Fit, column: int, code: float) -> str:
    """Returns an entry of a column as text; a category, given by its code, as its name, and days
    since a date as a date."""
    among, dates = _categories_of(result, column), date_column(result, column)
    if dates is not None:
        return dates.text(code)
    return f"{code:.4g}" if among is None else literal(str(among[int(code)]))


def _name(result: Fit, column: int) -> str:
    """Returns the name of a column as text; a column of dates without the unit in its name."""
    dates = date_column(result, column)
    return x_label(result, column) if dates is None else literal(dates.name)


def _typical_value(result: Fit, column: int, is_category: bool) -> float:
    """Returns the median; for categories the most frequent code, the smallest among equals."""
    if not is_category:
        return float(quantiles_of_column(result, column, 0.5))
    codes, counts = np.unique(np.asarray(result.x)[:, column], return_counts=True)
    return float(codes[np.argmax(counts)])
