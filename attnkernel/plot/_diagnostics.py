"""Diagnostics of a fit: residuals, and the effective number of labels in each prediction."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..fitting import Fit
from ..inference import effective_count as count_labels, noise_variance
from ..models import LinearSmoother
from ._data import label_inputs, points
from ._style import (
    BLUE,
    ORANGE,
    axes,
    category_columns,
    grid,
    ink,
    legend,
    require_one,
    y_label,
)


def residuals(result: Fit, *, ax: Axes | None = None) -> Axes:
    r"""Residuals $r_i = y_i - \hat f(x_i)$ and the local standard deviation of the noise.

    $$ r_i \text{ against } x_i \text{ (one column) or } \hat f(x_i) \text{ (several)}, \qquad
       \pm \hat\sigma(x) $$

    in units of y, with $\hat\sigma^2$ of `ak.noise_variance`: for one column two curves, for
    several a pair of dashes at each row. $\hat\sigma$ is drawn for smoothers with a
    `variance_smoother`, such as `KernelRegression`.

    ```python
    >>> data = ak.data.load("faithful")
    >>> model = ak.KernelRegression(ak.Gaussian(0.5))
    >>> fit = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut())
    >>> ak.plot.residuals(fit).get_ylabel()
    'residual (units of y)'
    ```

    **Arguments:** `result`: one fit, of one label per row.

    **Raises:** `ValueError` for a batch of fits, and for several labels per row.
    """
    require_one(result)
    ax = axes(ax)
    one = result.x.shape[1] == 1 and not category_columns(result)
    fitted = np.asarray(result(result.x))
    across = np.asarray(result.x[:, 0]) if one else fitted
    points(across, np.asarray(result.y) - fitted, ax=ax, label="residuals")
    ax.axhline(0.0, color=ink(), linewidth=0.8, zorder=0)
    if _has_local_noise(result.model):
        at = grid(result.x)[:, None] if one else result.x
        sd = np.sqrt(np.asarray(noise_variance(result, at)))
        style: dict[str, Any] = {"color": ORANGE, "linestyle": "--"}
        if not one:
            style = {"color": ORANGE, "linestyle": "none", "marker": "_", "markersize": 4.0}
        across = at[:, 0] if one else across
        ax.plot(across, sd, **style, label="± local sd of the noise", zorder=3)
        ax.plot(across, -sd, **style, zorder=3)
        legend(ax)
    ax.set(xlabel=y_label(result, "fitted value"), ylabel=y_label(result, "residual"))
    if one:
        label_inputs(ax, result)
    return ax


def _has_local_noise(model: Any) -> bool:
    """Whether the noise variance can be estimated at each input."""
    return isinstance(model, LinearSmoother) and model.variance_smoother(1.0) is not None


def effective_count(result: Fit, *, ax: Axes | None = None) -> Axes:
    r"""The effective number of labels in each prediction, $1 / \sum_j L_j(x)^2$ (no unit).

    For one column it is drawn against x, with a tick at each row; for several columns it is a
    histogram over the rows. It is 0 where no label has weight. See `ak.inference.effective_count`.

    ```python
    >>> data = ak.data.load("faithful")
    >>> model = ak.KernelRegression(ak.Gaussian(0.5))
    >>> fit = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut())
    >>> ak.plot.effective_count(fit).get_ylabel()
    'effective count of labels'
    ```

    **Arguments:** `result`: one fit of a linear smoother.

    **Raises:** `ValueError` for a batch of fits, for several labels, and for another model.
    """
    require_one(result)
    ax = axes(ax)
    if result.x.shape[1] == 1:
        at = grid(result.x)
        ax.plot(at, np.asarray(count_labels(result, at)), color=BLUE)
        rug(np.asarray(result.x[:, 0]), ax)
        ax.set_ylim(bottom=0.0)
        ax.set_ylabel("effective count of labels")
        label_inputs(ax, result)
        return ax
    counts = np.asarray(count_labels(result, result.x))
    ax.hist(counts, bins="auto", facecolor=(BLUE, 0.35), edgecolor=BLUE, linewidth=0.8)
    middle = float(np.median(counts))
    ax.axvline(middle, color=ink(), linestyle="--", linewidth=1.0, label=f"median {middle:.3g}")
    legend(ax)
    ax.set(xlabel="effective count of labels", ylabel="rows")
    return ax


def rug(x: np.ndarray, ax: Axes) -> None:
    """Draws a tick at each row, along the horizontal axis."""
    along_axis = ax.get_xaxis_transform()
    style: dict[str, Any] = {
        "color": ink(),
        "alpha": 0.4,
        "markersize": 5.0,
        "markeredgewidth": 0.6,
    }
    ax.plot(x, np.full(len(x), 0.015), "|", **style, transform=along_axis, label="rows", zorder=0.5)
