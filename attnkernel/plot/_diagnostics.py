"""Diagnostics of a fit: residuals, effective numbers of labels, and weights of labels."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from matplotlib.axes import Axes

from .._core.arrays import as_real_array, require_finite
from .._core.pandas_frames import column_number, is_frame
from .._core.validation import as_integer
from ..fitting import Fit
from ..inference import effective_count as count_labels, noise_variance
from ..models import LinearSmoother
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
    paper,
    require_one,
    x_label,
    y_label,
)


def residuals(result: Fit, *, ax: Axes | None = None) -> Axes:
    r"""Residuals $r_i = y_i - \hat f(x_i)$ and the local standard deviation of the noise.

    $$ r_i \text{ against } x_i \text{ (one column) or } \hat f(x_i) \text{ (several)}, \qquad
       \pm \hat\sigma(x) $$

    in units of y, with $\hat\sigma^2$ of `ak.noise_variance`: for one column two curves, for
    several a pair of dashes at each row. One column of categories is drawn as several columns are.
    $\hat\sigma$ is drawn for smoothers with a `variance_smoothers`, such as `KernelRegression`.

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
    model, at, variance = result.model, inputs_of_noise(result), None
    own = type(model).variance_smoothers if isinstance(model, LinearSmoother) else None
    if own not in (None, LinearSmoother.variance_smoothers):
        variance = noise_variance(result, at)
    ax = draw_residuals(result, result(result.x), at, variance, axes(ax))
    if variance is not None:
        legend(ax)
    return ax


def inputs_of_noise(result: Fit) -> ArrayLike:
    """Returns the inputs at which `residuals` draws the noise, shape (m, dim): a grid for a single
    column of quantities, else the inputs of the rows."""
    return grid(result.x)[:, None] if _is_curve(result) else result.x


def _is_curve(result: Fit) -> bool:
    """Whether the inputs of a fit are a single column, of quantities, not categories."""
    return result.x.shape[1] == 1 and not category_columns(result)


def draw_residuals(
    result: Fit, fitted: ArrayLike, at: ArrayLike, variance: ArrayLike | None, ax: Axes
) -> Axes:
    """Draws residuals, and ± the standard deviation of the noise, without a legend; returns `ax`.

    `fitted`: the predictions at the rows. `at`: the `inputs_of_noise`. `variance`: that of the
    noise there, None to draw none.
    """
    one, fitted = _is_curve(result), np.asarray(fitted)
    across = np.asarray(result.x[:, 0]) if one else fitted
    points(across, np.asarray(result.y) - fitted, ax=ax, label="residuals")
    ax.axhline(0.0, color=ink(), linewidth=0.8, zorder=0)
    if variance is not None:
        sd = np.sqrt(np.asarray(variance))
        style: dict[str, Any] = {"color": ORANGE, "linestyle": "--"}
        if not one:
            style = {"color": ORANGE, "linestyle": "none", "marker": "_", "markersize": 4.0}
        across = np.asarray(at)[:, 0] if one else across
        ax.plot(across, sd, **style, label="± local sd of the noise", zorder=3)
        ax.plot(across, -sd, **style, zorder=3)
    ax.set(xlabel=y_label(result, "fitted value"), ylabel=y_label(result, "residual"))
    if one:
        label_inputs(ax, result)
    return ax


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

    **Arguments:** `result`: one fit of a linear smoother or a `LocalLikelihood`.

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


QUERY_MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (GREY, "v"))
MAX_ROWS = 4096  # the weights are predictions for an identity matrix of n² numbers


def weights(result: Fit, queries: ArrayLike | Sequence[float], *, ax: Axes | None = None) -> Axes:
    r"""The weights $L_j(q)$ of the labels in the predictions at one to five queries, against $x_j$.

    $$ \hat f(q) = \sum_{j=1}^{n} L_j(q)\, y_j $$

    For order 0 they are attention weights: not negative, with sum 1. For orders 1 and 2, and for a
    `BiasReduced`, they may be negative. $L_j$ is computed as the prediction for labels that are 1
    at row j and 0 elsewhere. Each query is marked on the horizontal axis; the legend gives its
    effective count $1/\sum_j L_j^2$.

    ```python
    >>> data = ak.data.load("faithful")
    >>> model = ak.KernelRegression(ak.Gaussian(0.5))
    >>> fit = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut())
    >>> ax = ak.plot.weights(fit, [2.0, 4.0])
    >>> ax.get_legend().get_texts()[0].get_text()
    'q = 2: ... labels'
    ```

    **Arguments:** `result`: one fit with one input column, linear in its labels; `queries`: a
    number or shape (m,), m from 1 to 5, in units of x.

    **Raises:** `ValueError` for a batch of fits, several labels per row, several input columns,
    more queries, or more than 4096 rows.
    """
    require_one(result)
    n, dim = result.x.shape
    if dim != 1:
        raise ValueError(
            f"Weights are drawn over one input column; x has {dim} columns. Their numbers: "
            f"ak.attention_weights."
        )
    if n > MAX_ROWS:
        raise ValueError(
            f"Weights are drawn for at most {MAX_ROWS} rows; this fit has {n}. Fit a part of "
            f"them, or see ak.attention_weights."
        )
    at = np.atleast_1d(np.asarray(as_real_array("queries", queries), np.asarray(result.x).dtype))
    if at.ndim != 1 or not 1 <= len(at) <= len(QUERY_MARKS):
        raise ValueError(
            f"Weights are drawn for 1 to {len(QUERY_MARKS)} queries, shape (m,); got shape "
            f"{at.shape}."
        )
    require_finite("queries", at[:, None])
    ax = axes(ax)
    x = np.asarray(result.x[:, 0])
    each = np.eye(n, dtype=np.asarray(result.y).dtype)
    smoother = np.asarray(result.model(at, result.x, each, **result.objective.weight_kwargs()))
    order = np.argsort(x)
    for q, of_q, (color, marker) in zip(at, smoother, QUERY_MARKS, strict=False):
        squares = float(np.sum(of_q**2))
        worth = f"{1 / squares:.3g} labels" if squares > 0 else "no label has weight"
        style: dict[str, Any] = {"marker": marker, "markersize": 3.0, "linewidth": 0.8}
        ax.plot(
            x[order], of_q[order], **style, color=color, label=f"q = {q:.4g}: {worth}", zorder=2
        )
        foot: dict[str, Any] = {"marker": marker, "markersize": 6.0, "markeredgecolor": paper()}
        across = ax.get_xaxis_transform()
        ax.plot(q, 0.0, **foot, color=color, clip_on=False, transform=across, zorder=4)
    ax.axhline(0.0, color=ink(), linewidth=0.8, zorder=1)
    legend(ax, "weights at")
    ax.set(xlabel=x_label(result), ylabel="weight $L_j(q)$ of a label")
    return ax


def votes(
    result: Fit,
    x_new: ArrayLike | Any,
    *,
    column: int | str = 0,
    k_largest: int = 10,
    ax: Axes | None = None,
) -> Axes:
    r"""The labels from which one prediction comes, over one column of the inputs.

    $$ \hat f(x) = \sum_{j=1}^{n} L_j(x)\, y_j $$

    The area of a disc is in proportion to the weight $|L_j|$ of its label, orange where it is
    negative, as those of local lines may be. The title gives the sum of the largest weights, where
    that of all is 1, and the number $1/\sum_j L_j^2$ of labels that the prediction is worth.

    ```python
    >>> data = ak.data.load("faithful")
    >>> model = ak.KernelRegression(ak.Gaussian(0.5))
    >>> fit = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut())
    >>> ax = ak.plot.votes(fit, 3.2)
    >>> print(ax.get_title())
    prediction 72..., worth ... labels
    the 10 largest weights sum to 0...
    ```

    **Arguments:**

    - `result`: one fit of one label per row, linear in its labels.
    - `x_new`: one input: a number, shape (dim,), or a frame of one row.
    - `column`: along the horizontal axis, by number or name; of numbers, not of categories.
    - `k_largest`: how many labels get a disc.

    **Raises:** `ValueError` for several inputs, several labels per row, an unknown column or one of
    categories, and as `Fit.votes`.
    """
    require_one(result)
    count = as_integer("k_largest", k_largest, 1)
    along = column_number("column", column, result.x.shape[1], result.x_names)
    if along in category_columns(result):
        raise ValueError(f"column must be one of numbers; {column!r} has categories.")
    if not is_frame(x_new):
        x_new = as_real_array("x_new", x_new)
        x_new = x_new if x_new.ndim > 2 else np.atleast_2d(x_new)
    at = np.asarray(result.inputs(x_new))
    if len(at) != 1:
        raise ValueError(f"x_new must be one input; got {len(at)}.")
    found = jax.tree.map(np.asarray, result.votes(at, count))
    rows, weights = found.indices[0], found.weights[0]
    x, y = np.asarray(result.x)[:, along], np.asarray(result.y)
    ax = axes(ax)
    points(x, y, ax=ax)
    areas = 350.0 * np.abs(weights) / max(float(np.max(np.abs(weights))), np.finfo(float).tiny)
    colors = np.where(weights < 0, ORANGE, BLUE)
    ax.scatter(x[rows], y[rows], areas, colors, alpha=0.45, linewidths=0.0, zorder=2)
    value, worth = float(result(at)[0]), float(found.effective_number[0])
    mark: dict[str, Any] = {"color": GREEN, "markersize": 8.0, "markeredgecolor": paper()}
    ax.plot(at[0, along], value, "D", **mark, zorder=4)
    ax.axvline(at[0, along], color=ink(), linewidth=0.8, linestyle=":", zorder=1)
    ax.set_title(  # a legend would cover discs
        f"prediction {value:.4g}, worth {worth:.3g} labels\n"
        f"the {len(rows)} largest weights sum to {float(found.share[0]):.3g}",
        fontsize="medium",
    )
    label_inputs(ax, result, along)
    ax.set_ylabel(y_label(result))
    return ax
