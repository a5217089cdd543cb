"""Slopes against central differences of the function in NumPy."""

import numpy as np


def assert_slopes(slopes, function, arguments, step=1e-5, **tolerance):
    """Checks the slope of a number in each argument along a random direction."""
    rng = np.random.default_rng(1)
    for i, slope in enumerate(slopes):
        direction = rng.normal(size=np.shape(arguments[i]))
        moved = (arguments[i] + sign * step * direction for sign in (1, -1))
        ahead, behind = (function(*arguments[:i], to, *arguments[i + 1 :]) for to in moved)
        expected = (ahead - behind) / (2 * step)
        np.testing.assert_allclose(np.sum(slope * direction), expected, **tolerance)
