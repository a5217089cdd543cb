"""Inference: bands, intervals, quantiles, variances, degrees of freedom, reports."""

from ._band_table import MIN_RELIABLE_COUNT, Bands as Bands
from ._bands import bands as bands
from ._conformal import conformal as conformal
from ._degrees_of_freedom import (
    DegreesOfFreedom as DegreesOfFreedom,
    degrees_of_freedom as degrees_of_freedom,
    effective_count as effective_count,
)
from ._quantiles import quantiles as quantiles
from ._report import Report as Report, summarise as summarise
from ._rules_of_thumb import (
    normal_reference as normal_reference,
    plug_in as plug_in,
    reference_lengthscales,
    require_varying,
)
from ._sheather_jones import sheather_jones as sheather_jones
from ._variance import (
    Clusters,
    Noise,
    RowVariance,
    noise_variance as noise_variance,
    padded_rows,
    require_smoother_fit,
    row_diagnostics,
)
