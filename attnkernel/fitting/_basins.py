r"""Starts of a search in several parameters: the lowest basins among screened points.

A point with a lower one among its nearest neighbours lies in the basin of that one; all others are
basins of their own. (Rinnooy Kan and Timmer, *Stochastic global optimization methods*, 1987:
multi-level single linkage.)
"""

import numpy as np
from jaxtyping import Float, Int

POINTS_PER_PARAMETER = 32
MAX_POINTS = 512
POINTS_PER_START = 4  # at least


def count_points(starts: int, parameters: int) -> int:
    """Returns how many points are evaluated to choose this number of starts."""
    return max(POINTS_PER_START * starts, min(POINTS_PER_PARAMETER * parameters, MAX_POINTS))


def lowest_basins(
    points: Float[np.ndarray, "points params"],
    losses: Float[np.ndarray, " points"],
    number: int,
    neighbours: int,
) -> Int[np.ndarray, " number"]:
    """Returns the points to start from: those lower than their neighbours, then the others.

    Each kind is sorted by its loss. The neighbours are the nearest points, this number of them.
    """
    losses = np.where(np.isfinite(losses), losses, np.inf)
    distance = np.sqrt(np.sum((points[:, None, :] - points[None, :, :]) ** 2, axis=-1))
    to_lower = np.min(np.where(losses[None, :] < losses[:, None], distance, np.inf), axis=1)
    nearer = np.sum(distance < to_lower[:, None], axis=1) - 1  # without the point itself
    return np.lexsort((losses, nearer < neighbours))[:number]
