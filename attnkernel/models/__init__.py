"""Models: kernel regressions and densities as Equinox modules."""

from ._additive import AdditiveRegression as AdditiveRegression
from ._bias_reduced import BiasReduced as BiasReduced
from ._conditional_density import ConditionalDensity as ConditionalDensity
from ._data import read_data, with_bounds_of, with_weights
from ._dense_smoother import DenseSmoother
from ._density import density as density
from ._density_model import DensityModel as DensityModel
from ._derivative import Derivative as Derivative
from ._empty import known_policy
from ._kernel_density import KernelDensity as KernelDensity
from ._learned import LearnedKernelRegression as LearnedKernelRegression
from ._linear_smoother import LinearSmoother as LinearSmoother
from ._local_likelihood import LocalLikelihood as LocalLikelihood
from ._local_quantile import LocalQuantile as LocalQuantile
from ._local_regression import support_of
from ._mean_variance import MeanVarianceRegression as MeanVarianceRegression
from ._multihead import MultiheadKernelRegression as MultiheadKernelRegression
from ._regression import KernelRegression as KernelRegression
from ._robust import RobustRegression as RobustRegression
from ._smoother import DataSupport as DataSupport, Smoother as Smoother
