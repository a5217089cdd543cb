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


def coefficient_weights(q, x, lengthscale=np.inf, order=0, weights=1.0):
    """The weights of all labels in the coefficients of polynomials: (queries, terms, keys).

    The kernel is Gaussian; `weights` of keys, or of queries and keys, are its factor.
    """
    q, x = (np.reshape(points, (len(points), -1)) for points in (q, x))
    away = x - q[:, None]
    kernel = weights * np.exp(-0.5 * np.sum((away / lengthscale) ** 2, axis=-1))
    root = np.sqrt(kernel)[..., None]
    return np.linalg.pinv(root * monomials(away, order)) * root.swapaxes(1, 2)


def local_polynomial(q, x, lengthscale=np.inf, order=0, term=0, weights=1.0):
    """The weights of all labels in a coefficient of the polynomials about each row of q."""
    return coefficient_weights(q, x, lengthscale, order, weights)[:, term]


def left_out(x, y, lengthscale, order=0, groups=None, weights=1.0):
    """The predictions of all labels from the rows of other groups; by default each is alone."""
    groups = np.arange(len(x)) if groups is None else groups
    others = weights * (groups[:, None] != groups)
    return local_polynomial(x, x, lengthscale, order, weights=others) @ y
