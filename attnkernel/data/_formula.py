"""Formulas such as `wage ~ age + sex`: which column is the label, and which are inputs.

A formula names columns. It has no functions and no interactions, which a kernel smoother has by
itself; the sentence of an error says what to write in their place.
"""

import re
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from .._core.pandas_frames import holds_numbers, is_frame, is_series

EXAMPLE = "'wage ~ age + sex', 'wage ~ .' for all other columns, or 'wage ~ . - id'"
# a hyphen inside a word, as in x-ray, is no minus
MINUS = re.compile(r"(`[^`]*`)|(?<![^\s`~+])-")
DOT_MINUS = re.compile(r"(?<![^\s~+])\.-")
CALL = re.compile(r"([A-Za-z_.][\w.]*)\(")


class Term(NamedTuple):
    """A name of a formula with the sign before it; a quoted name may hold any characters."""

    sign: str
    name: str
    is_quoted: bool


class Formula(NamedTuple):
    """The label, and the terms of the inputs, in which `.` is every other column."""

    y: Term
    terms: list[Term]


def parse_formula(text: str) -> Formula:
    r"""Returns the label and the terms of a formula.

    A name that contains `~`, `+` or ` -` must be written in backticks.

    **Raises:** `ValueError` for a text that is not of the form `label ~ input + input - input`.
    """
    marked = MINUS.sub(lambda found: found[1] or "\0", DOT_MINUS.sub(". -", text))
    parts = [part.strip() for part in re.findall(r"`[^`]*`|[~+\0]|[^`~+\0]+", marked)]
    y, tilde, *rest = [*filter(None, parts), "", ""]
    rest = [part for part in rest if part]
    rest = rest if rest[:1] == ["\0"] else ["+", *rest]
    signs, names = rest[::2], rest[1::2]
    is_formula = tilde == "~" and len(signs) == len(names) and set(signs) <= {"+", "\0"}
    if not is_formula or {"~", "+", "\0"} & {y, *names}:
        raise ValueError(f"expected a formula, such as {EXAMPLE}; got {text!r}")
    label, *terms = (
        Term("-" if sign == "\0" else "+", name.strip("`"), name.startswith("`"))
        for sign, name in zip(("+", *signs), (y, *names), strict=True)
    )
    return Formula(label, terms)


def columns_of_formula(
    formula: Formula, header: Sequence[Any], where: str, others: Sequence[str | None] = ()
) -> list[Any]:
    """Returns the input columns of a formula, each once, in the order of their terms.

    **Arguments:** `header`: the names of all columns; a name that is not among them is kept, for
    the reader of the data to refuse. `where`: the table, as errors name it. `others`: columns that
    `.` does not mean, such as weights.

    If the header lacks the label and no input is left, the list holds the label, for the reader of
    the data to refuse.

    **Raises:** `ValueError` for functions, interactions and intercepts; for a column after a minus
    that is not in the header; if `.` means a column without a name; and if no column is left.
    """
    y, terms = formula
    if y.name in header or len(header) > 1:  # else the delimiter of a file is another
        for term in (y, *terms):
            _require_name(term, header, is_label=term is y)
    kept: list[Any] = []
    for sign, name, is_quoted in terms:
        is_rest = name == "." and not is_quoted
        named = [c for c in header if c not in (y.name, *others)] if is_rest else [name]
        if "" in named:
            place = list(header).index("") + 1
            raise ValueError(
                f"{where}: column {place} has no name in the header: give it one, or name the "
                f"columns of the fit in place of '.'"
            )
        if sign == "+":
            kept += [column for column in dict.fromkeys(named) if column not in kept]
        elif is_rest or name in header:
            kept = [column for column in kept if column not in named]
        else:
            raise ValueError(
                f"{where}: there is no column {name!r} to leave out; its columns are "
                f"{', '.join(map(repr, header))}"
            )
    if not kept and y.name in header:
        raise ValueError(f"{where}: the formula leaves no column of inputs")
    return kept or [y.name]  # the reader says what is wrong with the header


def _require_name(term: Term, header: Sequence[Any], *, is_label: bool) -> None:
    """Raises `ValueError` for an expression in columns of the header, such as log(age), and for
    the intercepts 0 and 1.

    Other names that are not in the header pass: the reader of the data refuses them. `is_label`:
    whether the term is the label, for the advice in the error.
    """
    name = term.name
    if term.is_quoted or name in header or name == ".":
        return
    if name in ("0", "1"):
        raise ValueError(
            f"a kernel smoother has no intercept to add or to leave out: drop {name!r} from the "
            f"formula"
        )
    words = [column for column in header if column and isinstance(column, str)]
    inside = [c for c in words if re.search(rf"(?<![\w.]){re.escape(c)}(?![\w.])", name)]
    if not inside or not re.search(r"[:*^|()]|%in%", name):
        return
    call, columns = CALL.match(name), " + ".join(inside)
    if call and is_label:
        advice = f"add a column of {name}, and name that"
    elif call and call[1] in ("factor", "as.factor", "C"):
        advice = (
            f"columns of words are categories; for numbers, write {columns} and --category "
            f'{inside[0]}, or in a frame .astype("category")'
        )
    elif call:
        advice = (
            f"a kernel smoother follows the curve of a column by itself: write {columns}, or add a "
            f"column of {name}"
        )
    else:
        advice = (
            f"a kernel smoother of several columns has their interactions by itself: write "
            f"{columns}"
        )
    raise ValueError(f"expected names of columns in the formula; got {name!r}: {advice}")


def frame_by_formula(formula: str, frame: Any) -> tuple[Any, Any]:
    """Returns the inputs and the label that a formula names in a frame of pandas: a frame and a
    `Series`. Input columns of Booleans, or of text that is not all numbers, become categories.

    **Raises:** `ValueError` if the text is no formula, `frame` is no `DataFrame`, or a name is not
    that of exactly one column; also as `columns_of_formula`.
    """
    if not is_frame(frame) or is_series(frame):
        raise ValueError(
            f"The formula {formula!r} needs a frame of pandas with its columns: "
            f'ak.fit(frame, "y ~ x"); got {type(frame).__name__}.'
        )
    parsed = parse_formula(formula)
    header: list[Hashable] = list(frame.columns)
    inputs = columns_of_formula(parsed, header, "the frame")
    if unknown := [name for name in (parsed.y.name, *inputs) if header.count(name) != 1]:
        raise ValueError(
            f"The frame has {header.count(unknown[0]) or 'no'} columns {unknown[0]!r}, which the "
            f"formula {formula!r} names; its columns are {header}."
        )
    x = frame[inputs]
    kinds = {name: getattr(column.dtype, "kind", "O") for name, column in x.items()}
    words = [
        name
        for name, kind in kinds.items()
        if kind == "b" or (kind == "O" and not holds_numbers(x[name]))
    ]
    return x.astype(dict.fromkeys(words, "category")), frame[parsed.y.name]
