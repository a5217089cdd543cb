"""Families: the distribution of a label given its mean, and the link of that mean."""

from ._base import Family as Family
from ._binomial import Binomial as Binomial
from ._gamma import Gamma as Gamma
from ._poisson import Poisson as Poisson
