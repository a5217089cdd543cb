"""Named columns of a CSV file as a `Dataset`; the bundled files among them."""

import csv
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import jax.numpy as jnp
import numpy as np

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

BUNDLED: tuple[str, ...] = tuple(_BUNDLED)


def load(name: str, *, x: str | Sequence[str] | None = None, y: str | None = None) -> Dataset:
    """A data set that comes with the package: one of `BUNDLED`.

    **Arguments:** `name`; `x`, `y`: columns, where others than the usual ones are wanted.

    **Source:** see the README beside the files.
    """
    if name not in _BUNDLED:
        raise ValueError(f"No bundled data set {name!r}; there are {', '.join(BUNDLED)}.")
    inputs, label, names = _BUNDLED[name]
    with resources.as_file(resources.files("attnkernel.data") / "csv" / f"{name}.csv") as path:
        return read_csv(path, x=x or inputs, y=y or label, names=names)


def read_csv(
    path: str | Path, *, x: str | Sequence[str], y: str, names: dict[str, str] | None = None
) -> Dataset:
    """Columns of a CSV file with a header line.

    **Arguments:**

    - `path`: the file: comma-separated, UTF-8, decimal points.
    - `x`: the input column, or several; `y`: the label column.
    - `names`: what to write on the axes, where the column's name does not say it.

    **Returns:** a `Dataset`, rows in the order of the file.

    **Raises:** `ValueError` if the file is missing or empty, a column is not there (those that
    are, are listed), a number is missing, not a number or not finite (row and column are named),
    fewer than 3 rows, or all inputs are the same.
    """
    columns = (x,) if isinstance(x, str) else tuple(x)
    if not columns:
        raise ValueError("Name at least one input column.")
    if y in columns:
        raise ValueError(f"Column {y!r} is both input and label; choose another for one of them.")
    table = _columns(Path(path), (*columns, y))
    if len(table) < 3:
        raise ValueError(f"{path} has {len(table)} rows of data; a fit needs at least 3.")
    if np.all(table[:, :-1] == table[:1, :-1]):
        raise ValueError(
            f"{path}: the input {', '.join(columns)} is constant ({table[0, :-1].tolist()} in "
            f"every row); no lengthscale can be told from it."
        )
    shown = [(names or {}).get(column, column) for column in (*columns, y)]
    values = jnp.asarray(table)
    return Dataset(values[:, :-1], values[:, -1], tuple(shown[:-1]), shown[-1])


def _columns(path: Path, wanted: Sequence[str]) -> np.ndarray:
    """The wanted columns as numbers, shape (rows, columns); every fault with its line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(
            f"There is no file {path} (looked from the directory {Path.cwd()})."
        ) from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a directory; expected a CSV file.") from None
    except PermissionError:
        raise ValueError(f"{path} cannot be read: permission denied.") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8."
        ) from None
    reader = csv.reader(text.splitlines())
    header = [name.strip() for name in next(reader, [])]
    if not any(header):
        raise ValueError(f"{path} is empty; expected a header line with the names of the columns.")
    missing = [column for column in wanted if column not in header]
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}; "
            f"its columns are {', '.join(map(repr, header))}."
        )
    places = [header.index(column) for column in wanted]
    rows = []
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue  # a blank line
        if len(cells) != len(header):
            raise ValueError(
                f"{path}, line {reader.line_num}: {len(cells)} cells where the header has "
                f"{len(header)}. Is the separator a comma, and the decimal mark a point?"
            )
        rows.append(
            [
                _number(cells[place], column, path, len(rows) + 1, reader.line_num)
                for place, column in zip(places, wanted, strict=True)
            ]
        )
    return np.array(rows, dtype=float).reshape(len(rows), len(wanted))


def _number(cell: str, column: str, path: Path, row: int, line: int) -> float:
    """One cell as a finite number."""
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        came = repr(cell.strip()) if cell.strip() else "an empty cell"
        raise ValueError(
            f"{path}, row {row} (line {line}), column {column!r}: expected a finite number, got "
            f"{came}. Drop or fill that row."
        )
    return value
