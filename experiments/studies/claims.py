"""Claims of papers beside the numbers of a study: the rows of the ledger, `docs/ledger.md`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..reports.predictions import mean_of


@dataclass(frozen=True)
class Claim:
    """A claim, its number in the source and here, and a control that must not have it."""

    claim: str
    source: str
    figure: float | str | None  # of the source; None where it gives none
    ours: float
    low: float  # the ends of the 95 % interval of ours
    high: float
    seeds: int  # data sets or splits
    control: str  # what has to fail
    control_figure: float
    verdict: str  # "repeated", "not repeated", or "cannot be tested here: ..."


def ends(one: Mapping[str, float], unit: float = 1.0) -> tuple[float, float, float]:
    """A mean and the ends of its interval, of `mean_of`, in a unit."""
    mean, half = one["mean"] / unit, one["half_width"] / unit
    return mean, mean - half, mean + half


def of_repetitions(values: Float[np.ndarray, " n"]) -> tuple[float, float, float, int]:
    """The mean, the ends of its interval, and the number of repetitions."""
    return *ends(mean_of(values)), len(values)


def verdict(holds: object, control_fails: object) -> str:
    """The verdict on a claim that can be tested: repeated if it holds, and its control does not."""
    return "repeated" if holds and control_fails else "not repeated"
