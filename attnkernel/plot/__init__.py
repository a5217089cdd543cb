"""Plots of data, of fits with their bands, weights and residuals, and of criteria.

Each function takes `ax=`, draws on these axes and returns them. `Smooth` is a statistic of
`seaborn.objects`, and `smooth` a method of `geom_smooth` of plotnine.
"""

import importlib
from typing import TYPE_CHECKING

from ._criterion import criterion as criterion
from ._data import data as data, points as points
from ._diagnostics import (
    effective_count as effective_count,
    residuals as residuals,
    votes as votes,
    weights as weights,
)
from ._display import interact as interact, show as show
from ._fit import band as band, discontinuity as discontinuity, fit as fit
from ._partial import partial as partial
from ._smooth import smooth as smooth
from ._style import (
    BLUE as BLUE,
    DARK as DARK,
    GREEN as GREEN,
    GREY as GREY,
    ORANGE as ORANGE,
    PURPLE as PURPLE,
    SKY as SKY,
    STYLE as STYLE,
    grid as grid,
    ink as ink,
    literal as literal,
    paper as paper,
)

if TYPE_CHECKING:
    from ._seaborn import Smooth as Smooth


def __getattr__(name: str):
    """Returns `Smooth`, imported on first use because it needs seaborn; `ImportError` without
    seaborn, `AttributeError` for other names."""
    if name == "Smooth":
        try:
            return importlib.import_module("._seaborn", __name__).Smooth
        except ImportError as missing:
            raise ImportError(
                "ak.plot.Smooth needs seaborn: pip install 'attnkernel[plots]'."
            ) from missing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, `Smooth` too."""
    names = [name for name in globals() if not name.startswith("_")]
    return sorted({*names, "Smooth"} - {"TYPE_CHECKING", "importlib"})
