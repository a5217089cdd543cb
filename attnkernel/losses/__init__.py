"""Losses of residuals, by which robust fits weight rows, and of predictions, one of each row."""

from ._prediction_losses import (
    CheckLoss as CheckLoss,
    absolute_error as absolute_error,
    check_losses,
    require_same_shape,
    squared_error as squared_error,
    sum_over_labels,
)
from ._robust_losses import (
    MEDIAN_OF_ABSOLUTE_NORMAL,
    Bisquare as Bisquare,
    Huber as Huber,
    RobustLoss as RobustLoss,
)
