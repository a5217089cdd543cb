"""Rules: how the scores of one query become the weights of its keys."""

from ._base import Rule as Rule
from ._entmax import Entmax as Entmax
from ._entmax_threshold import (
    MassAndSlope,
    entmax_threshold,
    find_threshold,
    threshold_sums,
    threshold_tangent,
)
from ._softmax import Softmax as Softmax
from ._uniform import Uniform as Uniform
