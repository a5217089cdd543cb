"""Inference: bands, intervals, quantiles, variances, degrees of freedom, reports."""

from ._average_derivative import (
    AverageDerivative as AverageDerivative,
    average_derivative as average_derivative,
)
from ._band_table import Bands as Bands
from ._bands import bands as bands
from ._bootstrap_test import BootstrapTest as BootstrapTest
from ._conformal import conformal as conformal
from ._degrees_of_freedom import (
    DegreesOfFreedom as DegreesOfFreedom,
    degrees_of_freedom as degrees_of_freedom,
    effective_count as effective_count,
)
from ._discontinuity import discontinuity as discontinuity
from ._discontinuity_result import Discontinuity as Discontinuity
from ._quantiles import quantiles as quantiles
from ._relevance_test import relevance_test as relevance_test
from ._report import Report as Report, summarise as summarise
from ._rules_of_thumb import normal_reference as normal_reference, plug_in as plug_in
from ._sheather_jones import sheather_jones as sheather_jones
from ._specification_test import specification_test as specification_test
from ._variance import noise_variance as noise_variance
