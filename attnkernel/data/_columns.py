"""The columns of a CSV file, cell by cell: numbers, dates and words become numbers."""

import dataclasses
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np

from .._core.validation import OptionError

MISSING = frozenset({"", ".", "NA", "N/A", "#N/A", "<NA>", "n/a", "NaN", "nan", "null", "NULL"})
DASHES = frozenset({"-", "--", "–", "—", "?", "..", "...", "None"})  # missing, except among words
SPREADSHEET_ERROR = re.compile(r"#[A-Z0-9/]+[!?]")  # such as #DIV/0!: missing too
FIRST_DAY = datetime(1, 1, 1)
BLANKS = " \u00a0\u202f\u2009"  # between thousands: plain, no-break, narrow no-break, thin
NUMBER_WITH_MARKS = re.compile(r"[-+]?[\d.,]*\d[\d.,]*(?:[eE][-+]?\d+)?")
THOUSANDS = re.compile(rf"[-+\u2212]?\d{{1,3}}(?:([.,'’{BLANKS}])\d{{3}})(?:\1\d{{3}})*([.,]\d*)?")
WITH_SIGN = re.compile(r"[$€£¥]?\s*([-+]?\d[\d.,]*)\s*[%$€£¥]?")
DAYS_SINCE = re.compile(r"(.*\S)\s*\(days since (\d{4}-\d{2}-\d{2})\)", re.DOTALL)  # a label
DATE_FORMATS = [
    day + time
    for time in ("", " %H:%M", " %H:%M:%S")
    for day in (
        *("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%Y/%m/%d", "%Y.%m.%d"),
        *("%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%d-%m-%y", "%Y-%m", "%d-%b-%Y", "%d-%b-%y"),
        *("%b %d %Y", "%b %d, %Y", "%d %b %Y", "%B %d %Y", "%B %d, %Y", "%d %B %Y"),
        *("%b %Y", "%B %Y"),
    )
] + ["%H:%M", "%H:%M:%S"]


@dataclasses.dataclass
class Column:
    """A column that is read cell by cell, each cell as a number.

    Its kind, unless given, is that of its first cell that is not missing: a number, an ISO 8601
    date or a word. All further cells must be of this kind.

    **Arguments:** `decimal`: the decimal mark; `thousands`: that between thousands; `kind`: given
    for columns that an option names; `levels`: the words in their order, None for those of the
    cells; `date_format`: as for `datetime.strptime`, None for ISO 8601; `may_hold_words`: whether a
    word makes it a column of categories, where the kind is not given; `is_weight`: whether negative
    numbers are refused; `is_label`: whether it is the label, for the advice in errors.
    """

    name: str
    decimal: str
    thousands: str
    kind: Literal["number", "date", "category"] | None = None
    levels: Sequence[str] | None = None
    date_format: str | None = None
    may_hold_words: bool = False
    is_label: bool = False
    is_weight: bool = False

    def __post_init__(self) -> None:
        self._is_given, self.is_ordered = self.kind is not None, self.levels is not None
        self._codes = {word: code for code, word in enumerate(self.levels or ())}
        self._is_finished, self._first_day = False, 0
        self._has_zone: bool | None = None
        self._first_dash: str | None = None  # before the kind is known

    def is_missing(self, cell: str) -> bool:
        """Whether a cell is empty or marks a missing value, such as `NA`, a dash or `#DIV/0!`.

        In a column of categories a dash is a word. A word among the given levels is never missing.
        Stores a dash that comes before the kind is known, for an error.
        """
        if cell in DASHES and self.kind != "category":
            if self.kind is None:
                self._first_dash = cell
            return True
        is_level = self.is_ordered and cell in self._codes
        return (cell in MISSING or bool(SPREADSHEET_ERROR.fullmatch(cell))) and not is_level

    def read(self, cell: str) -> float:
        """Returns the next cell, given without blanks around it, as its value, code or days.

        Codes of words and days since 0001-01-01 are preliminary until `finish`. After it, codes
        and the first day are final, and a new word is refused.

        **Raises:** `OptionError` for a cell that is missing or of another kind, for a word that is
        not among the given ones, and for a negative weight.
        """
        if self.kind is None and not self.is_missing(cell):
            self.kind = self._kind_of(cell)
            if self.kind == "category" and self._first_dash is not None:
                raise OptionError(
                    f"got the word {cell!r}, and {self._first_dash!r} in the rows before, "
                    f"which is a word or a missing cell. Write NA where it is missing.",
                    categories=[self.name],
                )
        if self.kind == "category":
            return self._code(cell)
        if self.kind == "date":
            return self._days(cell)
        value = self._number(cell)
        if not math.isfinite(value):
            raise self._number_error(cell)
        if self.is_weight and value < 0:
            raise OptionError(f"expected a weight, a number from 0; got {cell!r}.")
        return value

    def finish(self, values: np.ndarray, label: str) -> tuple[str, tuple[str, ...] | None]:
        """Makes the numbers that were read final, in place, and returns the axis label and words.

        `values`: the numbers. Codes get the order of the given levels, or else the alphabetical
        order of the words, or by value if all are numbers. Dates become days since the day of the
        earliest date.

        The axis label is `label`, with the first day added for dates. The words are in the order
        of their codes, None for a column of numbers or dates. `ValueError` if the column was
        found to hold words, and no two rows have the same word.
        """
        self._is_finished = True
        if self.kind == "category":
            words = list(self._codes)
            if not self._is_given and len(words) == len(values):
                raise ValueError(
                    f"Column {self.name!r} holds another word in each of its {len(values)} rows, "
                    f"such as a name: rows of a category are averaged. Leave it out of x."
                )
            order, numbers = range(len(words)), [_to_number(word, ".") for word in words]
            if not self.is_ordered:  # by value if all are numbers, else alphabetically
                is_number = all(map(math.isfinite, numbers))
                order = sorted(order, key=(numbers if is_number else words).__getitem__)
            code = np.empty(len(words))
            code[list(order)] = np.arange(len(words))
            values[:] = code[values.astype(int)]
            self._codes = {words[i]: code for code, i in enumerate(order)}
            return label, tuple(self._codes)
        if self.kind == "date":
            self._first_day = math.floor(values.min())
            values -= self._first_day
            day = (FIRST_DAY + timedelta(days=self._first_day)).date().isoformat()
            return f"{label} (days since {day})", None
        return label, None

    def is_zero(self, cell: str) -> bool:
        """Whether a cell is the number 0."""
        return self._number(cell) == 0.0

    def _kind_of(self, cell: str) -> Literal["number", "date", "category"]:
        """Returns the kind of the column, given its first cell that is not missing.

        A cell of no recognised kind gives "number", and so does a word where words are not
        allowed: reading the cell as a number then raises.
        """
        if math.isfinite(self._number(cell)):
            return "number"
        if "-" in cell and _date(cell, None) is not None:
            return "date"
        is_infinite = re.fullmatch(r"[-+]?inf(inity)?", cell.lower())
        is_word = re.search(r"[^\W\d_]", cell) and not is_infinite and _date_format(cell) is None
        return "category" if self.may_hold_words and is_word else "number"

    def _number(self, cell: str) -> float:
        """Returns the number in a cell; NaN if the cell is not a number."""
        return _to_number(cell, self.decimal, self.thousands)

    def _code(self, cell: str) -> float:
        """Returns the code of a word, from 0. A new word gets the next code.

        `OptionError` for a missing cell, for a number unless the kind was given, and for a new word
        where the words were given or after `finish`.
        """
        if self.is_missing(cell):
            raise OptionError(f"expected a word, got {_shown(cell)}.", missing="drop")
        if self.is_ordered and not self._is_finished and cell not in self._codes:
            raise OptionError(
                f"expected one of {', '.join(map(repr, self._codes))}; got {cell!r}. Add "
                f"it to the words of {self.name!r}, at its place in their order."
            )
        if self._is_finished and cell not in self._codes:
            raise OptionError(
                f"expected one of {', '.join(map(repr, self._codes))}, the words of the "
                f"rows that were fitted; got {cell!r}. Leave that cell empty, or that row out."
            )
        if not self._is_given and math.isfinite(self._number(cell)):
            raise OptionError(
                f"expected a word, as in the rows before; got the number {cell!r}.",
                categories=[self.name],
            )
        return float(self._codes.setdefault(cell, len(self._codes)))

    def _days(self, cell: str) -> float:
        """Returns a date in days since 0001-01-01, or after `finish` since the first day.

        A date with a time zone is converted to UTC. `OptionError` for a cell that is no date of the
        column's format, and for a date with a zone among dates without, or the reverse.
        """
        form = f"of the form {self.date_format!r}" if self.date_format else "such as 2021-03-28"
        moment = _date(cell, self.date_format)
        if self.is_missing(cell):
            raise OptionError(f"expected a date, got {_shown(cell)}.", missing="drop")
        if moment is None:
            guess = _date_format(cell)
            is_other = guess is not None or _date(cell, None) is not None
            if self._has_zone is not None and is_other:  # dates of this form were read
                raise OptionError(
                    f"expected a date {form}, as in the rows before; got {cell!r}. Write "
                    f"all dates of the column in one format."
                )
            options = {"dates": {self.name: guess}} if guess and guess != self.date_format else {}
            raise OptionError(f"expected a date {form}; got {cell!r}.", **options)
        has_zone = moment.tzinfo is not None
        if self._has_zone not in (None, has_zone):
            raise OptionError(
                f"{cell!r} has {'a' if has_zone else 'no'} time zone, unlike the rows "
                f"before. Write all dates with one, or none."
            )
        self._has_zone = has_zone
        if has_zone:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        return (moment - FIRST_DAY) / timedelta(days=1) - self._first_day

    def _number_error(self, cell: str) -> OptionError:
        """Returns the error for a cell that is no finite number, with the option that may help."""
        sentence = f"expected a finite number, got {_shown(cell)}."
        if self.is_missing(cell):
            return OptionError(sentence, missing="drop")
        if guess := _date_format(cell):
            as_words = {"categories": [self.name]} if re.search(r"[A-Za-z]", cell) else {}
            return OptionError(sentence, dates={self.name: guess}, **as_words)
        grouped = THOUSANDS.fullmatch(cell)
        if grouped and grouped[1] != self.decimal:
            mark, point = " " if grouped[1] in BLANKS else grouped[1], (grouped[2] or "")[:1]
            if mark == self.thousands:
                return OptionError(sentence, decimal=point)
            is_decimal = mark in ".," and not point and cell.count(mark) == 1
            sentence += f" If {mark!r} is between thousands, say so." * is_decimal
            return OptionError(
                sentence, **({"decimal": mark} if is_decimal else {}), thousands=mark
            )
        marks = re.sub(r"[^.,]", "", cell)
        if marks and NUMBER_WITH_MARKS.fullmatch(cell):
            is_decimal = marks[-1] != self.decimal and marks.count(marks[-1]) == 1
            return OptionError(sentence, **({"decimal": marks[-1]} if is_decimal else {}))
        if "inf" in cell.lower() or not re.search(r"\D", cell):
            return OptionError(f"{sentence} Drop or fill that row.")
        if WITH_SIGN.fullmatch(cell):
            return OptionError(f"{sentence} Write the number alone, without its unit.")
        if self.is_weight:
            return OptionError(f"{sentence} A weight is a number from 0: correct that cell.")
        if self.is_label:
            return OptionError(f"{sentence} The label is a number: drop that row, or write codes.")
        return OptionError(f"{sentence} Correct that cell.", categories=[self.name])


def _to_number(cell: str, decimal: str, thousands: str = "") -> float:
    """Returns the number in a cell, with these marks; NaN if the cell is not a number.

    ```python
    >>> from attnkernel.data._columns import _to_number
    >>> [_to_number(cell, ".", ",") for cell in ("1,250", "-12,345.5", "0,512")]
    [1250.0, -12345.5, nan]

    ```
    """
    cell = cell.replace("\u2212", "-")  # a typographic minus
    whole, point, rest = cell.partition(decimal)
    if thousands:
        mark = f"[{BLANKS if thousands == ' ' else thousands}]"
        if re.fullmatch(rf"[-+]?[1-9]\d{{0,2}}(?:{mark}\d{{3}})+", whole):
            whole = re.sub(mark, "", whole)
    if "_" in cell or (decimal == "," and "." in whole + rest):
        return math.nan
    try:
        return float(f"{whole}{'.' if point else ''}{rest}")
    except ValueError:
        return math.nan


def _date(cell: str, date_format: str | None) -> datetime | None:
    """Returns the date in a cell, by default in the format of ISO 8601; None for other cells."""
    try:
        if date_format is None:
            return datetime.fromisoformat(cell)
        return datetime.strptime(cell, date_format)
    except ValueError:
        return None


def _date_format(cell: str) -> str | None:
    """Returns the first of `DATE_FORMATS` that reads a cell: a date such as 28.03.2021 or 3/28/21,
    or a time of day; None for other cells, among them dates of ISO 8601."""
    if not re.search(r"\d[\d\W]*[\W]|[^\W\d]+ ?\d", cell):
        return None
    return next((each for each in DATE_FORMATS if _date(cell, each) is not None), None)


def _shown(cell: str) -> str:
    """Returns a cell as errors quote it."""
    return repr(cell) if cell else "an empty cell"
