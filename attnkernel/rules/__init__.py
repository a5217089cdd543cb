"""Rules: how the scores of one query become the weights of its keys."""

from ._entmax_threshold import (
    MassAndSlope,
    entmax_threshold,
    find_threshold,
    threshold_sums,
    threshold_tangent,
)
from ._rules import (
    Entmax as Entmax,
    Rule as Rule,
    Softmax as Softmax,
    Uniform as Uniform,
)
