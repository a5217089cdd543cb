"""Reads a config: YAML files and overrides to plain values, with the file and line of each field.

A file may extend another, `extends: base.yaml`. A field is taken from the command line, else from
the file, else from its base. Mappings are merged; lists and other values are replaced.
"""

import difflib
import json
import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from . import plain_yaml
from .plain_yaml import OVERRIDE, ConfigError, FieldPath, dotted, shortened


class ConfigIssue(NamedTuple):
    """One thing wrong with a config."""

    field: FieldPath
    sentence: str
    advice: Mapping[str, Any] = {}  # fields by dotted name, and the values to try


class FieldError(ValueError):
    """A issue that a study finds in its own config, at a field, with fields that may settle it."""

    def __init__(self, field: FieldPath, sentence: str, advice: Mapping[str, Any] | None = None):
        super().__init__(sentence)
        self.issue = ConfigIssue(field, sentence, advice or {})


class Source(NamedTuple):
    """A config as read: plain values, the location each came from, and the options of the command
    line that set a field, by its dotted name."""

    values: dict[str, Any]
    locations: dict[FieldPath, str]
    flags: Mapping[str, str] = {}

    def location(self, field: FieldPath) -> str:
        """The file and line of a field, or of the nearest field around it."""
        while field and field not in self.locations:
            field = field[:-1]
        return self.locations[field]

    def explain(self, issue: ConfigIssue) -> str:
        """Returns the sentence of a issue, with what to try in the words of the config or, where
        there is one, as the option of the command line."""
        hints = [
            f"{name}: {json.dumps(value, ensure_ascii=False)}"
            if name not in self.flags
            else _as_option(self.flags[name], value)
            for name, value in issue.advice.items()
        ]
        return f"{issue.sentence} Try {' or '.join(hints)}." if hints else issue.sentence


def _as_option(flag: str, value: Any) -> str:
    """Returns an option of the command line; a list or a dictionary repeats it."""
    if isinstance(value, Mapping):
        value = [key if of is None else f"{key}={of}" for key, of in value.items()]
    values = value if isinstance(value, list) else [value]
    shown = [shlex.quote({"\t": "\\t"}.get(each, str(each))) for each in values]
    return " ".join(f"{flag} {each}" for each in shown)


def read(path: Path, overrides: Sequence[str] = ()) -> Source:
    """Reads a YAML file with the files that it extends, and applies `key.sub=value` overrides.

    A file or an override that changes a `source` (as of `data.source`) drops the fields that the
    base or the file gave to the old one; those that other overrides gave stay.
    """
    source = _read_with_bases(path, ())
    for override in overrides:
        apply(override, source)
    return source


def _read_with_bases(path: Path, extended_by: tuple[Path, ...]) -> Source:
    """Returns the fields of a file, and those of its base that it does not replace. `extended_by`:
    the files that led to this one.
    """
    source = _read_file(path)
    if "extends" not in source.values:
        return source
    name, location = source.values.pop("extends"), source.locations.pop(("extends",))
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{location}: extends: expected the path of one file, counted from the folder of "
            f"{path}, such as base.yaml; got {shortened(repr(name))}"
        )
    base, chain = path.parent / name, (*extended_by, path)
    if not os.path.isfile(base):
        raise ConfigError(f"{location}: extends: there is no file {shortened(os.fspath(base))}")
    if any(base.samefile(one) for one in chain):
        cycle = " -> ".join(map(os.fspath, (*chain, base)))
        raise ConfigError(f"{location}: extends: a file cannot extend itself: {cycle}")
    extended = _read_with_bases(base, chain)
    _extend(extended, source)
    return extended


def _extend(base: Source, own: Source, field: FieldPath = ()) -> None:
    """Puts the values of `own`, in the group at `field`, in the place of those of `base`."""
    old: Any = base.values
    new: Any = own.values
    for part in field:
        old, new = old[part], new[part]
    if "source" in new and new["source"] != old.get("source"):
        _forget(base, field)
        old.clear()
    base.locations[field] = own.locations[field]
    for name, value in new.items():
        inner = (*field, name)
        if isinstance(value, dict) and isinstance(old.get(name), dict):
            _extend(base, own, inner)
        else:
            _forget(base, inner)
            old[name] = value
            lines = own.locations.items()
            base.locations.update({at: line for at, line in lines if at[: len(inner)] == inner})


def _forget(source: Source, field: FieldPath) -> None:
    """Removes the locations of a field and of all within it."""
    for known in [known for known in source.locations if known[: len(field)] == field]:
        del source.locations[known]


def _read_file(path: Path) -> Source:
    """Returns the fields of one YAML file."""
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a device or a pipe may have no end
            raise ConfigError(f"{path}: expected a regular file, which has an end: write it to one")
        with path.open(encoding="utf-8") as file:
            text = file.read(plain_yaml.MAX_CONFIG_CHARACTERS + 1)
    except FileNotFoundError:
        known = {
            file.stem: file for at in (Path("configs"), path.parent) for file in at.glob("*.yaml")
        }
        close = difflib.get_close_matches(path.stem, known, n=1, cutoff=0.5)
        guess = f": did you mean {known[close[0]]}?" if close else ""
        raise ConfigError(f"{path}: there is no such file{guess}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    tree = plain_yaml.parse(text, str(path))
    if not isinstance(tree, yaml.MappingNode):
        raise ConfigError(f"{path}:1: expected a mapping of fields, such as 'study: holdout'")
    locations: dict[FieldPath, str] = {}
    try:
        values = plain_yaml.read_plain_values(
            tree, (), lambda node: f"{path}:{node.start_mark.line + 1}", locations
        )
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deep to be a config") from None
    return Source(values, locations)


def apply(override: str, source: Source, location: str | None = None) -> None:
    """Sets one field from `key.sub=value`; `location`: where that is written, by default on the
    command line.
    """
    name, equals, text = override.partition("=")
    location = location or f"{OVERRIDE} '{shortened(override)}'"
    if not equals or not all(name.split(".")):
        raise ConfigError(f"{location}: expected field=value, for example training.steps=200")
    field: FieldPath = tuple(name.split("."))
    if field[0] in ("extends", "sweep"):
        raise ConfigError(f"{location}: {field[0]} is written in a file, not on the command line")
    # the shell has taken the quotes of data.decimal=","
    node = plain_yaml.parse('","' if text == "," else text, location)
    parent: Any = source.values
    for i, part in enumerate(field[:-1]):
        if part not in parent:
            parent[part] = {}
            source.locations[field[: i + 1]] = location
        parent = parent[part]
        if not isinstance(parent, dict):
            raise ConfigError(
                f"{location}: {dotted(field[: i + 1])} is not a group of fields: set it whole"
            )
    _forget(source, field)
    source.locations[field] = location
    value = None
    if node is not None:
        value = plain_yaml.read_plain_values(node, field, lambda _: location, source.locations)
    if field[-1] == "source" and parent.get("source") != value:
        for name in list(parent):
            if not source.location((*field[:-1], name)).startswith(OVERRIDE):
                del parent[name]
                source.locations.pop((*field[:-1], name), None)
    parent[field[-1]] = value
