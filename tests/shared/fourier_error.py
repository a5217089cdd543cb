"""The error of sums by `Fourier`, in units of what it promises."""

import numpy as np


def error_in_tolerances(found, exact, labels, tol, rounding=0.0):
    """The largest error of a prediction, in units of the stated tolerance."""
    mean = labels.mean(axis=0)
    spread = np.abs(labels - mean)
    typical = np.exp(np.mean(np.log(np.where(spread == 0, 1, spread)), axis=0))
    scale = np.minimum(np.abs(exact), np.abs(exact - mean))
    return np.max(np.abs(found - exact) / (tol * np.maximum(scale, 1e-3 * typical) + rounding))
