"""Methods: how the sum is evaluated. No method depends on a model or changes the result."""

from ._base import (
    MAX_DENSE_PAIRS,
    Keys,
    Method as Method,
    Queries,
    Standardised,
    Task as Task,
    Values,
    WeightedPowerMeans as WeightedPowerMeans,
)
from ._blockwise import Blockwise as Blockwise
from ._dense import Dense as Dense, dense_weights as dense_weights
from ._fallback import exact_moments, exact_polynomial_sums, map_selected_queries
from ._fourier import Fourier as Fourier
from ._fused import Fused as Fused
from ._linear import Linear as Linear, LinearState as LinearState, advance as advance
from ._sharded import Sharded as Sharded
from ._softmax_state import SoftmaxState as SoftmaxState
from ._sorted import Sorted as Sorted
from ._votes import Votes as Votes, votes_of_member, votes_on_a_line
