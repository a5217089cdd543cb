"""Fitting: objectives, the loop, and what came of it."""

from ._box import Box as Box
from ._checkpoints import (
    Checkpoints as Checkpoints,
    CheckpointWarning as CheckpointWarning,
    identity_of as identity_of,
)
from ._choose import Choice as Choice, choose as choose
from ._conformal import conformal as conformal
from ._criteria import GCV as GCV, AICc as AICc
from ._fit import fit as fit, fit_many as fit_many
from ._inference import (
    Bands as Bands,
    DegreesOfFreedom as DegreesOfFreedom,
    bands as bands,
    degrees_of_freedom as degrees_of_freedom,
    effective_count as effective_count,
    wild_bootstrap as wild_bootstrap,
)
from ._noise import noise_variance as noise_variance
from ._objectives import HoldOut as HoldOut, Objective as Objective, Sample as Sample
from ._profile import profile as profile
from ._quantiles import quantiles as quantiles
from ._report import Report as Report, summarise as summarise
from ._result import Fit as Fit, FitWarning as FitWarning, Starts as Starts
from ._scores import log_score as log_score, squared_error as squared_error
from ._thumb import normal_reference as normal_reference, plug_in as plug_in
from ._validation import KFold as KFold, LeaveOneOut as LeaveOneOut
