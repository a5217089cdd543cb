"""Objectives: what a fit minimises, from masked hold-out to AICc, and the scores of errors."""

from ._criteria import GCV as GCV, AICc as AICc
from ._hold_out import HoldOut as HoldOut
from ._objective import Objective as Objective, Sample as Sample
from ._profile import profile as profile
from ._scores import (
    CheckLoss as CheckLoss,
    HasDeviance as HasDeviance,
    absolute_error as absolute_error,
    log_score as log_score,
    squared_error as squared_error,
)
from ._validation import KFold as KFold, LeaveOneOut as LeaveOneOut
