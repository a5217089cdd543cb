"""Predictions for the rows of another file: `predictions.csv` of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from attnkernel.data._csv import NewRows

from ..runs import Run, write_csv

# by the names of `numbers_at`
ADDED = {
    name: "prediction" if name == "fit" else name
    for name in ("fit", "corrected", "standard_error", "lower", "upper", "labels", "reliable")
}


def require_free_names(new: NewRows) -> None:
    """Raises `ValueError` for a column that has the name of one that is added."""
    if taken := [name for name in new.header if name in ADDED.values()]:
        raise ValueError(
            f"predictions.csv adds columns named {', '.join(ADDED.values())}; the file has "
            f"{', '.join(map(repr, taken))} already: rename it there"
        )


def complete_rows(new: NewRows) -> Bool[np.ndarray, " rows"]:
    """Returns which rows have a cell in each column of the fit."""
    return np.all(np.isfinite(new.numbers), axis=1)


def inputs_of(new: NewRows | None, dim: int) -> Float[np.ndarray, "m {dim}"]:
    """Returns the inputs of the complete rows; none without a file."""
    return np.empty((0, dim)) if new is None else new.numbers[complete_rows(new)]


def write_predictions(
    run: Run, new: NewRows, numbers: Mapping[str, Sequence[Any]]
) -> dict[str, int]:
    """Writes the rows as they were given, each with its `numbers_at`, which are empty where a cell
    is missing. Returns the numbers of rows, of those without a prediction, and of those with few
    labels near."""
    is_complete, predicted = complete_rows(new), zip(*numbers.values(), strict=True)
    empty = (None,) * len(numbers)
    rows = [
        [*given, *map(_as_cell, next(predicted) if complete else empty)]
        for given, complete in zip(new.cells, is_complete, strict=True)
    ]
    write_csv(run.file("predictions.csv"), [*new.header, *(ADDED[name] for name in numbers)], rows)
    missing, unreliable = np.sum(~is_complete), np.sum(~np.array(numbers["reliable"], bool))
    return {"rows": len(rows), "missing": int(missing), "unreliable": int(unreliable)}


def _as_cell(value: Any) -> Any:
    """Returns a number as it is written: true and false for a Boolean, None if it is not finite."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if value is None or math.isfinite(value) else None


def note_of_predictions(path: str, found: Mapping[str, int]) -> str:
    """Returns what a reader of the predictions must know, in sentences."""
    predicted = found["rows"] - found["missing"]
    of_all = f"predictions.csv has the predictions of {predicted} of {found['rows']} rows of {path}"
    others = f"; rows with a missing cell: {found['missing']}" if found["missing"] else ""
    few = (
        f" Few labels are near {found['unreliable']} of them, where the column reliable is false: "
        f"their intervals cover the mean less often than they say."
    )
    return f"{of_all}{others}.{few if found['unreliable'] else ''}"
