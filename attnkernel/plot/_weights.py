"""The weights of the labels in a prediction: one row of the attention matrix."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from matplotlib.axes import Axes

from .._core.arrays import as_real_array, require_finite
from ..fitting import Fit
from ._style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    axes,
    ink,
    legend,
    paper,
    require_one,
    x_label,
)

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

    **Raises:** `ValueError` for several input columns, more queries, or more than 4096 rows.
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
    smoother = smoother_matrix(result, at)
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


def smoother_matrix(result: Fit, queries: np.ndarray) -> np.ndarray:
    """Returns the weights $L_j(q)$ of n labels at m queries, shape (m, n).

    A query at which no label has weight follows the model's `on_empty`.
    """
    each = np.eye(len(result.x), dtype=np.asarray(result.y).dtype)
    return np.asarray(result.model(queries, result.x, each, **result.objective.weight_kwargs()))
