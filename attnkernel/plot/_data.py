"""Observations, and the true mean of simulated data."""

import numpy as np
from jax.typing import ArrayLike
from matplotlib.axes import Axes

from .._core.arrays import as_points
from .._core.validation import require_instance, require_string
from ..data import Dataset
from ._style import BLUE, SKY, axes, ink, literal


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
    r"""Observations; for simulated data the true mean $f(x)$ and the area $f(x) \pm 2 s(x)$ too.

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
