"""Losses of residuals, by which robust fits weight rows, and of predictions, one of each row."""

from ._base import MEDIAN_OF_ABSOLUTE_NORMAL, RobustLoss as RobustLoss
from ._bisquare import Bisquare as Bisquare
from ._huber import Huber as Huber
from ._prediction_losses import (
    CheckLoss as CheckLoss,
    absolute_error as absolute_error,
    check_losses,
    require_same_shape,
    squared_error as squared_error,
    sum_over_labels,
)
