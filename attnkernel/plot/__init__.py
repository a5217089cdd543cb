"""Plots of data, fits, what fits are made of, and criteria.

Each takes `ax=`, draws on it and returns it.
"""

from ._criterion import criterion as criterion
from ._data import data as data, points as points
from ._diagnostics import effective as effective, residuals as residuals
from ._fit import fit as fit
from ._partial import partial as partial
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
from ._weights import weights as weights
from ._widgets import slide as slide
