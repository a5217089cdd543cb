r"""Frames of pandas in, frames out: columns with names to numbers, and back.

A column of categories $c_0, \ldots, c_{m-1}$ becomes their codes 0, ..., m − 1. pandas itself is
not imported: a frame is what looks like one.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

Names = tuple[Hashable, ...]
Categories = tuple[tuple[Hashable, ...] | None, ...]  # of each column; None: numbers


class Table(NamedTuple):
    """The numbers of a frame, shape (n, columns), and what it takes to read another like it."""

    numbers: np.ndarray
    names: Names
    categories: Categories


class Rows:
    """A frame that was asked with, as a static field: equal to itself alone."""

    def __init__(self, frame: Any):
        self.frame = frame.copy()


def is_frame(x: Any) -> bool:
    """Whether it looks like a `DataFrame` or a `Series`."""
    return hasattr(x, "to_numpy") and hasattr(x, "index") and hasattr(x, "iloc")


def is_series(x: Any) -> bool:
    return is_frame(x) and not hasattr(x, "columns")


def names_of(frame: Any) -> Names:
    return (frame.name,) if is_series(frame) else tuple(frame.columns)


def read(what: str, frame: Any, known: Categories | None = None) -> Table:
    """The numbers of a frame; `known`: the categories of columns, as of the frame fitted to.

    **Raises:** `ValueError` for missing values, for columns that are neither numbers nor
    categories, and for categories that are not among the known: by column, row and value.
    """
    names = names_of(frame)
    columns = [frame] if is_series(frame) else [frame.iloc[:, i] for i in range(len(names))]
    expected = [_categories(column) for column in columns] if known is None else known
    numbers = np.empty((len(frame), len(names)))
    for i, (column, name, among) in enumerate(zip(columns, names, expected, strict=True)):
        where = f"Column {name!r} of {what}"
        missing = np.asarray(column.isna(), bool)
        if missing.any():
            raise ValueError(
                f"{where} has {missing.sum()} missing values, the first in row "
                f"{_row(column, missing)}. Drop those rows, with dropna(), or fill them."
            )
        numbers[:, i] = _numbers(column, where) if among is None else _codes(column, where, among)
    return Table(numbers, names, tuple(expected))


def read_like(frame: Any, names: Names | None, categories: Categories | None) -> np.ndarray:
    """New inputs as numbers; `ValueError` unless its columns are those of the fit, in order."""
    got = names_of(frame)
    if names is not None and names not in ((None,), got):
        raise ValueError(
            f"x_new must have the columns that the fit has, in their order: {list(names)}; got "
            f"{list(got)}. Try x_new[{list(names)}]."
        )
    if categories is None or len(categories) != len(got):
        categories = (None,) * len(got)
    return read("x_new", frame, categories).numbers


def read_labels(what: str, labels: Any, x: Any) -> tuple[np.ndarray, Hashable]:
    """Labels, or weights, of the rows of x, and their name: of several a tuple."""
    if is_frame(x) and not x.index.equals(labels.index):
        raise ValueError(
            f"x and {what} must have the same index, row by row; theirs differ. Try "
            f"{what}.loc[x.index], or {what}.to_numpy() if the rows do go together."
        )
    table = read(what, labels, (None,) * len(names_of(labels)))
    return (table.numbers[:, 0], labels.name) if is_series(labels) else table[:2]


def like(values: Any, asked: Any, name: Any) -> Any:
    """Values of shape (m,) or (m, out) as pandas would have them, if what was asked is a frame."""
    if not is_frame(asked):
        return values
    array = np.asarray(values)
    column = asked if is_series(asked) else asked.iloc[:, 0]
    if array.ndim == 1:
        return type(column)(array, index=asked.index, name=name)
    if not isinstance(name, tuple) or len(name) != array.shape[1]:
        name = tuple(range(array.shape[1]))
    return type(column.to_frame())(array, index=asked.index, columns=list(name))


def joined(rows: Rows | None, x: Any, found: dict[str, np.ndarray]) -> Any:
    """The frame that was asked with, or one of x, and further columns, each of shape (m,)."""
    if rows is None:
        try:
            import pandas  # noqa: PLC0415  only who asks for a frame needs it
        except ImportError as missing:
            raise ImportError("A frame needs pandas: pip install pandas.") from missing
        x = np.asarray(x)
        names = ["x"] if x.shape[1] == 1 else [f"x{i + 1}" for i in range(x.shape[1])]
        frame = pandas.DataFrame(x, columns=names)
    else:
        frame = rows.frame.to_frame() if is_series(rows.frame) else rows.frame
    taken = [name for name in found if name in frame.columns]
    if taken:
        raise ValueError(
            f"Columns of x are named as those of the answer: {taken}. Rename them, with "
            f"rename(columns=...), before the fit."
        )
    return frame.assign(**found)


def shown(names: Sequence[Hashable] | None, dim: int) -> list[str]:
    """Names of columns as text: those given, or x, or x1, x2, ..."""
    if names is not None:
        return ["x" if name is None else str(name) for name in names]
    return ["x"] if dim == 1 else [f"x{column + 1}" for column in range(dim)]


def _row(column: Any, flags: np.ndarray) -> str:
    """The label of the first row that is flagged, as it is written."""
    return repr(column.index[[int(np.argmax(flags))]].tolist()[0])


def _categories(column: Any) -> tuple[Hashable, ...] | None:
    return tuple(column.cat.categories.tolist()) if hasattr(column, "cat") else None


def _numbers(column: Any, where: str) -> np.ndarray:
    if getattr(column.dtype, "kind", "O") in "biuf":
        return column.to_numpy(dtype=float)
    first = "" if not len(column) else f", the first {column.iloc[0]!r} in row {column.index[0]!r}"
    raise ValueError(
        f"{where} must be of numbers; its dtype is {column.dtype}{first}. Inputs that are names "
        f'become categories by .astype("category") before the fit, and go with a kernel of '
        f"categories, such as ak.LiRacine; dates become numbers by subtracting one of them."
    )


def _codes(column: Any, where: str, among: tuple[Hashable, ...]) -> np.ndarray:
    of_row, values = column.factorize()
    code = {category: number for number, category in enumerate(among)}
    codes = np.array([code.get(value, -1) for value in values.tolist()], float)[of_row]
    unseen = codes < 0
    if unseen.any():
        raise ValueError(
            f"{where} has a category that the fit has not, in row {_row(column, unseen)}: "
            f"{column.iloc[int(np.argmax(unseen))]!r}. It knows {list(among)}."
        )
    return codes
