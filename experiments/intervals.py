"""Means over independent tasks with their 95 % intervals."""

import numpy as np
from jaxtyping import Float
from scipy import stats


def mean_of(values: Float[np.ndarray, " tasks"]) -> dict[str, float]:
    """The mean, and the half width of its 95 % interval."""
    half_width = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return {"mean": float(values.mean()), "half_width": float(half_width)}


def of_interval(found: dict[str, float]) -> str:
    """Such a mean in digits."""
    return f"{found['mean']:.3g} ± {found['half_width']:.1g}"
