r"""Frames of pandas in, frames out: named columns to numbers, and back.

A column of categories $c_0, \ldots, c_{m-1}$ becomes their codes 0, ..., m − 1. A frame is
recognised by its attributes, so that `import attnkernel` does not import pandas.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .arrays import ADVICE_FOR_CLASSES

Names = tuple[Hashable, ...]
Categories = tuple[tuple[Hashable, ...] | None, ...]  # one per column; None: a numeric column


class QueryFrame:
    """The frame of a query, as a static field: compared by identity."""

    def __init__(self, frame: Any):
        self.frame = frame.copy()


def is_frame(x: Any) -> bool:
    """Whether it looks like a `DataFrame` or a `Series`."""
    return hasattr(x, "to_numpy") and hasattr(x, "index") and hasattr(x, "iloc")


def is_series(x: Any) -> bool:
    """Whether it looks like a `Series`."""
    return is_frame(x) and not hasattr(x, "columns")


def column_names(frame: Any) -> Names:
    """Returns the names of the columns; of a `Series`, its own name."""
    return (frame.name,) if is_series(frame) else tuple(frame.columns)


def frame_to_numbers(
    what: str, frame: Any, known: Categories | None = None
) -> tuple[np.ndarray, Names, Categories]:
    """Returns a frame as numbers, shape (n, columns), and the names and categories of its columns.

    Categories become codes. `known`: the categories of the columns in the fit; None: those of the
    frame itself. `what`: the name of the frame in errors.

    **Raises:** `ValueError` for missing values, for columns that are neither numeric nor
    categorical, and for categories not in `known`. The error names column, row and value.
    """
    names = column_names(frame)
    columns = [frame] if is_series(frame) else [frame.iloc[:, i] for i in range(len(names))]
    expected = [_categories_of_column(column) for column in columns] if known is None else known
    numbers = np.empty((len(frame), len(names)))
    for i, (column, name, categories) in enumerate(zip(columns, names, expected, strict=True)):
        where = f"Column {name!r} of {what}"
        missing = np.asarray(column.isna(), bool)
        advice = "Drop those rows with dropna(), or fill them."
        if what in ("x", "y"):
            advice = 'Fill them, or leave those rows out: ak.fit(..., na="drop").'
        if missing.any():
            raise ValueError(
                f"{where} has {missing.sum()} missing values, the first in row "
                f"{_flagged_label(column, missing)}. {advice}"
            )
        if categories is None:
            numbers[:, i] = _numeric_column_to_float64(column, where)
        else:
            numbers[:, i] = _encode_categories(column, where, categories)
    return numbers, names, tuple(expected)


class FrameNames(NamedTuple):
    """The names and categories of the columns of frames; None for arrays.

    `y_name` is the name of a `Series`, or the tuple of the names of a `DataFrame`.
    `dropped_rows` is the number of rows that `na="drop"` left out.
    """

    x_names: Names | None = None
    x_categories: Categories | None = None
    y_name: Hashable = None
    dropped_rows: int = 0


def frames_to_numbers(x: Any, y: Any, weights: Any, na: str) -> tuple[Any, Any, Any, FrameNames]:
    """Returns x, y and weights, with frames converted to numbers, and the names of their columns.

    `na`: `"drop"` leaves out rows in which a value of x or y is missing, of arrays too.

    **Raises:** `ValueError` if y or weights have another index than x, for missing values in a
    frame, and for columns that are not numeric or, in x, categorical. With "drop", also for traced
    arguments.
    """
    names = FrameNames()
    for what, part in (("y", y), ("weights", weights)):
        require_same_index(what, part, x)
    if na == "drop":
        x, y, weights, dropped = _drop_missing_rows(x, y, weights)
        names = names._replace(dropped_rows=dropped)
    if is_frame(x):
        x, x_names, x_categories = frame_to_numbers("x", x)
        names = names._replace(x_names=x_names, x_categories=x_categories)
    if is_frame(weights):
        weights, _ = _labels_to_numbers("weights", weights)
    if is_frame(y):
        y, y_name = _labels_to_numbers("y", y)
        names = names._replace(y_name=y_name)
    return x, y, weights, names


def query_to_numbers(frame: Any, names: Names | None, categories: Categories | None) -> np.ndarray:
    """Returns a frame of new inputs as numbers, with the columns and categories of the fit.

    `names`: the columns of the fit, by which those of the frame are ordered; None keeps their
    order. `ValueError` unless the frame has each of them once, and as for `frame_to_numbers`. If
    the number of `categories` differs from that of the columns, all columns must be numeric.
    """
    got = column_names(frame)
    if names is not None and names not in ((None,), got):
        if is_series(frame) or any(got.count(name) != 1 for name in names):
            raise ValueError(
                f"x_new must have the columns of the fit, {list(names)}, each once; got "
                f"{list(got)}."
            )
        frame = frame[list(names)]
        got = names
    if categories is None or len(categories) != len(got):
        categories = (None,) * len(got)
    return frame_to_numbers("x_new", frame, categories)[0]


def _labels_to_numbers(what: str, labels: Any) -> tuple[np.ndarray, Hashable]:
    """Returns a frame of labels or weights as numbers, and its name.

    A `Series` gives a vector and its name; a `DataFrame` gives a matrix and a tuple of names.
    `ValueError` for missing values and for columns that are not numeric, such as categories.
    """
    numbers, names, _ = frame_to_numbers(what, labels, (None,) * len(column_names(labels)))
    return (numbers[:, 0], labels.name) if is_series(labels) else (numbers, names)


def _drop_missing_rows(x: Any, y: Any, weights: Any) -> tuple[Any, Any, Any, int]:
    """Returns x, y and weights of the rows in which no value of x or y is missing, and the number
    of rows left out.

    Arguments whose lengths differ are returned unchanged, for `fit` to refuse. `ValueError` if one
    is traced.

    **Arguments:** x and y: frames of pandas, or arrays, of which NaN and masked entries are
    missing; `weights`: one per row, or None. Rows correspond as `require_same_index` says.
    """
    given = [part for part in (x, y, weights) if part is not None]
    try:
        given = [part if is_frame(part) else np.asanyarray(part) for part in given]
    except jax.errors.TracerArrayConversionError:
        raise ValueError(
            'na="drop" needs the values of x and y, which have none inside jit and vmap: drop the '
            "rows before."
        ) from None
    if not all(map(np.ndim, given)) or len(set(map(len, given))) > 1:
        return x, y, weights, 0  # shapes that `fit` refuses
    keep = ~(_rows_with_missing(given[0]) | _rows_with_missing(given[1]))
    if keep.all():
        return x, y, weights, 0
    kept = [*(part[keep] for part in given), None]
    return kept[0], kept[1], kept[2], int(np.sum(~keep))


def _rows_with_missing(part: Any) -> np.ndarray:
    """Returns for each row whether a value is missing; `part`: a frame or an array of NumPy."""
    if is_frame(part):
        found = part.isna()
    else:
        found = np.ma.getmaskarray(part)
        if part.dtype.kind == "f":
            found = found | np.isnan(np.ma.getdata(part))
    return np.any(np.reshape(np.array(found, bool), (len(part), -1)), axis=1)


def require_same_index(what: str, labels: Any, x: Any) -> None:
    """Raises `ValueError` where both are of pandas, and the index of a row is not the same."""
    if is_frame(labels) and is_frame(x) and not x.index.equals(labels.index):
        raise ValueError(
            f"x and {what} must have the same index, row by row. Try {what}.loc[x.index], or "
            f"{what}.to_numpy() if the rows correspond in their order."
        )


def as_pandas(values: Any, query: Any, name: Any) -> Any:
    """Returns values of shape (m,) or (m, out) as a `Series` or `DataFrame`, with the index of the
    query; unchanged if the query is not a frame.

    `name`: that of the `Series`, or a tuple of the names of columns, which are else 0, 1, ...
    """
    if not is_frame(query):
        return values
    array = np.asarray(values)
    column = query if is_series(query) else query.iloc[:, 0]
    if array.ndim == 1:
        return type(column)(array, index=query.index, name=name)
    if not isinstance(name, tuple) or len(name) != array.shape[1]:
        name = tuple(range(array.shape[1]))
    return type(column.to_frame())(array, index=query.index, columns=list(name))


def join_columns(query: QueryFrame | None, x: Any, found: dict[str, np.ndarray]) -> Any:
    """Returns the frame of the query with the columns `found`, each of shape (m,), added.

    Without a query, the frame is made from x, shape (m, dim), with columns x, or x1, x2 and so on.
    `ValueError` if the frame already has a column of a name in `found`. `ImportError` if pandas is
    needed and not installed.
    """
    if query is None:
        try:
            import pandas  # noqa: PLC0415  an extra
        except ImportError as missing:
            raise ImportError("A frame needs pandas: pip install pandas.") from missing
        x = np.asarray(x)
        names = ["x"] if x.shape[1] == 1 else [f"x{i + 1}" for i in range(x.shape[1])]
        frame = pandas.DataFrame(x, columns=names)
    else:
        frame = query.frame.to_frame() if is_series(query.frame) else query.frame
    taken = [name for name in found if name in frame.columns]
    if taken:
        raise ValueError(
            f"x already has columns with the names of the result: {taken}. Rename them before the "
            f"fit, with rename(columns=...)."
        )
    return frame.assign(**found)


def rows_to_frame(
    queries: Any,
    rows: Any,
    weights: Any,
    inputs: tuple[Any, Names | None, Categories | None],
    labels: tuple[Any, Hashable],
) -> Any:
    """Returns a `DataFrame` with a line for each query and each of its k rows of the fit.

    The columns are the inputs and labels of the row, and `weight`, its weight for the query. Codes
    are shown as their categories. `rows` holds the numbers of rows, from 0. The index has the
    levels `query` and `row`.

    **Arguments:** `queries`: the index of the frame of queries. `rows`, `weights`: shape (m, k).
    `inputs`: x, with the names and categories of its columns. `labels`: y and its name.
    """
    import pandas  # noqa: PLC0415  imported already by who gave a frame

    (x, names, categories), (y, y_name) = inputs, labels
    chosen = np.asarray(rows).ravel()
    of_rows = np.asarray(x, float)[chosen]
    columns = []
    for i, name in enumerate(display_names(names, of_rows.shape[1])):
        levels = categories and categories[i]
        cells = of_rows[:, i]
        columns.append((name, np.array(levels, object)[cells.astype(int)] if levels else cells))
    for i, cells in enumerate(np.asarray(y, float)[chosen].reshape(len(chosen), -1).T):
        columns.append((y_name[i] if isinstance(y_name, tuple) else y_name or "label", cells))
    columns.append(("weight", np.asarray(weights, float).ravel()))
    at = [queries.repeat(np.shape(rows)[1]), chosen]
    index = pandas.MultiIndex.from_arrays(at, names=["query", "row"])
    # a list of columns, as a name may come twice
    frame = pandas.concat([pandas.Series(cells, index) for _, cells in columns], axis=1)
    return frame.set_axis([name for name, _ in columns], axis=1)


def column_number(argument: str, column: Any, dim: int, names: Sequence[Hashable] | None) -> int:
    """Returns the number, from 0, of a column that is given by number or name; `ValueError`, with
    the name of the argument, unless there is one such column."""
    known = list(names or ())
    if isinstance(column, str) and known.count(column) == 1:
        return known.index(column)
    is_integer = isinstance(column, int | np.integer) and not isinstance(column, bool)
    if not is_integer or not 0 <= int(column) < dim:
        among = f", or one of {known}" if known else ""
        raise ValueError(
            f"{argument} must be a number of a column, from 0 to {dim - 1}{among}; got {column!r}."
        )
    return int(column)


def display_names(names: Sequence[Hashable] | None, dim: int) -> list[str]:
    """Returns the names of columns as text: those given, or x, or x1, x2, ..."""
    if names is not None:
        return ["x" if name is None else str(name) for name in names]
    return ["x"] if dim == 1 else [f"x{column + 1}" for column in range(dim)]


def _flagged_label(column: Any, flags: np.ndarray) -> str:
    """Returns the index label of the first row whose flag is True, as an error quotes it. `column`
    is a column of pandas, `flags` has shape (rows,)."""
    return repr(column.index[[int(np.argmax(flags))]].tolist()[0])


def _categories_of_column(column: Any) -> tuple[Hashable, ...] | None:
    """Returns the categories of a pandas column of dtype category, in order; None for others."""
    return tuple(column.cat.categories.tolist()) if hasattr(column, "cat") else None


def _numeric_column_to_float64(column: Any, where: str) -> np.ndarray:
    """Returns a pandas column as float64; `ValueError` unless it is numeric or Boolean. `where`
    describes the column in the error."""
    kind = getattr(column.dtype, "kind", "O")
    if kind in "biuf":
        return column.to_numpy(dtype=float)
    row = column.index[:1].tolist()
    first = f", the first {column.iloc[0]!r} in row {row[0]!r}" if row else ""
    advice = (
        'Turn names into categories with .astype("category") before the fit, for a categorical '
        "kernel such as ak.kernels.LiRacine."
    )
    if where.endswith(" of y"):
        advice = ADVICE_FOR_CLASSES
    if kind == "M":
        advice = "Subtract one of the dates, and divide by a unit: pandas.Timedelta(days=1)."
    elif holds_numbers(column):
        advice = "They are numbers all the same: convert them with .astype(float)."
    raise ValueError(f"{where} must be numeric; its dtype is {column.dtype}{first}. {advice}")


def holds_numbers(column: Any) -> bool:
    """Whether `astype(float)` can convert a pandas column of objects or text, as "1.5"."""
    try:
        column.astype(float)
    except (TypeError, ValueError):
        return False
    return True


def _encode_categories(column: Any, where: str, categories: tuple[Hashable, ...]) -> np.ndarray:
    """Returns the code of each cell of a pandas column: its place, from 0, among the categories.
    `ValueError` for a cell that is not among them; `where` describes the column in the error."""
    value_of_row, values = column.factorize()
    code = {category: number for number, category in enumerate(categories)}
    codes = np.array([code.get(value, -1) for value in values.tolist()], float)[value_of_row]
    unseen = codes < 0
    if unseen.any():
        raise ValueError(
            f"{where} has a category that the fit does not have, in row "
            f"{_flagged_label(column, unseen)}: {column.iloc[int(np.argmax(unseen))]!r}. The fit "
            f"has {list(categories)}."
        )
    return codes
