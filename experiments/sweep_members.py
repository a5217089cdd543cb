"""The members of a sweep: every combination of `field=a,b,c` and `seed=0..99`."""

import copy
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import config_source
from .provenance import digest_of
from .runner import check, study_of
from .study import Study

MAX_MEMBERS = 100_000
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")


class Member(NamedTuple):
    """One run of a sweep."""

    id: str
    asked: dict[str, str]  # of each axis, as it was written
    study: Study


def axes_of(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Overrides that all members share, and the values of each field that they differ in.

    Commas inside brackets, braces or quotes belong to a value.
    """
    shared, axes = [], {}
    for argument in arguments:
        field, equals, text = argument.partition("=")
        if not equals:
            raise config_source.ConfigError(
                f"command line '{argument}': expected field=a,b,c or seed=0..99"
            )
        values = [
            value for part in _split_at_commas(text) for value in _expand_range(argument, part)
        ]
        if len(values) == 1:
            shared.append(f"{field}={values[0]}")
        elif field in axes:
            raise config_source.ConfigError(f"command line '{argument}': {field} is given twice")
        else:
            axes[field] = list(dict.fromkeys(values))
    return shared, axes


def _split_at_commas(text: str) -> list[str]:
    """Splits text at the commas that are outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (letter in "[{") - (letter in "]}") if not quote else 0
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _expand_range(argument: str, text: str) -> list[str]:
    """Returns "0", "1", ..., "9" for the text "0..9"; other text as the only item. Raises
    `ConfigError`, which quotes `argument` (the whole argument of the command line), for a range
    that descends or has more than `MAX_MEMBERS` numbers.
    """
    found = _RANGE.fullmatch(text.strip())
    if not found:
        return [text]
    first, last = map(int, found.groups())
    if not 0 <= last - first < MAX_MEMBERS:
        raise config_source.ConfigError(
            f"command line '{argument}': expected a range upwards, of up to {MAX_MEMBERS} numbers"
        )
    return [str(number) for number in range(first, last + 1)]


def members_of(path: Path, arguments: Sequence[str]) -> tuple[list[Member], dict[str, list[str]]]:
    """All members in order, each a valid config; those of equal configs are one.

    **Raises:** `ConfigError`.
    """
    shared, axes = axes_of(arguments)
    if not axes:
        raise config_source.ConfigError(
            "a sweep needs a field of several values, such as seed=0..9 or hold_out=[10],[50]"
        )
    number = int(np.prod([len(values) for values in axes.values()], dtype=object))
    if number > MAX_MEMBERS:
        raise config_source.ConfigError(
            f"this sweep has {number} members; expected up to {MAX_MEMBERS}"
        )
    source = config_source.read(path, shared)
    members: dict[str, Member] = {}
    checked = set()
    for values in itertools.product(*axes.values()):
        asked = dict(zip(axes, values, strict=True))
        overrides = [f"{field}={value}" for field, value in asked.items()]
        own = config_source.Source(copy.deepcopy(source.values), dict(source.locations))
        for override in overrides:
            config_source.apply(override, own)
        study = study_of(own)
        but_seed = config_source.dump(study.model_copy(update={"seed": 0}))
        if but_seed not in checked:  # faults that need the data, of one seed
            check(study, own)
            checked.add(but_seed)
        digest = digest_of(study)[:16]
        members.setdefault(digest, Member(digest, asked, study))
    return list(members.values()), axes


def words(asked: dict[str, str]) -> str:
    """Values as `field=value`, with commas."""
    return ", ".join(f"{field}={value}" for field, value in asked.items())
