"""Formulas of kernels of the distance, in NumPy."""

import numpy as np

import attnkernel as ak


def elu(x):
    """1 + ELU(x), the feature of `EluFeatures`."""
    return np.where(x > 0, x + 1, np.exp(x))


def compact(formula):
    """log K of the distance r where r < 1, and no weight beyond."""
    return lambda r: np.where(r < 1, np.log(formula(np.minimum(r, 1 - 1e-16))), -np.inf)


# log K of the distance in lengthscales
FORMULAS = {
    ak.Gaussian: lambda r: -(r**2) / 2,
    ak.Laplace: lambda r: -r,
    ak.kernels.Matern32: lambda r: np.log(1 + np.sqrt(3) * r) - np.sqrt(3) * r,
    ak.Matern52: lambda r: np.log(1 + np.sqrt(5) * r + 5 * r**2 / 3) - np.sqrt(5) * r,
    ak.kernels.RationalQuadratic: lambda r: -np.log(1 + r**2 / 2),
    ak.kernels.Cauchy: lambda r: -np.log(1 + r**2),
    ak.kernels.Boxcar: compact(np.ones_like),
    ak.kernels.Triangular: compact(lambda r: 1 - r),
    ak.Epanechnikov: compact(lambda r: 1 - r**2),
    ak.kernels.Biweight: compact(lambda r: (1 - r**2) ** 2),
    ak.kernels.Triweight: compact(lambda r: (1 - r**2) ** 3),
    ak.kernels.Tricube: compact(lambda r: (1 - r**3) ** 3),
    ak.kernels.Cosine: compact(lambda r: np.cos(np.pi / 2 * r)),
}
