"""Kernels of categories and their formulas, and mixed data."""

import functools

import numpy as np

import attnkernel as ak

LEVELS = 5


# K of each column, from the number of steps between two categories


def aitchison_aitken(bandwidth, steps, levels=LEVELS):
    return np.where(steps == 0, 1 - bandwidth, bandwidth / (np.asarray(levels) - 1))


def li_racine(bandwidth, steps):
    return np.where(steps == 0, 1.0, bandwidth)


def wang_van_ryzin(bandwidth, steps):
    return np.where(steps == 0, 1 - bandwidth, (1 - bandwidth) / 2 * bandwidth**steps)


def li_racine_ordered(bandwidth, steps):
    return np.asarray(bandwidth**steps)


# how to make it, its formula, the largest bandwidth
TABLE = {
    "Aitchison and Aitken": (
        functools.partial(ak.kernels.AitchisonAitken, categories=LEVELS),
        aitchison_aitken,
        (LEVELS - 1) / LEVELS,
    ),
    "Li and Racine": (ak.kernels.LiRacine, li_racine, 1.0),
    "Wang and van Ryzin": (ak.kernels.WangVanRyzin, wang_van_ryzin, 1.0),
    "Li and Racine, ordered": (ak.kernels.LiRacineOrdered, li_racine_ordered, 1.0),
}


def mixed(make, bandwidth=0.3):
    """Categories in two columns, a quantity between them."""
    return make(bandwidth).on(0, 2) * ak.Gaussian(0.5).on(1)


def sample(n=29):
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 3, n), rng.normal(size=n), rng.integers(0, 5, n)], axis=1)
    return x.astype(float), rng.normal(size=(n, 2))
