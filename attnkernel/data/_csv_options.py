"""The options of a CSV file: its delimiter, decimal mark, missing cells, categories and dates."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from .._core.validation import as_names, require_bool, require_choice
from ._columns import Column


class CsvOptions(NamedTuple):
    """The arguments of `read_csv` that say which columns are read, and how their cells."""

    x: tuple[str, ...]
    y: str
    categories: Mapping[str, Any]
    find_categories: bool
    dates: Mapping[str, Any]
    delimiter: str
    decimal: str
    missing: str

    def check(self) -> None:
        """Raises `ValueError` unless all are valid, and go together."""
        if not isinstance(self.y, str):
            raise ValueError(f"y must be the name of a column; got {self.y!r}.")
        if not self.x:
            raise ValueError("x is empty: name at least one input column.")
        if self.y in self.x:
            raise ValueError(
                f"Column {self.y!r} is both input and label; choose another for one of them."
            )
        if len(set(self.x)) < len(self.x):
            raise ValueError(
                f"An input column is named twice among {', '.join(map(repr, self.x))}."
            )
        for what, named, known in (
            ("categories", self.categories, self.x),
            ("dates", self.dates, (*self.x, self.y)),
        ):
            if unknown := [column for column in named if column not in known]:
                raise ValueError(
                    f"{what} must be among the {'input ' if known is self.x else ''}columns "
                    f"{', '.join(map(repr, known))}; got {', '.join(map(repr, unknown))}."
                )
        for column, words in self.categories.items():
            if words is not None:
                _require_levels(column, words)
            if column in self.dates:
                raise ValueError(f"Column {column!r} is named in both categories and dates.")
        require_bool("find_categories", self.find_categories)
        require_choice("decimal", self.decimal, (".", ","))
        require_choice("missing", self.missing, ("error", "drop"))
        if (
            not isinstance(self.delimiter, str)
            or len(self.delimiter) != 1
            or self.delimiter in '\n\r" '
        ):
            raise ValueError(
                f'delimiter must be one character, such as ";" or "\\t"; got {self.delimiter!r}.'
            )
        if self.delimiter == self.decimal:
            raise ValueError(f"delimiter and decimal must differ; both are {self.decimal!r}.")

    def columns(self) -> list[Column]:
        """Returns the columns to read: the inputs, then the label."""
        found = []
        for name in (*self.x, self.y):
            kind = "category" if name in self.categories else "date" if name in self.dates else None
            is_label = name == self.y
            found.append(
                Column(
                    name,
                    self.decimal,
                    kind=kind,
                    levels=self.categories.get(name),
                    date_format=self.dates.get(name),
                    may_hold_words=self.find_categories and not is_label,
                    is_label=is_label,
                )
            )
        return found


def _require_levels(column: str, words: Any) -> None:
    """Raises `ValueError` unless `words` lists two words or more, each once."""
    if isinstance(words, str) or len(as_names("categories", words)) < 2:
        raise ValueError(
            f"categories must list the words of {column!r} in order, two or more; got {words!r}."
        )
    for word in words:
        if list(words).count(word) > 1:
            raise ValueError(f"categories list {word!r} twice for the column {column!r}.")


def as_mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Returns a dictionary from column names, with None for the names of a list."""
    if isinstance(value, Mapping):
        as_names(name, list(value))
        if name == "dates" and not all(isinstance(each, str | None) for each in value.values()):
            raise ValueError(
                f'dates must map columns to formats, such as "%d.%m.%Y"; got {value!r}.'
            )
        return value
    return dict.fromkeys(as_names(name, value))
