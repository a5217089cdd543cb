"""Models: kernel regressions and densities as Equinox modules."""

from ._density import density as density
from ._learned import LearnedKernelRegression as LearnedKernelRegression
from ._mean_variance import MeanVarianceRegression as MeanVarianceRegression
from ._regression import (
    KernelRegression as KernelRegression,
    MultiheadKernelRegression as MultiheadKernelRegression,
)
