"""Models: kernel regressions and densities as Equinox modules."""

from .._core.rows import Rows as Rows
from ._additive import AdditiveRegression as AdditiveRegression
from ._bias_reduced import BiasReduced as BiasReduced
from ._conditional_density import ConditionalDensity as ConditionalDensity
from ._kernel_density import (
    DensityModel as DensityModel,
    KernelDensity as KernelDensity,
    density as density,
)
from ._learned import LearnedKernelRegression as LearnedKernelRegression
from ._linear_smoother import (
    DataSupport as DataSupport,
    DenseSmoother,
    Estimate as Estimate,
    LinearSmoother as LinearSmoother,
    votes_of_predictions,
)
from ._local_likelihood import LocalLikelihood as LocalLikelihood
from ._local_quantile import LocalQuantile as LocalQuantile
from ._local_regression import known_policy, support_of
from ._mean_variance import MeanVarianceRegression as MeanVarianceRegression
from ._multihead import MultiheadKernelRegression as MultiheadKernelRegression
from ._regression import Derivative as Derivative, KernelRegression as KernelRegression
from ._robust import RobustRegression as RobustRegression
from ._smoother import Smoother as Smoother, between_bounds, with_bounds_of, with_weights
