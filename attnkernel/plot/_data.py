"""Observations, the true mean of simulated data, and axes of dates.

An axis has dates if the name of its column states the unit `(days since 2020-05-01)`. The unit is
that of `ak.data.read_csv`, of UDUNITS and of the CF conventions.
"""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, num2date

from .._core.arrays import as_points
from .._core.pandas_frames import display_names
from .._core.validation import require_instance, require_string
from ..data import DAYS_SINCE, Dataset
from ..fitting import Fit
from ._style import BLUE, SKY, axes, ink, literal, x_label

MAX_TICKS = 6


class DateColumn(NamedTuple):
    """A column of days since a date."""

    name: str
    first_day: datetime

    def text(self, days: float) -> str:
        """Returns a number of days as a date, with the time unless that is midnight."""
        return _shown(self._moment(days))

    def set_ticks(self, ax: Axes) -> None:
        """Sets the ticks of the horizontal axis to dates within its limits; leaves them as they
        are if a limit is outside the years 1 to 9999."""
        low, high = ax.get_xlim()
        try:
            ends: Any = self._moment(low), self._moment(high)
        except OverflowError:  # a margin before the year 1
            return
        locator = AutoDateLocator(minticks=3, maxticks=MAX_TICKS)
        moments = [num2date(at).replace(tzinfo=None) for at in locator.tick_values(*ends)]
        moments = [moment for moment in moments if ends[0] <= moment <= ends[1]]
        places = [(moment - self.first_day) / timedelta(days=1) for moment in moments]
        ax.set_xticks(places, [_shown(moment) for moment in moments])

    def _moment(self, days: float) -> datetime:
        """Returns the date and time after a number of days, to the nearest second."""
        return self.first_day + timedelta(seconds=round(86400.0 * float(days)))


def date_column(result: Fit, column: int) -> DateColumn | None:
    """Returns the name, without the unit, and the first day of an input column of dates; None
    unless its name ends in a unit such as `(days since 2020-05-01)`, with a valid date."""
    found = DAYS_SINCE.fullmatch(display_names(result.x_names, result.x.shape[1])[column])
    if found is None:
        return None
    try:
        return DateColumn(found[1], datetime.fromisoformat(found[2]))
    except ValueError:  # as in days since 2020-99-99
        return None


def quantiles_of_column(result: Fit, column: int, shares: Any) -> Any:
    """Returns the quantiles of a column of inputs at the probabilities `shares`. For dates that
    span at least 10 days they are rounded to whole days."""
    values = np.asarray(result.x)[:, column]
    found = np.quantile(values, shares)
    has_days = date_column(result, column) is not None and np.ptp(values) >= 10
    return np.round(found) if has_days else found


def label_inputs(ax: Axes, result: Fit, column: int = 0) -> None:
    """Labels the horizontal axis with the name of a column of inputs; a column of dates also gets
    dates as ticks."""
    dates = date_column(result, column)
    if dates is None:
        ax.set_xlabel(x_label(result, column))
        return
    ax.set_xlabel(literal(dates.name))
    dates.set_ticks(ax)


def _shown(moment: datetime) -> str:
    """Returns a date in ISO 8601, with the time unless it is midnight."""
    parts = ("hour", "minute", "second")
    if not any(getattr(moment, part) for part in parts):
        return moment.date().isoformat()
    return moment.isoformat(" ", "seconds" if moment.second else "minutes")


def points(
    x: ArrayLike, y: ArrayLike, *, ax: Axes | None = None, label: str = "observations"
) -> Axes:
    """Observations $(x_i, y_i)$ as small open circles.

    ```python
    ak.plot.points(np.arange(3.0), np.array([0.1, 0.9, 2.2]), label="measured")
    ```

    **Arguments:** `x`: shape (n,) or (n, 1); `y`: shape (n,); `label`: in a legend.

    **Raises:** `ValueError` for other shapes.
    """
    columns, labels = (np.asarray(as_points(name, of)) for name, of in (("x", x), ("y", y)))
    if columns.shape[1:] != (1,) or labels.shape != columns.shape:
        raise ValueError(
            f"x must have shape (n,) or (n, 1), and y shape (n,); got x {np.shape(x)} and y "
            f"{np.shape(y)}."
        )
    require_string("label", label)
    ax = axes(ax)
    ax.plot(
        columns[:, 0],
        labels[:, 0],
        "o",
        color=ink(),
        markersize=3.2,
        markerfacecolor="none",
        markeredgewidth=0.7,
        alpha=0.55,
        label=label,
        zorder=1,
    )
    return ax


def data(dataset: Dataset, *, ax: Axes | None = None) -> Axes:
    r"""Observations; if they are known, the true mean $f(x)$ and the area $f(x) \pm 2 s(x)$ too.

    ```python
    ak.plot.data(ak.data.load("faithful"))
    ak.plot.data(ak.data.heteroskedastic(key=jax.random.PRNGKey(0)))
    ```

    **Arguments:** `dataset`: of one input column.

    **Raises:** `ValueError` for several input columns.
    """
    require_instance("dataset", dataset, Dataset, 'ak.data.load("faithful")')
    ax = axes(ax)
    points(dataset.x, dataset.y, ax=ax)
    x = np.ravel(np.asarray(dataset.x))
    if dataset.mean is not None:
        ax.plot(x, np.asarray(dataset.mean), color=BLUE, label="true mean f(x)", zorder=3)
    if dataset.mean is not None and dataset.sd is not None:
        mean, sd = np.asarray(dataset.mean), np.asarray(dataset.sd)
        ax.fill_between(
            x,
            mean - 2 * sd,
            mean + 2 * sd,
            color=SKY,
            alpha=0.25,
            linewidth=0,
            label="f(x) ± 2 s(x)",
            zorder=0,
        )
    ax.set(xlabel=literal(dataset.x_names[0]), ylabel=literal(dataset.y_name))
    return ax
