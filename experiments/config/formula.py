"""The command `fit`: a formula such as `wage ~ age + sex` as the config of a regression."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkernel._core.validation import OptionError
from attnkernel.data import columns_of_formula, parse_formula
from attnkernel.data._records import Records

from .loading import ConfigIssue, Source, apply
from .plain_yaml import ConfigError

OVERRIDE = re.compile(r"[a-z_]+(?:\.[a-z_]+)*=.*", re.DOTALL)
FLAGS = {  # by field
    "data.delimiter": "--delimiter",
    "data.decimal": "--decimal",
    "data.thousands": "--thousands",
    "data.encoding": "--encoding",
    "data.missing": "--missing",
    "data.categories": "--category",
    "data.dates": "--date",
    "model.periods": "--periodic",
    "model.family": "--family",
    "model.order": "--order",
    "data.weights": "--weights",
    "data.clusters": "--clusters",
    "data.predict": "--predict",
    "objective": "--objective",
    "tests": "--tests",
}


def source_of(path: Path, words: Sequence[str], options: Mapping[str, Any]) -> Source:
    """Returns the config of a regression of a CSV file.

    **Arguments:** `words`: those of a formula, which a shell may have split, then
    `field.sub=value` overrides. `options`: values of fields by dotted name; None: the default.

    **Raises:** `ConfigError` for what is no formula, and for a file whose header cannot be read.
    """
    overrides = [word for word in words if OVERRIDE.fullmatch(word)]
    text = _joined([word for word in words if not OVERRIDE.fullmatch(word)])
    with _as_config_errors():
        formula = parse_formula(text)
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", path.stem).strip("_-")[:64]
    data = {"source": "csv", "path": str(path), "y": formula.y.name}
    values = {"study": "regression", "name": name or "regression", "data": data}
    source = Source(values, {(): text}, FLAGS)
    for field, value in options.items():
        if value is not None:
            set_field(source, field, value)
    for override in overrides:
        apply(override, source)
    if "x" not in source.values["data"]:
        given = source.values["data"]
        options = {name: given[name] for name in ("delimiter", "encoding") if name in given}
        try:
            header = [name.strip() for name in next(Records(path, **options), [])]
        except OptionError as error:
            advice = {f"data.{name}": value for name, value in error.options.items()}
            issue = ConfigIssue(("data",), error.sentence, advice)
            raise ConfigError(source.explain(issue)) from None
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigError(str(error)) from None
        with _as_config_errors():
            others = [given.get(role) for role in ("weights", "clusters")]
            given["x"] = columns_of_formula(formula, header, str(path), others)
    return source


@contextlib.contextmanager
def _as_config_errors() -> Iterator[None]:
    """Raises a `ValueError` of a formula as a `ConfigError`."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None


def dates_of(options: Sequence[str] | None) -> dict[str, str | None] | None:
    """Returns the formats of columns from options such as `day=%d.%m.%Y`; None: ISO 8601."""
    if options is None:
        return None
    parts = (option.rpartition("=") for option in options)
    return {name or form: form if name else None for name, _, form in parts}


def periods_of(options: Sequence[str] | None) -> dict[str, Any] | None:
    """Returns the periods of columns from options such as `hour=24`; `ConfigError` for others."""
    if options is None:
        return None
    try:
        return {name: float(period) for name, _, period in (o.rpartition("=") for o in options)}
    except ValueError:
        listed = ", ".join(map(repr, options))
        raise ConfigError(f"--periodic: expected COLUMN=PERIOD, hour=24; got {listed}") from None


def set_field(source: Source, field: str, value: Any) -> None:
    """Sets a field of a config, by its dotted name, to a value as it is."""
    *groups, last = field.split(".")
    parent = source.values
    for group in groups:
        parent = parent.setdefault(group, {})
    parent[last] = value


def _joined(words: Sequence[str]) -> str:
    """Returns words as one text; a shell replaces a word `~` by the home directory."""
    home = os.path.expanduser("~")
    return " ".join("~" if word == home else word for word in words)
