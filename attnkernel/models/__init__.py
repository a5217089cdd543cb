"""Models: Equinox modules built on the one verb."""

from ._regression import (
    KernelRegression as KernelRegression,
    MultiheadKernelRegression as MultiheadKernelRegression,
)
