"""Models: kernel regressions and densities as Equinox modules."""

from ._bias_reduced import BiasReduced as BiasReduced
from ._density import density as density
from ._derivative import Derivative as Derivative
from ._learned import LearnedKernelRegression as LearnedKernelRegression
from ._linear_smoother import LinearSmoother as LinearSmoother
from ._local_likelihood import LocalLikelihood as LocalLikelihood
from ._local_quantile import LocalQuantile as LocalQuantile
from ._mean_variance import MeanVarianceRegression as MeanVarianceRegression
from ._multihead import MultiheadKernelRegression as MultiheadKernelRegression
from ._regression import KernelRegression as KernelRegression
from ._robust import RobustRegression as RobustRegression
from ._smoother import DataSupport as DataSupport, Smoother as Smoother
