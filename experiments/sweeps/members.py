"""The members of a sweep: every combination of `field=a,b,c`, `seed=0..99` and the section `sweep`
of the config. The command line wins: a field that it names is taken from there alone.
"""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from ..config import ConfigError, loading, plain_yaml, shortened
from ..runs import check, digest_of, study_of
from ..runs.output_log import show_progress
from ..studies import Study
from .section import MAX_MEMBERS, Rounds, Sweep, as_text, range_of, take_section


class Member(NamedTuple):
    """One run of a sweep."""

    id: str
    asked: dict[str, str]  # of each axis, as it was written
    study: Study


class Setting(NamedTuple):
    """A value of a field, as an override has it, and where it is written."""

    text: str
    location: str | None = None  # None: on the command line


Combination = dict[str, Setting]  # by field


class Plan(NamedTuple):
    """What a sweep computes."""

    source: loading.Source  # of the config that the members share
    axes: dict[str, list[str]]  # the values of each field that they differ in
    combinations: list[Combination]
    rounds: Rounds | None

    def members(
        self,
        combinations: Sequence[Combination] | None = None,
        budget: int | None = None,
        console: Console | None = None,
    ) -> list[Member]:
        """The members of combinations (default: of all), each a valid config; those of equal
        configs are one. `budget`: the value of the field that grows with the rounds; `console`
        shows how many are valid so far.

        **Raises:** `ConfigError`.
        """
        combinations = self.combinations if combinations is None else combinations
        more = {}
        if self.rounds is not None:
            budget = self.rounds.schedule(1)[0][0] if budget is None else budget
            place = self.source.location(("sweep", "rounds", "budget"))
            more = {self.rounds.budget: Setting(str(budget), place)}
        members: dict[str, Member] = {}
        checked = set()
        console = Console(quiet=True) if console is None else console
        with show_progress(console, "members", len(combinations), after=2.0) as tick:
            for done, combination in enumerate(combinations, 1):
                settings = combination | more
                own = loading.Source(copy.deepcopy(self.source.values), dict(self.source.locations))
                # the fields of another source are set after it
                for field in sorted(settings, key=lambda field: field.split(".")[-1] != "source"):
                    text, location = settings[field]
                    loading.apply(f"{field}={text}", own, location)
                study = study_of(own)
                but_seed = study.model_copy(update={"seed": 0}).model_dump_json()
                if but_seed not in checked:  # issues that need the data, of one seed
                    check(study, own)
                    checked.add(but_seed)
                digest = digest_of(study)[:16]
                asked = {field: setting.text for field, setting in settings.items()}
                members.setdefault(digest, Member(digest, asked, study))
                tick(done, "valid")
        return list(members.values())


def axes_of(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Overrides that all members share, and the values of each field that they differ in.

    Commas inside brackets, braces or quotes belong to a value.
    """
    shared, axes = [], {}
    for argument in arguments:
        field, equals, text = argument.partition("=")
        if not equals:
            raise ConfigError(f"command line '{argument}': expected field=a,b,c or seed=0..99")
        values = [
            value
            for part in _split_at_commas(text, argument)
            for value in _expand_range(argument, part)
        ]
        if len(values) == 1:
            shared.append(f"{field}={values[0]}")
        elif field in axes:
            raise ConfigError(f"command line '{argument}': {field} is given twice")
        else:
            axes[field] = list(dict.fromkeys(values))
    return shared, axes


def _split_at_commas(text: str, argument: str) -> list[str]:
    """Splits text at the commas outside of brackets and quotes: the items of a list in YAML."""
    whole = f"[{text}]"
    items: Any = plain_yaml.parse(whole, f"command line '{shortened(argument)}'")
    return [whole[item.start_mark.index : item.end_mark.index] for item in items.value] or [text]


def _expand_range(argument: str, text: str) -> list[str]:
    """Returns "0", "1", ..., "9" for the text "0..9"; other text as the only item. Raises
    `ConfigError`, which quotes `argument` (the whole argument of the command line).
    """
    try:
        numbers = range_of(text)
    except ValueError as error:
        raise ConfigError(f"command line '{argument}': {error}") from None
    return [text] if numbers is None else list(map(str, numbers))


def read_plan(path: Path, arguments: Sequence[str]) -> Plan:
    """The plan of a sweep: the section `sweep` of a config, and the words of the command line.

    **Raises:** `ConfigError`.
    """
    shared, axes = axes_of(arguments)
    source = loading.read(path, shared)
    section = take_section(source)
    given = [argument.partition("=")[0] for argument in arguments]
    parts = [] if section is None else list(_parts_of_section(section, source, given))
    parts += [[{field: Setting(text)} for text in values] for field, values in axes.items()]
    if not parts:
        raise ConfigError(
            "a sweep needs a field of several values, such as seed=0..9 or hold_out=[10],[50]"
        )
    number = int(np.prod([len(part) for part in parts], dtype=object))
    if number > MAX_MEMBERS:
        raise ConfigError(f"this sweep has {number} members; expected up to {MAX_MEMBERS}")
    combinations = [
        {field: setting for choice in choices for field, setting in choice.items()}
        for choices in itertools.product(*parts)
    ]
    found: dict[str, dict[str, None]] = {}
    for combination in combinations:
        for field, setting in combination.items():
            found.setdefault(field, {})[setting.text] = None
    rounds = None if section is None else section.rounds
    if rounds is not None and rounds.budget in given:
        place = source.location(("sweep", "rounds", "budget"))
        raise ConfigError(
            f"{place}: sweep.rounds.budget: {rounds.budget} is set by the command line"
        )
    return Plan(
        source, {field: list(texts) for field, texts in found.items()}, combinations, rounds
    )


def _parts_of_section(
    section: Sweep, source: loading.Source, given: Sequence[str]
) -> Iterator[list[Combination]]:
    """Yields the choices of each part of the section `sweep`, without the fields in `given` and
    those within them."""
    for choices in section.parts():
        kept: list[Combination] = [
            {
                field: Setting(as_text(value), source.location(("sweep", *place)))
                for place, (field, value) in choice.items()
                if not any(f"{field}.".startswith(f"{name}.") for name in given)
            }
            for choice in choices
        ]
        distinct = {tuple(choice.items()): choice for choice in kept if choice}
        if distinct:
            yield list(distinct.values())


def words(asked: Mapping[str, str]) -> str:
    """Values as `field=value`, with commas."""
    return ", ".join(f"{field}={value}" for field, value in asked.items())
