"""Claims of papers beside the numbers of a study: the rows of the ledger, `docs/ledger.md`."""

from dataclasses import dataclass


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


def verdict(holds: object, control_fails: object) -> str:
    """The verdict on a claim that can be tested: repeated if it holds, and its control does not."""
    return "repeated" if holds and control_fails else "not repeated"
