"""Reads a config: YAML and overrides to plain values, with the file and line of each field.

Configs name things by registered names and run no code: the loader is safe, knows no anchors,
refuses duplicate keys, reads `1e-2` as a number and only `true` and `false` as Booleans.
"""

import json
import re
import shlex
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import yaml

Field = tuple[str | int, ...]


class Fault(NamedTuple):
    """One thing wrong with a config."""

    field: Field
    sentence: str
    advice: Mapping[str, Any] = {}  # fields by dotted name, and the values to try


class ConfigError(Exception):
    """Everything wrong with a config, one line each: `file:line: field: sentence`."""


class FieldError(ValueError):
    """A fault that a study finds in its own config, at a field, with fields that may settle it."""

    def __init__(self, field: Field, sentence: str, advice: Mapping[str, Any] | None = None):
        super().__init__(sentence)
        self.fault = Fault(field, sentence, advice or {})


class _Loader(yaml.SafeLoader):
    """YAML without surprises."""

    def compose_node(self, parent, index):
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not read; write the value out",
                problem_mark=event.start_mark,
            )
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(
                problem=f"tags, such as {event.tag}, are not read; write the value without it",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in resolvers if pair[0].endswith((":null", ":merge"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$", re.IGNORECASE), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9]\d*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(?:inf|Inf)|\.nan)$"
    ),
    list("-+0123456789."),
)


class _Dumper(yaml.SafeDumper):
    """Quotes just what `_Loader` would otherwise read as something else."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def dump(config: pydantic.BaseModel) -> str:
    """A config as YAML that reads back as the same config."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False)


_OVERRIDE = "command line"
MAX_CONFIG_CHARACTERS = 2**15  # read in about a second


def shortened(text: str) -> str:
    """The text, cut to one line."""
    return text if len(text) <= 100 else f"{text[:60]} ... {text[-20:]}"


class Source(NamedTuple):
    """A config as read: plain values, the location each came from, and the options of the command
    line that set a field, by its dotted name."""

    values: dict[str, Any]
    locations: dict[Field, str]
    flags: Mapping[str, str] = {}

    def location(self, field: Field) -> str:
        """The file and line of a field, or of the nearest field around it."""
        while field and field not in self.locations:
            field = field[:-1]
        return self.locations[field]

    def explain(self, fault: Fault) -> str:
        """Returns the sentence of a fault, with what to try in the words of the config or, where
        there is one, as the option of the command line."""
        hints = [
            f"{name}: {json.dumps(value, ensure_ascii=False)}"
            if name not in self.flags
            else _as_option(self.flags[name], value)
            for name, value in fault.advice.items()
        ]
        return f"{fault.sentence} Try {' or '.join(hints)}." if hints else fault.sentence


def _as_option(flag: str, value: Any) -> str:
    """Returns an option of the command line; a list or a dictionary repeats it."""
    if isinstance(value, Mapping):
        value = [key if of is None else f"{key}={of}" for key, of in value.items()]
    values = value if isinstance(value, list) else [value]
    shown = [shlex.quote({"\t": "\\t"}.get(each, str(each))) for each in values]
    return " ".join(f"{flag} {each}" for each in shown)


def read(path: Path, overrides: Sequence[str] = ()) -> Source:
    """Reads a YAML file and applies `key.sub=value` overrides.

    An override that changes a `source` (as of `data.source`) drops the fields that the file gave
    to the old one; those that other overrides gave stay.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a device or a pipe may have no end
            raise ConfigError(f"{path}: expected a file; this is none: write it to one")
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CONFIG_CHARACTERS + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    tree = _parse_yaml(text, str(path))
    if not isinstance(tree, yaml.MappingNode):
        raise ConfigError(f"{path}:1: expected a mapping of fields, such as 'study: holdout'")
    locations: dict[Field, str] = {}
    try:
        values = _read_plain_values(
            tree, (), lambda node: f"{path}:{_line_number(node)}", locations
        )
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deep to be a config") from None
    source = Source(values, locations)
    for override in overrides:
        apply(override, source)
    return source


def _parse_yaml(text: str, name: str) -> yaml.Node | None:
    """Parses YAML into a node; raises `ConfigError` if it is too long, too deep or not YAML.
    `name`: of the file or override, for errors.
    """
    if len(text) > MAX_CONFIG_CHARACTERS:
        raise ConfigError(
            f"{shortened(name)}: is too long: a config has up to {MAX_CONFIG_CHARACTERS} characters"
        )
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deep to be a config") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        location = f"{name}:{mark.line + 1}" if mark and not name.startswith(_OVERRIDE) else name
        raise ConfigError(f"{location}: this is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: this is not YAML: {error}") from None


def _line_number(node: yaml.Node) -> int:
    """Returns the line on which a YAML node starts, counted from 1."""
    return node.start_mark.line + 1


def _read_plain_values(
    node: yaml.Node, field: Field, location: Callable[[yaml.Node], str], locations: dict[Field, str]
) -> Any:
    """Returns the YAML node of a field (its path in the config) as dictionaries, lists and scalars.
    Writes `location(node)`, such as "a.yaml:3", of every field within it to `locations`.
    """
    locations.setdefault(field, location(node))
    if isinstance(node, yaml.SequenceNode):
        return [
            _read_plain_values(item, (*field, i), location, locations)
            for i, item in enumerate(node.value)
        ]
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(
                    f"{location(key_node)}: {dotted(field)}: a field's name is a word"
                )
            key = key_node.value
            if key in values:
                raise ConfigError(
                    f"{location(key_node)}: {dotted((*field, key))}: given twice; first at "
                    f"{locations[(*field, key)]}"
                )
            locations[(*field, key)] = location(key_node)
            values[key] = _read_plain_values(value_node, (*field, key), location, locations)
        return values
    loader = _Loader("")
    try:
        return loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"{location(node)}: {dotted(field)}: {problem}") from None
    finally:
        loader.dispose()


def apply(override: str, source: Source) -> None:
    """Sets one field from `key.sub=value`."""
    name, equals, text = override.partition("=")
    location = f"{_OVERRIDE} '{shortened(override)}'"
    if not equals or not all(name.split(".")):
        raise ConfigError(f"{location}: expected field=value, for example training.steps=200")
    field: Field = tuple(name.split("."))
    # the shell has taken the quotes of data.decimal=","
    node = _parse_yaml('","' if text == "," else text, location)
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
    for old in [known for known in source.locations if known[: len(field)] == field]:
        del source.locations[old]
    source.locations[field] = location
    value = (
        None
        if node is None
        else _read_plain_values(node, field, lambda _: location, source.locations)
    )
    if field[-1] == "source" and parent.get("source") != value:
        for name in list(parent):
            if not source.location((*field[:-1], name)).startswith(_OVERRIDE):
                del parent[name]
                source.locations.pop((*field[:-1], name), None)
    parent[field[-1]] = value


def dotted(field: Field) -> str:
    """A field as `key.sub`."""
    return ".".join(map(str, field)) or "(top)"
