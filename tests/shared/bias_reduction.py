"""Iterated bias reduction by powers of matrices, for the tests of it."""

import numpy as np

import attnkernel as ak
import attnkernel.plot

N, K = 24, 5


def sample():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (N, 2))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 3.0, rng.uniform(-2, 2, (K, 2))


def model_of(order=0, iterations=4, kernel=None, **options):
    kernel = ak.Gaussian(np.array([0.9, 1.4])) if kernel is None else kernel
    model = ak.KernelRegression(kernel, order=order, **options)
    return model if iterations == 1 else ak.BiasReduced(model, iterations)


def weights_of(order, q, x, lengthscale=(0.9, 1.4), counts=1.0):
    """Weights of one iteration, by least squares at each query: shape (queries, keys)."""
    away = (x - q[:, None]) / lengthscale
    w = np.exp(-0.5 * np.sum(away**2, axis=-1)) * counts
    columns = list(np.moveaxis(away, -1, 0))
    terms = [np.ones(w.shape)]
    if order:
        terms += columns
    if order == 2:
        terms += [columns[0] ** 2, columns[0] * columns[1], columns[1] ** 2]
    design, root = np.stack(terms, axis=-1), np.sqrt(w)[..., None]
    return np.linalg.pinv(root * design)[:, 0] * root[..., 0]


def by_matrices(order, iterations, q, x, y, **options):
    """The fit as the sum of powers, and its weights."""
    left = np.eye(len(x)) - weights_of(order, x, x, **options)
    powers = sum(np.linalg.matrix_power(left, i) for i in range(iterations))
    weights = weights_of(order, q, x, **options) @ powers
    return weights @ y, weights


def left_out_by_matrices(order, iterations, x, y, **options):
    """The prediction of each row from all others."""
    others = [np.arange(len(x)) != i for i in range(len(x))]
    found = [
        by_matrices(order, iterations, x[~other], x[other], y[other], **options)[0]
        for other in others
    ]
    return np.concatenate(found)
