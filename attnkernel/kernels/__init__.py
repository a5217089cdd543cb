"""Kernels: log K(q, k), the content half of a score."""

from ._base import Kernel as Kernel, Product as Product, unbounded as unbounded
from ._compact import (
    Biweight as Biweight,
    Boxcar as Boxcar,
    Compact as Compact,
    Cosine as Cosine,
    Epanechnikov as Epanechnikov,
    Triangular as Triangular,
    Tricube as Tricube,
    Triweight as Triweight,
)
from ._conventions import convert_lengthscale as convert_lengthscale
from ._inner import DotProduct as DotProduct
from ._radial import (
    Cauchy as Cauchy,
    Gaussian as Gaussian,
    Laplace as Laplace,
    Matern32 as Matern32,
    Matern52 as Matern52,
    Periodic as Periodic,
    Radial as Radial,
    RationalQuadratic as RationalQuadratic,
)
