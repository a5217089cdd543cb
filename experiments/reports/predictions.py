"""Predictions written down before a study was first run, and in which of its cases they held."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ..runs import Run


def half_width(values: Float[np.ndarray, "*shape"], axis: int = 0) -> Any:
    """The half width of the 95 % interval of the mean along an axis of repetitions."""
    from scipy.special import stdtrit  # noqa: PLC0415  0.14 s of each command

    n = values.shape[axis]
    return values.std(axis, ddof=1) / np.sqrt(n) * stdtrit(n - 1, 0.975)


def mean_of(values: Float[np.ndarray, " repetitions"]) -> dict[str, float]:
    """The mean, and the half width of its interval."""
    return {"mean": float(values.mean()), "half_width": float(half_width(values))}


# by prediction in words: whether it holds in a case; None where it does not concern it
Claims = Mapping[str, Callable[[Any], Any]]


def where(concerns: Callable[[Any], Any], holds: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The prediction that holds in cases of one kind."""
    return lambda case: holds(case) if concerns(case) else None


def judge(claims: Claims, cases: Sequence[Any], name: Callable[[Any], str]) -> list[dict[str, Any]]:
    """Returns for each claim the names of the cases in which it held, and in which it failed."""
    found = []
    for text, holds in claims.items():
        names: dict[bool, list[str]] = {True: [], False: []}
        for case in cases:
            if (held := holds(case)) is not None:
                names[bool(held)].append(name(case))
        found.append({"claim": text, "held": names[True], "failed": names[False]})
    return found


def judge_and_print(
    run: Run, claims: Claims, cases: Sequence[Any], name: Callable[[Any], str]
) -> list[dict[str, Any]]:
    """Returns the same, and prints its table."""
    predictions = judge(claims, cases, name)
    run.table_of(
        "Predicted beforehand",
        predictions,
        {
            "": "{claim}",
            "held in": lambda one: str(len(one["held"])),
            "not in": lambda one: "; ".join(one["failed"]) or "–",
        },
    )
    return predictions
