"""Losses of residuals, by which robust fits weight rows, and of predictions, one of each row."""

from ._losses import (
    MEDIAN_OF_ABSOLUTE_NORMAL,
    Bisquare as Bisquare,
    CheckLoss as CheckLoss,
    Huber as Huber,
    RobustLoss as RobustLoss,
    absolute_error as absolute_error,
    as_level,
    check_losses,
    require_same_shape,
    squared_error as squared_error,
    sum_over_labels,
)
