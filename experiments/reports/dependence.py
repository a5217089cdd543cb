"""Errors that are correlated along a column of times: whether, and over how long."""

import numpy as np
from jaxtyping import Float

import attnkernel as ak
from attnkernel.data import DAYS_SINCE

# of residuals of neighbouring rows; that of a fit that passes through all labels is near -0.5
FOLLOWING_CORRELATION = -0.25


def time_column(data: ak.data.Dataset) -> int | None:
    """Returns the first column of dates, or of numbers evenly spaced to a thousandth of a step, in
    which no value comes twice."""
    for column, name in enumerate(data.x_names):
        gaps = np.diff(np.sort(np.asarray(data.x)[:, column]))
        is_even = np.allclose(gaps, gaps[0], rtol=1e-3, atol=0)
        if gaps.min() > 0 and (is_even or DAYS_SINCE.fullmatch(name)):
            return column
    return None


def blocked_objective(data: ak.data.Dataset) -> ak.objectives.BlockedKFold:
    """Returns leave-one-out without the rows within the correlation time of each row.

    That is the first lag at which labels about a running mean of a fifth of the rows are correlated
    as independent errors may be; at most a fifth of the rows.
    """
    column = time_column(data)
    assert column is not None
    times = np.asarray(data.x)[:, column]
    order = np.argsort(times)
    y, fifth = np.asarray(data.y)[order], max(1, len(order) // 5)
    window = np.ones(2 * (fifth // 2) + 1)
    mean = np.convolve(y, window, "same") / np.convolve(np.ones(len(y)), window, "same")
    is_noise = _autocorrelations(y - mean, fifth) < _largest_of_noise(len(y))
    lag = 1 + int(np.argmax(is_noise)) if np.any(is_noise) else fifth
    gap = lag * float(np.median(np.diff(times[order])))
    return ak.objectives.BlockedKFold(times, folds=None, gap=gap)


def notes_of_dependence(
    data: ak.data.Dataset, objective: ak.objectives.Objective, fitted: Float[np.ndarray, " n"]
) -> list[str]:
    """Returns a sentence about the gap of a blocked objective; of another one, where the residuals
    of its fit are correlated in time."""
    if (column := time_column(data)) is None:
        return []
    unit = DAYS_SINCE.fullmatch(data.x_names[column])
    name = data.x_names[column] if unit is None else unit[1]
    if isinstance(objective, ak.objectives.BlockedKFold):
        return [
            f"each row was predicted from those more than {objective.gap:.4g} away in {name}, "
            f"where errors are hardly correlated. Standard errors and bands take errors for "
            f"independent: beside correlated ones they are too small."
        ]
    residuals = (np.asarray(data.y) - fitted)[np.argsort(np.asarray(data.x)[:, column])]
    (found,) = _autocorrelations(residuals, 1)
    if FOLLOWING_CORRELATION <= found <= _largest_of_noise(len(residuals)):
        return []
    return [
        f"residuals of neighbouring rows along {name} have a correlation of {found:.2f}. If the "
        f"errors are correlated, the fit follows them: compare objective=blocked, which predicts "
        f"each row from those some time away."
    ]


def _autocorrelations(series: Float[np.ndarray, " n"], lags: int) -> Float[np.ndarray, " lags"]:
    """Returns the correlations of a series with itself 1, 2, ... rows later."""
    centred = series - np.mean(series)
    products = [np.sum(centred[:-lag] * centred[lag:]) for lag in range(1, lags + 1)]
    return np.array(products) / np.sum(centred**2)


def _largest_of_noise(n: int) -> float:
    """Returns what an autocorrelation of n independent errors exceeds once in forty times."""
    return 2.0 / np.sqrt(n)
