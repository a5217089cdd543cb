"""Objectives: what a fit minimises, from masked hold-out to AICc."""

from ._criteria import GCV as GCV, AICc as AICc
from ._density_criteria import UnbiasedCV as UnbiasedCV
from ._dependent_rows import BlockedKFold as BlockedKFold, GroupKFold as GroupKFold
from ._hold_out import HoldOut as HoldOut
from ._objective import Objective as Objective, Sample as Sample
from ._profile import profile as profile
from ._scores import HasDeviance as HasDeviance, log_score as log_score
from ._validation import KFold as KFold, LeaveOneOut as LeaveOneOut
