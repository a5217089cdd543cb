"""Local polynomials: their weights, moments and solves, and local likelihoods and quantiles."""

from ._effective_kernel import apply_effective_kernel, factorial
from ._fit import (
    ExtrapolationWarning as ExtrapolationWarning,
    LocalFit as LocalFit,
    warn_of_extrapolation,
)
from ._likelihood import LikelihoodFit as LikelihoodFit, LikelihoodParts, local_likelihood
from ._likelihood_influence import InfluenceSums, influence_sums
from ._monomials import exponents
from ._polynomial import local_polynomial
from ._quantile import QuantileFit as QuantileFit, local_quantile
