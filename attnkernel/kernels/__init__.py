"""Kernels: log K(q, k), the content half of a score."""

from ._base import Kernel as Kernel, Product as Product, unbounded as unbounded
from ._conventions import convert_lengthscale as convert_lengthscale
from ._radial import Gaussian as Gaussian
