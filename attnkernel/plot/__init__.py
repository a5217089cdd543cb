"""Plots of data, of fits with their bands, weights and residuals, and of criteria.

Each function takes `ax=`, draws on these axes and returns them.
"""

from ._criterion import criterion as criterion
from ._data import data as data, points as points
from ._diagnostics import (
    effective_count as effective_count,
    residuals as residuals,
    votes as votes,
    weights as weights,
)
from ._fit import band as band, discontinuity as discontinuity, fit as fit
from ._partial import interact as interact, partial as partial
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
