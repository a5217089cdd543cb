"""Local polynomials: their weights, moments and solves, and local likelihoods and quantiles."""

from ._effective_kernel import apply_effective_kernel, factorial
from ._likelihood import (
    InfluenceSums,
    LikelihoodFit as LikelihoodFit,
    influence_sums,
    local_likelihood,
)
from ._monomials import Polynomial, exponents
from ._polynomial import (
    ExtrapolationWarning as ExtrapolationWarning,
    LocalFit as LocalFit,
    local_polynomial,
    warn_of_extrapolation,
)
from ._quantile import QuantileFit as QuantileFit, local_quantile
