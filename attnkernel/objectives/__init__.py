"""Objectives: what a fit minimises, from masked hold-out to AICc."""

from ._criteria import GCV as GCV, AICc as AICc
from ._density_criteria import UnbiasedCV as UnbiasedCV
from ._dependent_rows import BlockedKFold as BlockedKFold, GroupKFold as GroupKFold, as_group_codes
from ._hold_out import HoldOut as HoldOut, permuted_rows
from ._objective import Objective as Objective, Sample as Sample, Validation
from ._profile import profile as profile
from ._rows import drop_zero_weight_rows, pad_data, sorted_by_input
from ._scores import HasDeviance as HasDeviance, default_score, log_score as log_score
from ._subsample import spread_indices
from ._validation import KFold as KFold, LeaveOneOut as LeaveOneOut, OtherFolds
