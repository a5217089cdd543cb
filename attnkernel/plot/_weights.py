"""The weights of labels in a prediction: the row of attention of a query."""

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

_MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (GREY, "v"))
_MOST = 4096  # labels: their identity matrix is n² numbers


def weights(result: Fit, queries: ArrayLike | Sequence[float], *, ax: Axes | None = None) -> Axes:
    r"""The weights $L_j(q)$ of labels in the predictions at chosen queries, against $x_j$.

    $$ \hat f(q) = \sum_{j=1}^{n} L_j(q)\, y_j $$

    Of order 0 they are the weights of attention: from 0, their sum 1. Those of orders 1 and 2, and
    of a `BiasReduced`, may be negative. They are what the model predicts for labels that are 1 at
    one row and 0 at all others. Each query is marked on the horizontal axis, and its label counts
    $1/\sum_j L_j^2$.

    **Arguments:** `result`: one fit, of inputs of one dimension, linear in its labels; `queries`:
    one to five of them, a number or shape (m,), in units of x.

    **Raises:** `ValueError` for inputs of several dimensions, more queries, or more than 4096 rows.
    """
    require_one(result)
    n, dim = result.x.shape
    if dim != 1:
        raise ValueError(
            f"Weights are drawn over inputs of one dimension; x has {dim} columns. Of such, "
            f"ak.attention_weights gives the numbers."
        )
    if n > _MOST:
        raise ValueError(
            f"Weights are drawn of at most {_MOST} rows; this fit has {n}. Fit a part of them, or "
            f"see ak.attention_weights."
        )
    at = np.atleast_1d(np.asarray(as_real_array("queries", queries), np.asarray(result.x).dtype))
    if at.ndim != 1 or not 1 <= len(at) <= len(_MARKS):
        raise ValueError(
            f"Weights are drawn of 1 to {len(_MARKS)} queries, shape (m,); got shape {at.shape}."
        )
    require_finite("queries", at[:, None])
    ax = axes(ax)
    x = np.asarray(result.x[:, 0])
    found = weights_of(result, at)
    order = np.argsort(x)
    for q, of_q, (color, marker) in zip(at, found, _MARKS, strict=False):
        squares = float(np.sum(of_q**2))
        worth = f"{1 / squares:.3g} labels" if squares > 0 else "no label in reach"
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


def weights_of(result: Fit, queries: np.ndarray) -> np.ndarray:
    """L, shape (m, n); NaN or those of a policy where no label has weight."""
    each = np.eye(len(result.x), dtype=np.asarray(result.y).dtype)
    return np.asarray(result.model(queries, result.x, each, **result.objective.weight_kwargs()))
