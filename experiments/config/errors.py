"""Validates a config; every issue with its file, line, field, and the nearest valid name."""

import difflib
import re
from collections.abc import Sequence
from datetime import date
from typing import Any, cast, get_args

import pydantic

from .loading import ConfigIssue, Source
from .plain_yaml import ConfigError, FieldPath, dotted, shortened


def config_error(source: Source, issues: Sequence[ConfigIssue]) -> ConfigError:
    """All issues as one error, in the order of the file."""
    merged: dict[FieldPath, str] = {}
    for issue in issues:
        merged[issue.field] = _merge_sentences(merged.get(issue.field), source.explain(issue))

    def line(field: FieldPath) -> float:
        location, _, number = source.location(field).rpartition(":")
        return float(number) if location and number.isdigit() else float("inf")  # overrides: last

    return ConfigError(
        "\n".join(
            f"{source.location(field)}: {dotted(field)}: {merged[field]}"
            for field in sorted(merged, key=line)
        )
    )


def _merge_sentences(first: str | None, second: str) -> str:
    """Returns two errors of one field, "expected A; got C" and "expected B; got C", as one
    sentence: "expected A, or B; got C".
    """
    if first is None or first == second:
        return second
    expected, semicolon, _ = second.partition("; got ")
    if not semicolon:
        return first
    return first.replace("; got ", f", or {expected.removeprefix('expected ')}; got ", 1)


def build(source: Source, model: type[pydantic.BaseModel]) -> Any:
    """The validated config.

    **Raises:** `ConfigError` with all issues at once.
    """
    try:
        return model.model_validate(source.values)
    except pydantic.ValidationError as error:
        issues = [
            _explain_pydantic_error(detail, model, source.values) for detail in error.errors()
        ]
        raise config_error(source, issues) from None


def _explain_pydantic_error(
    detail: Any, model: type[pydantic.BaseModel], values: Any
) -> ConfigIssue:
    """Returns a pydantic error as a sentence about its field: what was expected, what came, the
    nearest valid name. `detail`: an item of `error.errors()`; `values`: the config as read.
    """
    field, owner = _locate_field(detail["loc"], model, values)
    kind, came, said = detail["type"], shortened(repr(detail["input"])), detail.get("ctx", {})
    known = re.findall(r"'([^']*)'", said.get("expected_tags") or str(said.get("expected", "")))
    if kind == "extra_forbidden":
        names = list(owner.model_fields) if owner else []
        return ConfigIssue(field, f"unknown field{nearest(str(field[-1]), names)}")
    if kind == "union_tag_invalid":
        tag = said["tag"]
        field = (*field, said["discriminator"].strip("'"))
        return ConfigIssue(field, f"unknown name {tag!r}{nearest(tag, known)}")
    if kind == "literal_error" and known:
        return ConfigIssue(field, f"unknown name {came}{nearest(str(detail['input']), known)}")
    if kind in _SENTENCES:
        return ConfigIssue(field, _SENTENCES[kind].format(**said, came=came))
    if kind == "string_type" and isinstance(detail["input"], int | float | date):
        return ConfigIssue(field, f"expected text; got {came}: quote it, '{detail['input']}'")
    sentence = detail["msg"].removeprefix("Value error, ")
    sentence = sentence.replace("Input should be", "expected", 1)
    return ConfigIssue(field, sentence if kind == "value_error" else f"{sentence}; got {came}")


_GROUP = "expected a group of fields; got {came}"
_SENTENCES = {  # by the type of an error of pydantic
    "missing": "is required, but was not given",
    "union_tag_not_found": "needs the field {discriminator}",
    "literal_error": "expected {expected}; got {came}",
    "model_type": _GROUP,
    "model_attributes_type": _GROUP,
    "dict_type": _GROUP,
    "list_type": "expected a list, such as [{came}]; got {came}",
    "too_short": "expected at least {min_length} of them; got {came}",
}


def nearest(name: str, known: Sequence[str]) -> str:
    """A guess and the list of valid names, to be put behind a issue."""
    close = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{guess} known here: {', '.join(known)}"


def _locate_field(
    loc: FieldPath, model: type[pydantic.BaseModel], values: Any
) -> tuple[FieldPath, type[pydantic.BaseModel] | None]:
    """Returns the path in the config of a pydantic location, and the pydantic model that owns its
    last part. `loc`: the location; `model`: of the whole config; `values`: the config as read.

    pydantic puts the tags of unions and the names of union members among the parts; they are not in
    the file.
    """
    field: list[str | int] = []
    owner: type[pydantic.BaseModel] | None = model
    choices: list[type[pydantic.BaseModel]] = []
    for place, part in enumerate(loc):
        last = place == len(loc) - 1
        inside = (isinstance(values, dict) and part in values) or (
            isinstance(values, list) and isinstance(part, int)
        )
        chosen = [choice for choice in choices if part in _source_names(choice)]
        if chosen and not last:
            owner, choices = chosen[0], []
        elif inside or (last and owner is not None and part in owner.model_fields):
            field.append(part)
            if last:
                break
            info = owner.model_fields.get(str(part)) if owner else None
            choices = _models_in_annotation(info.annotation) if info else choices
            owner = choices[0] if len(choices) == 1 else owner
            values = cast(Any, values)[part] if inside else None
    return tuple(field), owner


def _models_in_annotation(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """Returns the pydantic models in a type annotation: [A, B] for `list[A | B]`."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in_annotation(inner)]


def _source_names(model: type[pydantic.BaseModel]) -> tuple[str, ...]:
    """Returns the values that the field `source` of a model accepts, which select it from a union;
    none if it has no such field.
    """
    field = model.model_fields.get("source")
    return get_args(field.annotation) if field else ()
