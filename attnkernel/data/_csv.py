"""Named columns of a CSV file as a `Dataset`; the bundled files among them."""

import codecs
import csv
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from .._core.arrays import precision_loss
from .._core.validation import as_names, as_path, require_choice
from ._dataset import Dataset

# name: (inputs, label, what to write on the axes)
_BUNDLED = {
    "cps71": (("age",), "logwage", {"age": "age (years)", "logwage": "log of wage"}),
    "ethanol": (
        ("E",),
        "NOx",
        {"E": "equivalence ratio", "C": "compression ratio", "NOx": "NOx (µg/J)"},
    ),
    "faithful": (
        ("eruptions",),
        "waiting",
        {"eruptions": "eruption (min)", "waiting": "waiting (min)"},
    ),
    "geyser": (
        ("waiting",),
        "duration",
        {"waiting": "waiting (min)", "duration": "duration (min)"},
    ),
    "mcycle": (
        ("times",),
        "accel",
        {"times": "time after impact (ms)", "accel": "head acceleration (g)"},
    ),
    "wage1": (
        ("educ", "exper", "tenure"),
        "lwage",
        {
            "educ": "education (years)",
            "exper": "experience (years)",
            "tenure": "tenure (years)",
            "lwage": "log of wage",
        },
    ),
}
_CATEGORIES = ("female", "married")  # of wage1: the columns of words in these files

BUNDLED: tuple[str, ...] = tuple(_BUNDLED)


_OTHER = re.compile(r"[;\t|]")  # what else separates columns


def load(name: str, *, x: str | Sequence[str] | None = None, y: str | None = None) -> Dataset:
    """A data set that comes with the package: one of `BUNDLED`.

    **Arguments:** `name`; `x`, `y`: columns, where others than the usual ones are wanted.

    **Source:** see the README beside the files.
    """
    require_choice("name", name, BUNDLED)
    inputs, label, names = _BUNDLED[name]
    wanted = inputs if x is None else as_names("x", x)
    words = tuple(column for column in wanted if name == "wage1" and column in _CATEGORIES)
    with resources.as_file(resources.files("attnkernel.data") / "csv" / f"{name}.csv") as path:
        return read_csv(path, x=wanted, y=label if y is None else y, names=names, categories=words)


def read_csv(
    path: str | Path,
    *,
    x: str | Sequence[str],
    y: str,
    names: dict[str, str] | None = None,
    categories: Sequence[str] = (),
) -> Dataset:
    """Columns of a CSV file with a header line.

    **Arguments:**

    - `path`: the file: comma-separated, UTF-8, decimal points. It is read line by line, so that it
      may be large: at its most, reading takes 27 bytes a wanted column of a row, and little else.
    - `x`: the input column, or several; `y`: the label column.
    - `names`: what to write on the axes, where the column's name does not say it.
    - `categories`: the input columns whose cells are words: they become codes 0, 1, ... in
      alphabetical order, for categorical kernels such as `ak.AitchisonAitken`. No column becomes
      codes unasked.

    **Returns:** a `Dataset`, rows in the order of the file; its `categories` say which word each
    code is.

    **Raises:** `ValueError` if the file is missing or empty, a column is not there (those that
    are, are listed), a number is missing, not a number or not finite (row and column are named),
    fewer than 3 rows, or all inputs are the same.
    """
    path = as_path("path", path)
    columns, categories = as_names("x", x), as_names("categories", categories)
    if names is not None and not isinstance(names, Mapping):
        raise ValueError(f"names must be a dictionary, from columns to text; got {names!r}.")
    if not isinstance(y, str):
        raise ValueError(f"y must be the name of a column; got {y!r}.")
    if not columns:
        raise ValueError("x is empty: name at least one input column.")
    if y in columns:
        raise ValueError(f"Column {y!r} is both input and label; choose another for one of them.")
    if len(set(columns)) < len(columns):
        raise ValueError(f"An input column is named twice among {', '.join(map(repr, columns))}.")
    if strange := [column for column in categories if column not in columns]:
        raise ValueError(
            f"categories must be among the input columns {', '.join(map(repr, columns))}; got "
            f"{', '.join(map(repr, strange))}."
        )
    table, begins, words = _columns(Path(path), (*columns, y), tuple(categories))
    if len(table) < 3:
        raise ValueError(f"{path} has {len(table)} rows of data; a fit needs at least 3.")
    if np.all(table[:, :-1] == table[:1, :-1]):
        raise ValueError(
            f"{path}: the input {', '.join(columns)} is constant ({table[0, :-1].tolist()} in "
            f"every row); no lengthscale can be told from it."
        )
    shown = [(names or {}).get(column, column) for column in (*columns, y)]
    with np.errstate(over="ignore"):
        values = jnp.asarray(table)
    if not np.all(np.isfinite(values)):
        row, column = np.argwhere(~np.isfinite(values))[0]
        where = f"{path}, {_place(int(row), begins[row])}, column {(*columns, y)[column]!r}"
        raise ValueError(
            f"{where}: {table[row, column]} is too large for {values.dtype}. Use float64 "
            f"(precision: float64, or jax_enable_x64)."
        )
    for place, column in enumerate(columns):
        if sentence := precision_loss(table[:, place], np.asarray(values)[:, place]):
            raise ValueError(
                f"{path}, column {column!r}: {sentence} Use float64 (precision: float64, or "
                f"jax_enable_x64), or subtract what they have in common."
            )
    levels = tuple(words.get(column) for column in columns) if words else ()
    return Dataset(values[:, :-1], values[:, -1], tuple(shown[:-1]), shown[-1], categories=levels)


def _columns(
    path: Path, wanted: Sequence[str], categories: Sequence[str]
) -> tuple[np.ndarray, Sequence[int], dict[str, tuple[str, ...]]]:
    """The wanted columns as numbers, shape (rows, columns), the line of each row, and words."""
    lines = _Lines(path)
    header = next(lines, None)
    if header is None:
        raise ValueError(f"{path} is empty; expected a header line with the names of the columns.")
    names = [name.strip() for name in header]
    if missing := [column for column in wanted if column not in names]:
        of = "y" if missing == [wanted[-1]] else "x"
        raise ValueError(
            f"{path} has no column for {of}: {', '.join(map(repr, missing))}; "
            f"its columns are {', '.join(map(repr, names))}."
            + (" Separate them by commas." if len(names) == 1 and _OTHER.search(names[0]) else "")
        )
    for column in wanted:
        if names.count(column) > 1:
            raise ValueError(f"{path} has column {column!r} twice; rename one of them.")
    numbers, begins = array("d"), array("q")
    words: dict[str, list[str]] = {column: [] for column in categories}
    for cells in lines:
        place = _place(len(begins), lines.number)
        if len(cells) != len(names):
            raise ValueError(
                f"{path}, {place}: {len(cells)} cells where the header has {len(names)}. Is the "
                f"separator a comma, and the decimal mark a point?"
            )
        by_name = dict(zip(names, cells, strict=True))
        for column, found in words.items():
            if not by_name[column].strip():
                raise ValueError(
                    f"{path}, {place}, column {column!r}: expected a word, got an empty cell. "
                    f"Drop or fill that row."
                )
            found.append(by_name[column].strip())
            by_name[column] = "0"
        numbers.extend(_number(by_name[c], f"{path}, {place}, column {c!r}") for c in wanted)
        begins.append(lines.number)
    table = np.asarray(numbers).reshape(len(begins), len(wanted))
    levels = {}
    for column, found in words.items():
        known, codes = np.unique(found, return_inverse=True)
        table[:, list(wanted).index(column)] = codes
        levels[column] = tuple(map(str, known))
    return table, begins, levels


def _place(row: int, line: int) -> str:
    return f"row {row + 1} (line {line})"


class _Lines(Iterator[list[str]]):
    """The records of a CSV file without blank ones; `number` is the line where the last began."""

    def __init__(self, path: Path):
        self._path = path
        csv.field_size_limit(_LONGEST)  # a long cell is no fault
        self._reader = csv.reader(_text(path), strict=True)
        self.number = 0

    def __next__(self) -> list[str]:
        while True:
            self.number = self._reader.line_num + 1
            try:
                cells = next(self._reader)
            except csv.Error as error:
                raise ValueError(
                    f"{self._path}, line {self.number}: not CSV ({error}). Is a quote not closed?"
                ) from None
            if len(cells) > 1 or (cells and cells[0].strip()):
                return cells


_LONGEST = 2**24  # characters of a line


def _text(path: Path) -> Iterator[str]:
    """The lines of a file, one at a time, or a sentence that says why there are none."""
    try:
        if path.exists() and not path.is_file():  # a device may have no end, a pipe no beginning
            kind = "a directory" if path.is_dir() else "no regular file"
            raise _Refused(f"{path} is {kind}; expected a CSV file.")
        with path.open(encoding="utf-8-sig", newline="") as file:
            number = 0
            while line := file.readline(_LONGEST):
                number += 1
                if len(line) == _LONGEST:
                    raise _Refused(
                        f"{path}, line {number}: more than {_LONGEST} characters; expected the "
                        f"cells of one row."
                    )
                yield line
    except FileNotFoundError:
        raise ValueError(
            f"There is no file {path} (looked from the directory {Path.cwd()})."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not UTF-8 text (byte {_first_bad_byte(path)}); save it as UTF-8."
        ) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except _Refused:
        raise
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is no name of a file: {error}.") from None


class _Refused(ValueError):
    """A sentence about a file that is there."""


def _first_bad_byte(path: Path) -> int:
    """Where a file stops being UTF-8."""
    decoder, at = codecs.getincrementaldecoder("utf-8")(), 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            waiting = len(decoder.getstate()[0])  # bytes of a letter that the last block began
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                return at - waiting + error.start
            at += len(block)
    return at - len(decoder.getstate()[0])


def _number(cell: str, place: str) -> float:
    """One cell as a finite number."""
    try:
        value = math.nan if "_" in cell else float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        came = repr(cell.strip()) if cell.strip() else "an empty cell"
        what = "Drop or fill that row."
        if re.fullmatch(r"[-+]?[\d.]*,\d+", cell.strip()):
            what = "Write 1,5 as 1.5, and 1,500 as 1500."
        raise ValueError(f"{place}: expected a finite number, got {came}. {what}")
    return value
