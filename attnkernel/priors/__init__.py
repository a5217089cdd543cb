"""Priors: log π(i, j), the positional half of a score. Masks are their 0/1 case."""

from ._base import And as And, Mask as Mask, Not as Not, Or as Or, Prior as Prior
from ._masks import (
    Causal as Causal,
    HeldOut as HeldOut,
    LeaveOneOut as LeaveOneOut,
    Where as Where,
    Window as Window,
)
