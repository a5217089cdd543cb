"""The fitted curve, bands about it, and the observations."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from matplotlib.axes import Axes

from .._core.validation import require_instance, require_string
from ..fitting import Fit
from ..inference import Bands
from ..priors import ExcludeSelf
from ._data import points
from ._style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    axes,
    grid,
    legend,
    require_one,
    x_label,
    y_label,
)

# of the first band, the second, ...: colour of the edge and its dashes; areas are lighter
_EDGES = ((BLUE, "-"), (GREEN, "--"), (PURPLE, ":"), (GREY, "-."))


def fit(
    result: Fit,
    band: Bands | Sequence[Bands] | None = None,
    *,
    ax: Axes | None = None,
    label: str = "fit",
) -> Axes:
    r"""The fitted curve $\hat f(x)$ over the observations $(x_i, y_i)$, in units of x and y.

    For inputs of several dimensions: observed labels against leave-one-out predictions.

    **Arguments:**

    - `result`: one fit, of one label per row.
    - `band`: what `ak.bands` or `ak.conformal` gave, or several of them, for inputs of one
      dimension: shaded from the lower limit to the upper, over the inputs that it was asked at.
      The middle of a bias-corrected band is not the fit.
    - `label`: of the curve, in a legend. A legend is drawn where there are bands.

    **Raises:** `ValueError` for a batch of fits, for several labels per row, and for a band of
    several columns or labels, or of infinite width.
    """
    require_one(result)
    given = [] if band is None else list(band) if isinstance(band, Sequence) else [band]
    for one in given:
        require_instance("band", one, Bands, "ak.bands(result, x_new)")
    require_string("label", label)
    _require_drawable(result, given)
    ax = axes(ax)
    if result.x.shape[1] == 1:
        points(result.x, result.y, ax=ax)
        at = grid(result.x)
        ax.plot(at, np.asarray(result(at)), color=ORANGE, label=label, zorder=3)
        widths = [float(np.nanmean(one.upper - one.lower)) for one in given]
        for one, width, edges in zip(given, widths, _EDGES, strict=False):
            before = sum(other < width for other in widths)  # the widest lies behind
            shade(one.x[:, 0], one, ax, *edges, zorder=0.1 - 0.01 * before)
        if given:
            legend(ax)
        ax.set(xlabel=x_label(result), ylabel=y_label(result))
        return ax
    predicted = result.model(result.x, result.x, result.y, prior=ExcludeSelf())
    points(predicted, result.y, ax=ax)
    ends = [float(jnp.min(result.y)), float(jnp.max(result.y))]
    ax.plot(ends, ends, color=ORANGE, linestyle="--", linewidth=1.0, label="observed = predicted")
    of = "" if result.y_name is None else f" {y_label(result)}"
    ax.set(xlabel=f"leave-one-out prediction{of and ' of'}{of}", ylabel=f"observed{of}")
    return ax


def shade(x: ArrayLike, band: Bands, ax: Axes, color: str, dashes: str, *, zorder: float) -> None:
    """The area between the limits over x, and its edges: in greyscale their dashes tell them."""
    order = np.argsort(np.asarray(x))
    x, low, high = (np.asarray(of)[order] for of in (x, band.lower, band.upper))
    style: dict[str, Any] = {"facecolor": (color, 0.15), "edgecolor": (color, 0.8)}
    ax.fill_between(
        x,
        low,
        high,
        **style,
        linewidth=0.8,
        linestyle=dashes,
        label=band.description,
        zorder=zorder,
    )


def _require_drawable(result: Fit, given: list[Bands]) -> None:
    dim = result.x.shape[1]
    if given and dim != 1:
        raise ValueError(
            f"A band is drawn over one column; x has {dim}. Try ak.plot.partial, along one of them."
        )
    if len(given) > len(_EDGES):
        raise ValueError(f"At most {len(_EDGES)} bands are told apart; got {len(given)}.")
    for band in given:
        if band.x.shape[1] != 1 or band.centre.ndim != 1:
            raise ValueError(
                f"A band must be of one column and one label, as the fit is; got one of inputs "
                f"{band.x.shape} and limits {band.centre.shape}."
            )
        if np.any(np.isinf(band.lower)) or np.any(np.isinf(band.upper)):
            raise ValueError(
                f"The band {band.description} is infinite: there are too few rows for its level. "
                f"Ask for a lower level."
            )
