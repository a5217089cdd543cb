"""Econometrics: discontinuities, tests, average derivatives, partially linear models."""

from ._average_derivative import (
    AverageDerivative as AverageDerivative,
    average_derivative as average_derivative,
)
from ._discontinuity import Discontinuity as Discontinuity, discontinuity as discontinuity
from ._partially_linear import (
    LinearCoefficients as LinearCoefficients,
    PartiallyLinear as PartiallyLinear,
)
from ._relevance_test import relevance_test as relevance_test
from ._specification_test import (
    BootstrapTest as BootstrapTest,
    specification_test as specification_test,
)
