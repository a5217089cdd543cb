"""Named columns of a CSV file as a `Dataset`."""

import math
import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from .._core.arrays import precision_loss
from .._core.validation import as_names, as_path
from ._dataset import Dataset
from ._records import Records

OTHER_SEPARATOR = re.compile(r"[;\t|]")


def read_csv(
    path: str | Path,
    *,
    x: str | Sequence[str],
    y: str,
    names: dict[str, str] | None = None,
    categories: Sequence[str] = (),
) -> Dataset:
    """Returns columns of a CSV file with a header line as a `Dataset`.

    ```python
    >>> with open("trees.csv", "w") as file:
    ...     _ = file.write("height,width,kind\\n10,2,oak\\n12,3,elm\\n15,5,oak\\n")
    >>> data = ak.data.read_csv("trees.csv", x=("height", "kind"), y="width", categories=["kind"])
    >>> data.categories
    (None, ('elm', 'oak'))
    ```

    **Arguments:**

    - `path`: the file: comma-separated, UTF-8, decimal points. It is read line by line; reading
      takes at most 48 bytes for each cell of the requested columns.
    - `x`: the input column, or several; `y`: the label column.
    - `names`: axis labels by column name, such as `{"age": "age (years)"}`.
    - `categories`: the input columns whose cells are words. They become codes 0, 1, ... in
      alphabetical order, for categorical kernels such as `ak.AitchisonAitken`.

    **Returns:** a `Dataset`, rows in the order of the file; its `categories` list the word of each
    code.

    **Raises:** `ValueError` if the file is missing or empty, a column is missing (the error lists
    the columns), a cell is not a finite number (the error names row and column), there are fewer
    than 3 rows, or all inputs are equal.
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
    if unknown := [column for column in categories if column not in columns]:
        raise ValueError(
            f"categories must be among the input columns {', '.join(map(repr, columns))}; got "
            f"{', '.join(map(repr, unknown))}."
        )
    table, first_lines, words = _read_columns(Path(path), (*columns, y), tuple(categories))
    if len(table) < 3:
        raise ValueError(f"{path} has {len(table)} rows of data; a fit needs at least 3.")
    if np.all(table[:, :-1] == table[:1, :-1]):
        raise ValueError(
            f"{path}: the input {', '.join(columns)} is constant ({table[0, :-1].tolist()} in "
            f"every row); it does not identify a lengthscale."
        )
    labels = [(names or {}).get(column, column) for column in (*columns, y)]
    with np.errstate(over="ignore"):
        values = jnp.asarray(table)
    if not np.all(np.isfinite(values)):
        row, column = np.argwhere(~np.isfinite(values))[0]
        place, name = _describe_place(int(row), first_lines[row]), (*columns, y)[column]
        raise ValueError(
            f"{path}, {place}, column {name!r}: {table[row, column]} is too large for "
            f"{values.dtype}. Use float64 (precision: float64, or jax_enable_x64)."
        )
    for index, column in enumerate(columns):
        if loss := precision_loss(table[:, index], np.asarray(values)[:, index]):
            raise ValueError(
                f"{path}, column {column!r}: {loss} Use float64 (precision: float64, or "
                f"jax_enable_x64), or subtract a common offset."
            )
    levels = tuple(words.get(column) for column in columns) if words else ()
    return Dataset(values[:, :-1], values[:, -1], tuple(labels[:-1]), labels[-1], categories=levels)


def _read_columns(
    path: Path, wanted: Sequence[str], categories: Sequence[str]
) -> tuple[np.ndarray, Sequence[int], dict[str, tuple[str, ...]]]:
    """Returns the columns named in `wanted` as numbers, shape (rows, columns), the line on which
    each row begins, and, for each column named in `categories`, its words in the order of their
    codes.
    """
    records = Records(path)
    header = next(records, None)
    if header is None:
        raise ValueError(f"{path} is empty; expected a header line with the names of the columns.")
    names = [name.strip() for name in header]
    if missing := [column for column in wanted if column not in names]:
        of = "y" if missing == [wanted[-1]] else "x"
        raise ValueError(
            f"{path} has no column for {of}: {', '.join(map(repr, missing))}; "
            f"its columns are {', '.join(map(repr, names))}."
            + (
                " Separate them by commas."
                if len(names) == 1 and OTHER_SEPARATOR.search(names[0])
                else ""
            )
        )
    for column in wanted:
        if names.count(column) > 1:
            raise ValueError(f"{path} has column {column!r} twice; rename one of them.")
    numbers, first_lines = array("d"), array("q")
    words: dict[str, list[str]] = {column: [] for column in categories}
    for cells in records:
        place = _describe_place(len(first_lines), records.line)
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
        numbers.extend(
            _parse_finite_number(by_name[c], f"{path}, {place}, column {c!r}") for c in wanted
        )
        first_lines.append(records.line)
    table = np.asarray(numbers).reshape(len(first_lines), len(wanted))
    levels = {}
    for column, found in words.items():
        known, codes = np.unique(found, return_inverse=True)
        table[:, list(wanted).index(column)] = codes
        levels[column] = tuple(map(str, known))
    return table, first_lines, levels


def _describe_place(row: int, line: int) -> str:
    """Returns "row 1 (line 2)", as errors name a place: `row` counts from 0, `line` from 1."""
    return f"row {row + 1} (line {line})"


def _parse_finite_number(cell: str, place: str) -> float:
    """Returns the number that a cell holds as text; `ValueError` if it is not finite. `place`:
    where the cell is, for the error, such as "a.csv, row 1 (line 2), column 'x'".
    """
    try:
        value = math.nan if "_" in cell else float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        got = repr(cell.strip()) if cell.strip() else "an empty cell"
        hint = "Drop or fill that row."
        if re.fullmatch(r"[-+]?[\d.]*,\d+", cell.strip()):
            hint = "Write 1,5 as 1.5, and 1,500 as 1500."
        raise ValueError(f"{place}: expected a finite number, got {got}. {hint}")
    return value
