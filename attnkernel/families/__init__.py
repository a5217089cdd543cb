"""Families: the distribution of a label given its mean, and the link of that mean."""

from ._families import Binomial as Binomial, Family as Family, Gamma as Gamma, Poisson as Poisson
