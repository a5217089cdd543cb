"""Names that people read: "held out 10: ℓ" for the number `fits.1.lengthscale` of a summary."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WORDS = {
    "hold_out": "held out",
    "leave_one_out": "leave-one-out error",
    "loss": "last loss",
    "weights": "weight",
    "r_squared": "R²",
    "residual_sd": "residual sd",
}


def in_words(name: str) -> str:
    """A field of a summary or a metric in words."""
    return WORDS.get(name, name.replace("_", " "))


def labels(keys: Iterable[str], summaries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Labels of the dotted names of numbers; a name without a unique label is unchanged.

    The rows of a table are named by their first field where all summaries agree on it, else by
    their place.
    """
    found = {key: _label_number(key, summaries) for key in keys}
    texts = list(found.values())
    return {key: text if texts.count(text) == 1 else key for key, text in found.items()}


def _label_number(key: str, summaries: Sequence[Mapping[str, Any]]) -> str:
    """Returns the label of a dotted key: "held out 10: ℓ" for `fits.1.lengthscale`, if row 1 of the
    table `fits` in `summaries` begins with hold_out 10.
    """
    table, _, rest = key.partition(".")
    place, _, field = rest.partition(".")
    if not (place.isdigit() and field):
        return ", ".join(map(in_words, key.split(".")))
    parts = field.split(".")
    words = [in_words(part) for part in parts if not part.isdigit()]
    words += [str(int(part) + 1) for part in parts if part.isdigit()]
    return f"{_label_row(table, int(place), summaries)}: {' '.join(words)}"


def _label_row(table: str, place: int, summaries: Sequence[Mapping[str, Any]]) -> str:
    """Returns a label for row `place` (from 0) of a table: its first field and value, such as
    "held out 10", or the value alone if it is text. Returns "table 1" (from 1) unless all
    `summaries` (one per run) that have the row agree.
    """
    names = set()
    for summary in summaries:
        rows = summary.get(table)
        if isinstance(rows, list) and place < len(rows) and isinstance(rows[place], Mapping):
            first, value = next(iter(rows[place].items()))
            words = isinstance(value, str)
            names.add(value if words else f"{in_words(first)} {value}")
    return names.pop() if len(names) == 1 else f"{in_words(table)} {place + 1}"
