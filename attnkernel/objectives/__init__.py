"""Objectives: what a fit minimises, from masked hold-out to AICc."""

from ._criteria import (
    GCV as GCV,
    AICc as AICc,
    Penalised as Penalised,
    UnbiasedCV as UnbiasedCV,
    at_distinct_inputs,
    merge_equal_rows,
    profile as profile,
)
from ._dependent_rows import BlockedKFold as BlockedKFold, GroupKFold as GroupKFold, as_group_codes
from ._hold_out import ExpectedHoldOut as ExpectedHoldOut, HoldOut as HoldOut, permuted_rows
from ._objective import (
    HasDeviance as HasDeviance,
    Objective as Objective,
    Sample as Sample,
    Validation,
    log_score as log_score,
)
from ._validation import (
    KFold as KFold,
    LeaveOneOut as LeaveOneOut,
    OtherFolds,
    compare_determined_rows,
    name_compared_rows,
    spread_indices,
)

# by which configs and scikit-learn know them
BY_NAME: dict[str, type[Objective]] = {"leave_one_out": LeaveOneOut, "gcv": GCV, "aicc": AICc}
