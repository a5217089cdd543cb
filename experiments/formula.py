"""The command `fit`: a formula such as `wage ~ age + sex` as the config of a regression."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attnkernel.data._records import Records

from .config_source import ConfigError, Source, apply

EXAMPLE = "'wage ~ age + sex', or 'wage ~ .' for all other columns"
OVERRIDE = re.compile(r"[a-z_]+(?:\.[a-z_]+)*=.*", re.DOTALL)


class Formula(NamedTuple):
    """The label column, and the input columns; None for all others."""

    y: str
    x: list[str] | None


def source_of(path: Path, words: Sequence[str], options: dict[str, str | int | None]) -> Source:
    """Returns the config of a regression of a CSV file.

    **Arguments:** `words`: those of a formula, which a shell may have split, then
    `field.sub=value` overrides. `options`: values of fields by dotted name; None: the default.

    **Raises:** `ConfigError` for what is no formula, and for a file whose header cannot be read.
    """
    overrides = [word for word in words if OVERRIDE.fullmatch(word)]
    formula = parse([word for word in words if not OVERRIDE.fullmatch(word)])
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", path.stem).strip("_-")[:64]
    data = {"source": "csv", "path": str(path), "y": formula.y}
    values = {"study": "regression", "name": name or "regression", "data": data}
    where = f"{path}, {formula.y} ~ {'.' if formula.x is None else ' + '.join(formula.x)}"
    source = Source(values, {(): where})
    for field, value in options.items():
        if value is not None:
            set_field(source, field, value)
    for override in overrides:
        apply(override, source)
    x = formula.x
    if x is None:
        x = _other_columns(path, formula.y, str(source.values["data"].get("delimiter", ",")))
    source.values["data"].setdefault("x", x)
    return source


def set_field(source: Source, field: str, value: str | int) -> None:
    """Sets a field of a config, by its dotted name, to a value as it is."""
    *groups, last = field.split(".")
    parent = source.values
    for group in groups:
        parent = parent.setdefault(group, {})
    parent[last] = value


def parse(words: Sequence[str]) -> Formula:
    r"""Returns the columns that a formula names; a name with `~` or `+` is put in backticks.

    A shell replaces a word `~` by the home directory, which is taken for `~` again.
    """
    home = os.path.expanduser("~")
    text = " ".join("~" if word == home else word for word in words)
    parts = [part.strip() for part in re.findall(r"`[^`]*`|[~+]|[^`~+]+", text)]
    parts = [part for part in parts if part]
    names, marks = parts[::2], parts[1::2]
    is_formula = len(names) == len(marks) + 1 >= 2 and marks[0] == "~" and set(marks[1:]) <= {"+"}
    if not is_formula or {"~", "+"} & set(names):
        raise ConfigError(f"expected a formula, such as {EXAMPLE}; got {text!r}")
    y, *x = (name.strip("`") for name in names)
    return Formula(y, None if x == ["."] else x)


def _other_columns(path: Path, y: str, delimiter: str) -> list[str]:
    """Returns the columns of a CSV file except the label."""
    try:
        header = [name.strip() for name in next(Records(path, delimiter), [])]
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from None
    if y in header and len(header) > 1:
        return [name for name in header if name != y]
    return header or [y]  # the reader says what is wrong with these
