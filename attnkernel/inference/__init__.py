"""Inference: bands, intervals, quantiles, variances, degrees of freedom, reports."""

from ._bands import (
    Bands as Bands,
    DegreesOfFreedom as DegreesOfFreedom,
    bands as bands,
    degrees_of_freedom as degrees_of_freedom,
    effective_count as effective_count,
    wild_bootstrap as wild_bootstrap,
)
from ._conformal import conformal as conformal
from ._quantiles import quantiles as quantiles
from ._report import Report as Report, summarise as summarise
from ._rules_of_thumb import normal_reference as normal_reference, plug_in as plug_in
from ._variance import noise_variance as noise_variance
