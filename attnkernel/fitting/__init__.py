"""Fitting: stochastic training and deterministic search of the parameters of a model."""

from ._bounds import Box as Box
from ._checkpoints import (
    Checkpoints as Checkpoints,
    CheckpointWarning as CheckpointWarning,
    identity_of as identity_of,
)
from ._choose import Choice as Choice, choose as choose
from ._fit import fit as fit, fit_many as fit_many
from ._fit_warnings import (
    CostWarning as CostWarning,
    FitWarning as FitWarning,
)
from ._minimise import prepare_searches, sums_all_pairs
from ._options import Options
from ._outcome import Result as Result, Starts as Starts, collect_outcome
from ._problem import flat_rows, take, unravel_rows
from ._result import Fit as Fit
