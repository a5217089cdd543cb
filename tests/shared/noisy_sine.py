"""Noisy labels of a sine, the model of one lengthscale that searches begin with, and whole numbers
with ties."""

import jax
import numpy as np
from least_squares import left_out

import attnkernel as ak

N = 19


def sample(n=N, seed=0):
    """Inputs in one column, in order, and labels."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-2, 2, size=n))
    return jax.device_put((x[:, None], np.sin(2 * x) + 0.2 * rng.normal(size=n)))


def whole_numbers():
    """302 whole numbers from 0 to 100, with ties."""
    rng = np.random.default_rng(0)
    return np.r_[0.0, 100.0, np.clip(np.round(rng.gamma(4.0, 8.0, size=300)), 0, 100)]


def model(lengthscale=1.0):
    return ak.KernelRegression(ak.Gaussian(lengthscale))


def leave_one_out(x, y, lengthscale):
    """The criterion of the model, in NumPy; x: one column."""
    return np.mean((y - left_out(x, y, lengthscale)) ** 2)
