"""The command `fit`: a formula such as `wage ~ age + sex` as the config of a regression."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnkernel._core.validation import OptionError
from attnkernel.data._records import Records

from .loading import ConfigIssue, Source, apply
from .plain_yaml import ConfigError

EXAMPLE = "'wage ~ age + sex', 'wage ~ .' for all other columns, or 'wage ~ . - id'"
OVERRIDE = re.compile(r"[a-z_]+(?:\.[a-z_]+)*=.*", re.DOTALL)
# a hyphen inside a word, as in x-ray, is no minus
MINUS = re.compile(r"(`[^`]*`)|(?<![^\s`~+])-")
DOT_MINUS = re.compile(r"(?<![^\s~+])\.-")
CALL = re.compile(r"([A-Za-z_.][\w.]*)\(")
FLAGS = {
    "data.delimiter": "--delimiter",
    "data.decimal": "--decimal",
    "data.thousands": "--thousands",
    "data.encoding": "--encoding",
    "data.missing": "--missing",
    "data.categories": "--category",
    "data.dates": "--date",
    "model.periods": "--periodic",
    "model.family": "--family",
    "objective": "--objective",
}


class Term(NamedTuple):
    """A name of a formula with the sign before it; a quoted name may hold any characters."""

    sign: str
    name: str
    is_quoted: bool


class Formula(NamedTuple):
    """The label, and the terms of the inputs, in which `.` is every other column."""

    y: Term
    terms: list[Term]


def source_of(path: Path, words: Sequence[str], options: Mapping[str, Any]) -> Source:
    """Returns the config of a regression of a CSV file.

    **Arguments:** `words`: those of a formula, which a shell may have split, then
    `field.sub=value` overrides. `options`: values of fields by dotted name; None: the default.

    **Raises:** `ConfigError` for what is no formula, and for a file whose header cannot be read.
    """
    overrides = [word for word in words if OVERRIDE.fullmatch(word)]
    text = _joined([word for word in words if not OVERRIDE.fullmatch(word)])
    formula = parse(text)
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
            issue = ConfigIssue(
                ("data",),
                error.sentence,
                {f"data.{name}": of for name, of in error.options.items()},
            )
            raise ConfigError(source.explain(issue)) from None
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigError(str(error)) from None
        source.values["data"]["x"] = columns_of(formula, header, path)
    return source


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


def parse(text: str) -> Formula:
    r"""Returns the names in a formula; one with `~`, `+` or ` -` is put in backticks.

    **Raises:** `ConfigError` for another text.
    """
    marked = MINUS.sub(lambda found: found[1] or "\0", DOT_MINUS.sub(". -", text))
    parts = [part.strip() for part in re.findall(r"`[^`]*`|[~+\0]|[^`~+\0]+", marked)]
    y, tilde, *rest = [*filter(None, parts), "", ""]
    rest = [part for part in rest if part]
    rest = rest if rest[:1] == ["\0"] else ["+", *rest]
    signs, names = rest[::2], rest[1::2]
    is_formula = tilde == "~" and len(signs) == len(names) and set(signs) <= {"+", "\0"}
    if not is_formula or {"~", "+", "\0"} & {y, *names}:
        raise ConfigError(f"expected a formula, such as {EXAMPLE}; got {text!r}")
    label, *terms = (
        Term("-" if sign == "\0" else "+", name.strip("`"), name.startswith("`"))
        for sign, name in zip(("+", *signs), (y, *names), strict=True)
    )
    return Formula(label, terms)


def columns_of(formula: Formula, header: Sequence[str], path: Path) -> list[str]:
    """Returns the input columns of a formula, each once, in the order of their terms.

    A name that is not in the header of the file is kept: the reader of the file refuses it.

    **Raises:** `ConfigError` for functions and interactions, and if no column is left.
    """
    y, terms = formula
    if y.name in header or len(header) > 1:  # else the delimiter is another
        for term in (y, *terms):
            _require_name(term, header, is_label=term is y)
    kept: list[str] = []
    for sign, name, is_quoted in terms:
        is_rest = name == "." and not is_quoted
        named = [column for column in header if column != y.name] if is_rest else [name]
        if "" in named:
            place = list(header).index("") + 1
            raise ConfigError(
                f"{path}: column {place} has no name in the header: give it one, or name the "
                f"columns of the fit in place of '.'"
            )
        if sign == "+":
            kept += [column for column in dict.fromkeys(named) if column not in kept]
        elif is_rest or name in header:
            kept = [column for column in kept if column not in named]
        else:
            raise ConfigError(
                f"{path}: there is no column {name!r} to leave out; its columns are "
                f"{', '.join(map(repr, header))}"
            )
    if not kept and y.name in header:
        raise ConfigError(f"{path}: the formula leaves no column of inputs")
    return kept or [y.name]  # the reader says what is wrong with the header


def _require_name(term: Term, header: Sequence[str], *, is_label: bool) -> None:
    """Raises `ConfigError` for a term that is an expression of R in columns of the header."""
    name = term.name
    if term.is_quoted or name in header or name == ".":
        return
    if name in ("0", "1"):
        raise ConfigError(
            f"a kernel smoother has no intercept to add or to leave out: drop {name!r} from the "
            f"formula"
        )
    inside = [c for c in header if c and re.search(rf"(?<![\w.]){re.escape(c)}(?![\w.])", name)]
    if not inside or not re.search(r"[:*^|()]|%in%", name):
        return
    call, columns = CALL.match(name), " + ".join(inside)
    if call and is_label:
        advice = f"add a column of {name} to the file, and name that"
    elif call and call[1] in ("factor", "as.factor", "C"):
        advice = (
            f"columns of words are categories; for numbers, write {columns} --category {inside[0]}"
        )
    elif call:
        advice = (
            f"a kernel smoother follows the curve of a column by itself: write {columns}, or add a "
            f"column of {name} to the file"
        )
    else:
        advice = (
            f"a kernel smoother of several columns has their interactions by itself: write "
            f"{columns}"
        )
    raise ConfigError(f"expected names of columns in the formula; got {name!r}: {advice}")


def _joined(words: Sequence[str]) -> str:
    """Returns words as one text; a shell replaces a word `~` by the home directory."""
    home = os.path.expanduser("~")
    return " ".join("~" if word == home else word for word in words)
