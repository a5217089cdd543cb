"""Iterated bias reduction by powers of matrices, for the tests of it."""

import numpy as np
from least_squares import local_polynomial

import attnkernel as ak

N, K = 24, 5


def sample():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (N, 2))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 3.0, rng.uniform(-2, 2, (K, 2))


def model_of(order=0, iterations=4, kernel=None, **options):
    kernel = ak.Gaussian(np.array([0.9, 1.4])) if kernel is None else kernel
    model = ak.KernelRegression(kernel, order=order, **options)
    return model if iterations == 1 else ak.models.BiasReduced(model, iterations)


def by_matrices(order, iterations, q, x, y, lengthscale=(0.9, 1.4), counts=1.0):
    """The fit as the sum of powers, and its weights."""
    own, new = (local_polynomial(at, x, lengthscale, order, weights=counts) for at in (x, q))
    powers = sum(np.linalg.matrix_power(np.eye(len(x)) - own, i) for i in range(iterations))
    return new @ powers @ y, new @ powers


def left_out_by_matrices(order, iterations, x, y, **options):
    """The prediction of each row from all others."""
    others = [np.arange(len(x)) != i for i in range(len(x))]
    found = [
        by_matrices(order, iterations, x[~other], x[other], y[other], **options)[0]
        for other in others
    ]
    return np.concatenate(found)
