"""Priors: log π(i, j), the positional half of a score. Masks are their 0/1 case."""

from ._base import (
    And as And,
    Mask as Mask,
    Not as Not,
    Or as Or,
    PositionBlock as PositionBlock,
    Prior as Prior,
    Product as Product,
    key_range_of,
    pair_mask_of,
    require_prior,
)
from ._biases import (
    Alibi as Alibi,
    BiasTable as BiasTable,
    Forget as Forget,
    Kerple as Kerple,
    KeyWeights as KeyWeights,
    RelativeBias as RelativeBias,
    alibi_slopes as alibi_slopes,
)
from ._masks import (
    Causal as Causal,
    ExcludeSelf as ExcludeSelf,
    HeldOut as HeldOut,
    Lengths as Lengths,
    MaskArray as MaskArray,
    MaskFunction as MaskFunction,
    Prefix as Prefix,
    Window as Window,
)
from ._pair_mask import PairMask as PairMask
from ._positions import AtPositions as AtPositions, Segments as Segments
from ._score_function import ScoreFunction as ScoreFunction
