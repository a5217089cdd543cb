"""What our regressors should reach among their peers: errors, seconds, and R²."""

from collections.abc import Mapping, Sequence
from typing import Any

from .regressors import BOTH, KERNEL_REGRESSOR, OURS
from .reports import target

CLOSE = 1.01  # errors within one hundredth count as equal
SIMPLE = ("neighbours", "ridge")
LESS_R_SQUARED = -0.01  # than the better of these, at least


def targets_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Targets of each of ours: the error over the minimum, and the speed against peers; for
    `KernelRegressor` R² against ridge and neighbours.

    The peer of a data set is the slowest one whose error is within one hundredth of ours.
    """
    targets = []
    for name in BOTH:
        ours = [row for row in rows if name in row["folds"]]
        if not ours:
            continue
        error = {row["data"]: row["folds"][name]["over_best"] for row in ours}
        faster = {}
        for row in ours:
            folds, median = row["folds"], row["median"]
            equals = {
                other: median[other] / median[name]
                for other, found in folds.items()
                if other not in OURS and found["error"] <= CLOSE * folds[name]["error"]
            }
            if equals:
                slowest = max(equals, key=lambda other: equals[other])
                faster[f"{row['data']}, {slowest}"] = equals[slowest]
        targets += [
            target(f"{name}: error over the minimum", CLOSE, error, at_most=True),
            target(f"{name}: seconds over its own, slowest with an equal error", 10.0, faster),
        ]
    less = {}
    for row in rows:
        r_squared = {name: folds["r_squared"] for name, folds in row["folds"].items()}
        simple = [r_squared[name] for name in SIMPLE if name in r_squared]
        if KERNEL_REGRESSOR in r_squared and len(simple) == len(SIMPLE):
            less[row["data"]] = r_squared[KERNEL_REGRESSOR] - max(simple)
    if less:
        title = f"{KERNEL_REGRESSOR}: R² less that of the better of {' and '.join(SIMPLE)}"
        targets.append(target(title, LESS_R_SQUARED, less))
    return targets
