"""Means over independent repetitions with their 95 % intervals, by Student's t."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats


def half_width(values: Float[np.ndarray, "*shape"], axis: int = 0) -> Any:
    """The half width of the 95 % interval of the mean along an axis of repetitions."""
    return stats.sem(values, axis=axis) * stats.t.ppf(0.975, values.shape[axis] - 1)


def mean_of(values: Float[np.ndarray, " repetitions"]) -> dict[str, float]:
    """The mean, and the half width of its interval."""
    return {"mean": float(values.mean()), "half_width": float(half_width(values))}


def of_interval(found: dict[str, float]) -> str:
    """Such a mean in digits."""
    return f"{found['mean']:.3g} ± {found['half_width']:.1g}"
