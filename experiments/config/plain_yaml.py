"""YAML of configs: a safe loader without surprises, and plain values with the line of each.

Configs name things by registered names and run no code: the loader is safe, knows no anchors,
refuses duplicate keys, reads `1e-2` as a number and only `true` and `false` as Booleans.
"""

import re
from collections.abc import Callable
from typing import Any

import pydantic
import yaml

FieldPath = tuple[str | int, ...]
OVERRIDE = "command line"  # with which the location of an override starts
MAX_CONFIG_CHARACTERS = 2**15  # read in about a second


MAX_ISSUES, MAX_ISSUE_CHARACTERS = 20, 1000


class ConfigError(Exception):
    """Everything wrong with a config, one line each: `file:line: field: sentence`.

    Lines beyond `MAX_ISSUES` are counted, and long ones lose their middle.
    """

    def __init__(self, text: str):
        lines, half = text.split("\n"), MAX_ISSUE_CHARACTERS // 2
        shown = [
            line if len(line) <= 2 * half else f"{line[:half]} ... {line[-half:]}"
            for line in lines[:MAX_ISSUES]
        ]
        rest = len(lines) - len(shown)
        super().__init__("\n".join([*shown, *([f"and {rest} more"] if rest else [])]))


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


def shortened(text: str) -> str:
    """The text, cut to one line."""
    return text if len(text) <= 100 else f"{text[:60]} ... {text[-20:]}"


def parse(text: str, name: str) -> yaml.Node | None:
    """Parses YAML into a node; raises `ConfigError` if it is too long, too deep or not YAML.
    `name`: of the file or override, for errors.
    """
    if len(text) > MAX_CONFIG_CHARACTERS:
        raise ConfigError(
            f"{shortened(name)}: is too long: a config has up to {MAX_CONFIG_CHARACTERS} characters"
        )
    try:
        return yaml.compose(text, Loader=_Loader)
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deep to be a config") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        location = f"{name}:{mark.line + 1}" if mark and not name.startswith(OVERRIDE) else name
        raise ConfigError(f"{location}: this is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())  # of a character that YAML forbids, in two lines
        raise ConfigError(f"{name}: this is not YAML: {said}") from None


def read_plain_values(
    node: yaml.Node,
    field: FieldPath,
    location: Callable[[yaml.Node], str],
    locations: dict[FieldPath, str],
) -> Any:
    """Returns the YAML node of a field (its path in the config) as dictionaries, lists and scalars.
    Writes `location(node)`, such as "a.yaml:3", of every field within it to `locations`.
    """
    locations.setdefault(field, location(node))
    if isinstance(node, yaml.SequenceNode):
        return [
            read_plain_values(item, (*field, i), location, locations)
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
            values[key] = read_plain_values(value_node, (*field, key), location, locations)
        return values
    try:
        return _Loader("").construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"{location(node)}: {dotted(field)}: {problem}") from None


def dotted(field: FieldPath) -> str:
    """A field as `key.sub`."""
    return ".".join(map(str, field)) or "(top)"
