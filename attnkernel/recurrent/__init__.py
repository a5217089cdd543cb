r"""Regression that forgets: sequence layers as online least squares, a state and a row at a time.

| estimator | regression | loss of a row | step or solve | what is forgotten |
|---|---|---|---|---|
| `LinearAttention` | of a constant, weights K(q, k) | −vᵀSᵀk | gradient step | rows, by α |
| `DeltaRule` | linear, v ≈ Sᵀk | ½‖v − Sᵀk‖² | gradient step β | coefficients, by α |
| `RecursiveLeastSquares` | linear ridge | ½‖v − Sᵀk‖², all rows | exact | rows, by α |

`regress` runs any of them. The decay α of a row is a number per head (RetNet), per row (Mamba-2,
Gated DeltaNet) or per row and channel (GLA, KDA).
"""

from ._base import Estimator as Estimator, MatrixState as MatrixState, Row as Row
from ._delta_rule import DeltaRule as DeltaRule
from ._least_squares import (
    LeastSquaresState as LeastSquaresState,
    RecursiveLeastSquares as RecursiveLeastSquares,
)
from ._linear_attention import LinearAttention as LinearAttention
from ._regress import regress as regress
