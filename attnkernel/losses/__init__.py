"""Robust losses: how much the residual of an outlier counts in a fit."""

from ._base import RobustLoss as RobustLoss
from ._bisquare import Bisquare as Bisquare
from ._huber import Huber as Huber
