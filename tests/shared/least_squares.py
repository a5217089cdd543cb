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


def local_polynomial(q, x, lengthscale, order=0, term=0, weights=1.0):
    """The weights of all labels in a coefficient of the polynomials about each row of q."""
    q, x = (np.reshape(points, (len(points), -1)) for points in (q, x))
    rows = []
    for point in q:
        away = (x - point) / lengthscale
        root = np.exp(-0.25 * np.sum(away**2, axis=1)) * np.sqrt(weights)
        rows.append(np.linalg.pinv(root[:, None] * monomials(x - point, order))[term] * root)
    return np.array(rows)


def left_out(x, y, lengthscale, order=0, groups=None, weights=1.0):
    """The predictions of all labels from the rows of other groups; by default each is alone."""
    groups = np.arange(len(x)) if groups is None else groups
    rows = [
        local_polynomial(x[[i]], x, lengthscale, order, weights=weights * (groups != group))[0]
        for i, group in enumerate(groups)
    ]
    return np.array(rows) @ y
