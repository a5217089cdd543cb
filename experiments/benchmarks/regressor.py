"""A regressor to compare: from labelled data to what predicts, and what was chosen."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Prediction(NamedTuple):
    """At new inputs, with the ends of intervals of a new label where the regressor has them."""

    centre: np.ndarray
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None


class Fitted(NamedTuple):
    """What predicts at new inputs, shape (m, dim), for a level; and what was chosen, in words."""

    predict: Callable[[np.ndarray, float], Prediction]
    chosen: str
    bandwidth: np.ndarray | None = None  # one per column, of a kernel regression


Regressor = Callable[[np.ndarray, np.ndarray], Fitted]  # of x, shape (n, dim), and y


def format_numbers(values: Any) -> str:
    """Returns numbers as text: four significant digits each, separated by commas."""
    return ", ".join(f"{value:.4g}" for value in np.ravel(np.asarray(values)))
