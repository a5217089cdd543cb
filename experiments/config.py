"""From a YAML file and overrides to a validated config; every fault with file, line and field.

Configs name things by registered names and run no code: the loader is safe, knows no anchors,
refuses duplicate keys, reads `1e-2` as a number and only `true` and `false` as Booleans.
"""

import difflib
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import pydantic
import yaml

Field = tuple[str | int, ...]


class Fault(NamedTuple):
    """One thing wrong with a config."""

    field: Field
    sentence: str


class ConfigError(Exception):
    """Everything wrong with a config, one line each: `file:line: field: sentence`."""


class FieldError(ValueError):
    """A fault that a study finds in its own config, at a field."""

    def __init__(self, field: Field, sentence: str):
        super().__init__(sentence)
        self.fault = Fault(field, sentence)


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
_MOST = 2**15  # characters: read in about a second


def _cut(text: str) -> str:
    """No more of it than a line."""
    return text if len(text) <= 100 else f"{text[:60]} ... {text[-20:]}"


class Source(NamedTuple):
    """A config as read: plain values, and the place each came from."""

    values: dict[str, Any]
    places: dict[Field, str]

    def place(self, field: Field) -> str:
        """The file and line of a field, or of the nearest field around it."""
        while field and field not in self.places:
            field = field[:-1]
        return self.places[field]


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
            text = file.read(_MOST + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    tree = _compose(text, str(path))
    if not isinstance(tree, yaml.MappingNode):
        raise ConfigError(f"{path}:1: expected a mapping of fields, such as 'study: holdout'")
    places: dict[Field, str] = {}
    try:
        values = _build(tree, (), lambda node: f"{path}:{_line(node)}", places)
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deep to be a config") from None
    source = Source(values, places)
    for override in overrides:
        apply(override, source)
    return source


def _compose(text: str, name: str) -> yaml.Node | None:
    if len(text) > _MOST:
        raise ConfigError(f"{_cut(name)}: is too long: a config has up to {_MOST} characters")
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
        where = f"{name}:{mark.line + 1}" if mark and not name.startswith(_OVERRIDE) else name
        raise ConfigError(f"{where}: this is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: this is not YAML: {error}") from None


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _build(
    node: yaml.Node, field: Field, place: Callable[[yaml.Node], str], places: dict[Field, str]
) -> Any:
    """Plain values from a node; notes the place of each field."""
    places.setdefault(field, place(node))
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*field, i), place, places) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{place(key_node)}: {_dotted(field)}: a field's name is a word")
            key = key_node.value
            if key in values:
                raise ConfigError(
                    f"{place(key_node)}: {_dotted((*field, key))}: given twice; first at "
                    f"{places[(*field, key)]}"
                )
            places[(*field, key)] = place(key_node)
            values[key] = _build(value_node, (*field, key), place, places)
        return values
    loader = _Loader("")
    try:
        return loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"{place(node)}: {_dotted(field)}: {problem}") from None
    finally:
        loader.dispose()


def apply(override: str, source: Source) -> None:
    """Sets one field from `key.sub=value`."""
    name, equals, text = override.partition("=")
    place = f"{_OVERRIDE} '{_cut(override)}'"
    if not equals or not all(name.split(".")):
        raise ConfigError(f"{place}: expected field=value, for example training.steps=200")
    field: Field = tuple(name.split("."))
    node = _compose(text, place)
    parent: Any = source.values
    for i, part in enumerate(field[:-1]):
        if part not in parent:
            parent[part] = {}
            source.places[field[: i + 1]] = place
        parent = parent[part]
        if not isinstance(parent, dict):
            raise ConfigError(
                f"{place}: {_dotted(field[: i + 1])} is not a group of fields: set it whole"
            )
    for old in [known for known in source.places if known[: len(field)] == field]:
        del source.places[old]
    source.places[field] = place
    value = None if node is None else _build(node, field, lambda _: place, source.places)
    if field[-1] == "source" and parent.get("source") != value:
        for name in list(parent):
            if not source.place((*field[:-1], name)).startswith(_OVERRIDE):
                del parent[name]
                source.places.pop((*field[:-1], name), None)
    parent[field[-1]] = value


def _dotted(field: Field) -> str:
    return ".".join(map(str, field)) or "(top)"


def complain(source: Source, faults: Sequence[Fault]) -> ConfigError:
    """All faults as one error, in the order of the file."""
    merged: dict[Field, str] = {}
    for fault in faults:
        merged[fault.field] = _either(merged.get(fault.field), fault.sentence)

    def line(field: Field) -> float:
        place, _, number = source.place(field).rpartition(":")
        return float(number) if place and number.isdigit() else float("inf")  # overrides: last

    return ConfigError(
        "\n".join(
            f"{source.place(field)}: {_dotted(field)}: {merged[field]}"
            for field in sorted(merged, key=line)
        )
    )


def _either(first: str | None, second: str) -> str:
    """One sentence of two about the same field: a value that fits no member of a union."""
    if first is None or first == second:
        return second
    expected, semicolon, _ = second.partition("; got ")
    if not semicolon:
        return first
    return first.replace("; got ", f", or {expected.removeprefix('expected ')}; got ", 1)


def build(source: Source, model: type[pydantic.BaseModel]) -> Any:
    """The validated config.

    **Raises:** `ConfigError` with all faults at once.
    """
    try:
        return model.model_validate(source.values)
    except pydantic.ValidationError as error:
        faults = [_fault(detail, model, source.values) for detail in error.errors()]
        raise complain(source, faults) from None


def _fault(detail: Any, model: type[pydantic.BaseModel], values: Any) -> Fault:
    """A pydantic error in our words: what was expected, what came, the nearest valid name."""
    field, owner = _locate(detail["loc"], model, values)
    kind, came = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        names = list(owner.model_fields) if owner else []
        return Fault(field, f"unknown field{nearest(str(field[-1]), names)}")
    if kind == "missing":
        return Fault(field, "is required, but was not given")
    if kind == "union_tag_invalid":
        names = re.findall(r"'([^']*)'", detail["ctx"]["expected_tags"])
        discriminator = detail["ctx"]["discriminator"].strip("'")
        tag = detail["ctx"]["tag"]
        return Fault((*field, discriminator), f"unknown name {tag!r}{nearest(tag, names)}")
    if kind == "union_tag_not_found":
        return Fault(field, f"needs the field {detail['ctx']['discriminator']}")
    if kind == "literal_error":
        names = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        return Fault(field, f"unknown name {_cut(repr(came))}{nearest(str(came), names)}")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return Fault(field, f"expected a group of fields; got {_cut(repr(came))}")
    if kind == "too_short":
        return Fault(
            field,
            f"expected at least {detail['ctx']['min_length']} of them; got {_cut(repr(came))}",
        )
    sentence = detail["msg"].removeprefix("Value error, ")
    sentence = sentence.replace("Input should be", "expected", 1)
    return Fault(
        field, sentence if kind == "value_error" else f"{sentence}; got {_cut(repr(came))}"
    )


def nearest(name: str, known: Sequence[str]) -> str:
    """A guess and the list of valid names, to be put behind a fault."""
    close = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{guess} known here: {', '.join(known)}"


def _locate(
    loc: Field, model: type[pydantic.BaseModel], values: Any
) -> tuple[Field, type[pydantic.BaseModel] | None]:
    """Where a pydantic location is in the file, and the model that owns its last part.

    pydantic puts the tags of unions and the names of union members among the parts; they are not
    in the file.
    """
    field: list[str | int] = []
    owner: type[pydantic.BaseModel] | None = model
    choices: list[type[pydantic.BaseModel]] = []
    for place, part in enumerate(loc):
        last = place == len(loc) - 1
        inside = (isinstance(values, dict) and part in values) or (
            isinstance(values, list) and isinstance(part, int)
        )
        chosen = [choice for choice in choices if part in _tags(choice)]
        if chosen and not last:
            owner, choices = chosen[0], []
        elif inside or (last and owner is not None and part in owner.model_fields):
            field.append(part)
            if last:
                break
            info = owner.model_fields.get(str(part)) if owner else None
            choices = _models(info.annotation) if info else choices
            owner = choices[0] if len(choices) == 1 else owner
            values = cast(Any, values)[part] if inside else None
    return tuple(field), owner


def _models(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """The pydantic models named in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def _tags(model: type[pydantic.BaseModel]) -> tuple[str, ...]:
    """The names that choose this model among others: the values of its literal `source`."""
    field = model.model_fields.get("source")
    return get_args(field.annotation) if field else ()
