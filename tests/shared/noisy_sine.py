"""Noisy labels of a sine, and the model of one lengthscale that searches begin with."""

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


def model(lengthscale=1.0):
    return ak.KernelRegression(ak.Gaussian(lengthscale))


def leave_one_out(x, y, lengthscale):
    """The criterion of the model, in NumPy; x: one column."""
    return np.mean((y - left_out(x, y, lengthscale)) ** 2)
