"""The weights of local polynomials by least squares at each query, in NumPy."""

import itertools

import numpy as np


def monomials(differences, order):
    """The monomials of k - q up to a degree, along a new last axis."""
    terms = [np.ones(differences.shape[:-1])]
    for degree in range(1, order + 1):
        for columns in itertools.combinations_with_replacement(
            range(differences.shape[-1]), degree
        ):
            terms.append(np.prod(differences[..., columns], axis=-1))
    return np.stack(terms, axis=-1)


def smoother(q, x, lengthscale, order=0, weights=None):
    """The weights L(q) of all labels, by least squares at each query."""
    rows = []
    for point in q:
        w = np.exp(-0.5 * np.sum(((point - x) / lengthscale) ** 2, axis=1))
        w = w if weights is None else w * weights
        terms = np.ones((len(x), 1)) if order == 0 else np.c_[np.ones(len(x)), x - point]
        root = np.sqrt(w)[:, None]
        rows.append((np.linalg.pinv(root * terms) * root.T)[0])
    return np.array(rows)


def local_polynomial(q, x, lengthscale, order, term=0, weights=1.0):
    """The weights of all labels in a coefficient of the polynomials about q, one column."""
    rows = []
    for point in q:
        root = np.exp(-0.25 * ((x - point) / lengthscale) ** 2) * np.sqrt(weights)
        basis = root[:, None] * (x - point)[:, None] ** np.arange(order + 1)
        rows.append(np.linalg.pinv(basis)[term] * root)
    return np.array(rows)
