"""Priors: log π(i, j), the positional half of a score. Masks are their 0/1 case."""

from ._base import (
    And as And,
    Mask as Mask,
    Not as Not,
    Or as Or,
    Prior as Prior,
    Product as Product,
)
from ._biases import (
    Alibi as Alibi,
    Kerple as Kerple,
    KeyWeights as KeyWeights,
    RelativeBias as RelativeBias,
    Table as Table,
    alibi_slopes as alibi_slopes,
)
from ._block import PositionBlock as PositionBlock
from ._forget import Forget as Forget
from ._key_mask import KeyMask as KeyMask
from ._masks import (
    Causal as Causal,
    ExcludeSelf as ExcludeSelf,
    Lengths as Lengths,
    Prefix as Prefix,
    Where as Where,
    Window as Window,
)
from ._positions import At as At
from ._score_function import ScoreFunction as ScoreFunction
from ._segments import Segments as Segments
from ._stored_masks import Given as Given, HeldOut as HeldOut
