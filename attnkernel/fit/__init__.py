"""Fitting: objectives, the loop, and what came of it."""

from ._box import Box as Box
from ._fit import Fit as Fit, Starts as Starts, fit as fit, fit_many as fit_many
from ._objectives import (
    HoldOut as HoldOut,
    LeaveOneOut as LeaveOneOut,
    Objective as Objective,
)
from ._profile import profile as profile
