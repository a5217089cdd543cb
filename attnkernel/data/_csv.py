"""Named columns of a CSV file as a `Dataset`."""

import codecs
import itertools
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from .._core.arrays import precision_loss
from .._core.validation import OptionError, as_names, as_path, require_bool, require_choice
from ._columns import Column
from ._dataset import Dataset
from ._records import Records

OTHER_DELIMITER = re.compile(r"[;\t|,]")


def read_csv(
    path: str | Path,
    *,
    x: str | Sequence[str],
    y: str,
    names: dict[str, str] | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[str] | None] = (),
    find_categories: bool = False,
    dates: Sequence[str] | Mapping[str, str | None] = (),
    weights: str | None = None,
    clusters: str | None = None,
    delimiter: str = ",",
    decimal: str = ".",
    thousands: str = "",
    missing: str = "error",
    encoding: str = "utf-8",
) -> Dataset:
    """Returns columns of a CSV file with a header line as a `Dataset`.

    ```python
    >>> with open("trees.csv", "w") as file:
    ...     _ = file.write("day;kind;width\\n2020-05-01;oak;2,5\\n2020-06-01;elm;3,0\\n"
    ...                    "2021-05-01;oak;NA\\n2021-06-01;oak;5,5\\n")
    >>> excel = {"delimiter": ";", "decimal": ",", "missing": "drop"}
    >>> data = ak.data.read_csv("trees.csv", x=("day", "kind"), y="width", categories=["kind"],
    ...                         **excel)
    >>> data.x_names, data.categories, data.dropped
    (('day (days since 2020-05-01)', 'kind'), (None, ('elm', 'oak')), 1)
    ```

    **Arguments:**

    - `path`: the file. It is read line by line, also from `.csv.gz`; reading takes at most 48 bytes
      for each cell of the requested columns. `.xlsx` (the first sheet) and `.parquet` are read by
      pandas.
    - `x`: the input column, or several; `y`: the label column.
    - `names`: axis labels by column name, such as `{"age": "age (years)"}`.
    - `categories`: the input columns whose cells are words. They become codes 0, 1, ... in
      alphabetical order, for categorical kernels such as `ak.kernels.AitchisonAitken`. Or a
      dictionary from columns to their words, in order from the least, such as `{"size": ["small",
      "large"]}`, for ordered ones such as `ak.kernels.LiRacineOrdered`; or to None.
    - `find_categories`: whether other input columns of words are categories too. By default words
      are refused there, as a kernel of distances would take their codes for quantities.
    - `dates`: the columns that hold dates, or a dictionary from them to their format, such as
      `{"day": "%d.%m.%Y"}`; None and the list are ISO 8601. A column that begins with an ISO date
      such as 2020-05-01 need not be named. Dates become days since the earliest, times of the day
      their fractions, in UTC if they have a zone; the unit goes to `x_names`.
    - `weights`: the column of the inverse variances of the rows, numbers from 0; a row of weight 0
      is left out, and counted. `clusters`: the column of the cluster of each row, words or numbers.
    - `delimiter`: one character; `decimal`: `"."` or `","`; `thousands`: the mark between groups of
      three digits, `" "` for blanks of every kind. Default: none. A typographic minus is a minus.
    - `missing`: `"error"` (default), or `"drop"`: leaves out each row with an empty cell, `NA`,
      `N/A`, `NaN`, `null`, a point or an error such as `#DIV/0!` in a requested column, and counts
      it. So does a dash, a question mark or `None`, except in a column of categories.
    - `encoding`: such as `"cp1252"` or `"utf-16"`.

    **Returns:** a `Dataset`, rows in the order of the file. Its `categories` list the word of each
    code, `ordered` the columns whose order is known, and `dropped` counts the rows left out.
    `clusters` are codes from 0.

    **Raises:** `ValueError` if the file is missing or empty, a column is missing (the error lists
    the columns), a cell is not what its column holds (the error names row, column and the option
    that helps), there are fewer than 3 rows, or all inputs are equal.
    """
    if names is not None and not isinstance(names, Mapping):
        raise ValueError(f"names must be a dictionary, from columns to text; got {names!r}.")
    options = Options(
        x,
        y,
        categories,
        find_categories,
        dates,
        delimiter,
        decimal,
        thousands,
        missing,
        encoding,
        weights,
        clusters,
    )
    return read_file(Path(as_path("path", path)), options, names or {}).data


class CsvFile(NamedTuple):
    """A file that was read: its data, and how its columns were read."""

    data: Dataset
    columns: Sequence[Column]  # of the inputs, with the words and the first day of the file
    options: "Options"

    def read_new(self, path: Path) -> "NewRows":
        """Returns the rows of another file, with the input columns read as in this one.

        A word has the same code, dates count from the same day, and a missing cell is NaN.
        `ValueError` for a cell that its column cannot hold, such as a new word, and for a file that
        cannot be read or lacks one of the columns.
        """
        try:
            return _read_columns(path, self.columns, self.options._replace(missing="keep"))
        except OptionError as error:
            both = " It is read with the options of the file that is fitted." * bool(error.options)
            raise ValueError(f"{error.sentence}{both}") from None


class NewRows(NamedTuple):
    """The rows of a file: all cells as text, and the requested columns as numbers.

    `dropped` counts the rows that were left out.
    """

    header: Sequence[str]
    cells: Sequence[Sequence[str]]  # empty unless missing cells are kept
    numbers: np.ndarray  # shape (rows, columns); NaN where a cell is missing
    dropped: int


def read_file(path: Path, options: "Options", names: Mapping[str, str]) -> CsvFile:
    """Returns the data of a CSV file, as `read_csv` does, and how its input columns were read.

    Another file can then be read alike, by `CsvFile.read_new`. `names`: axis labels by column name.
    """
    options = options.checked()
    columns, dim = options.columns(), len(options.x)
    _, _, table, dropped = _read_columns(path, columns, options)
    if len(table) < 3:
        and_dropped = f", after {dropped} {options.dropped_for} were dropped" if dropped else ""
        raise ValueError(
            f"{path} has {len(table)} rows of data{and_dropped}; a fit needs at least 3."
        )
    found = [
        column.finish(values, names.get(column.name, column.name))
        for column, values in zip(columns, table.T, strict=True)
    ]
    if np.all(table[:, :dim] == table[:1, :dim]):
        raise ValueError(
            f"{path}: the input {', '.join(options.x)} is constant ({table[0, :dim].tolist()} in "
            f"every row); it does not identify a lengthscale."
        )
    values = table.astype(jax.dtypes.canonicalize_dtype(float))
    for column, numbers, rounded in zip(columns[: dim + 1], table.T, values.T, strict=False):
        if loss := precision_loss(numbers, rounded):
            raise ValueError(
                f"{path}, column {column.name!r}: {loss} Use float64 (precision: float64, or "
                f"jax_enable_x64), or subtract a common offset."
            )
    levels = tuple(words for _, words in found[:dim])
    is_categorical = any(words is not None for words in levels)
    of_rows: dict[Any, Any] = dict(
        zip([c.name for c in columns[dim + 1 :]], values.T[dim + 1 :], strict=True)
    )
    clusters = of_rows.get(options.clusters)
    data = Dataset(
        jax.device_put(values[:, :dim]),
        jax.device_put(values[:, dim]),
        tuple(name for name, _ in found[:dim]),
        found[dim][0],
        categories=levels if is_categorical else (),
        ordered=tuple(c.is_ordered for c in columns[:dim]) if is_categorical else (),
        dropped=dropped,
        weights=jax.device_put(of_rows.get(options.weights)),
        clusters=clusters if clusters is None else jax.device_put(clusters.astype(np.int32)),
    )
    return CsvFile(data, columns[:dim], options)


class Options(NamedTuple):
    """The arguments of `read_csv` that say which columns are read, and how their cells."""

    x: Any
    y: str
    categories: Any
    find_categories: bool
    dates: Any
    delimiter: str
    decimal: str
    thousands: str
    missing: str
    encoding: str
    weights: str | None = None
    clusters: str | None = None

    @property
    def dropped_for(self) -> str:
        """The rows left out, in words for an error, as "with missing cells or a weight of 0"."""
        return "with missing cells" + (" or a weight of 0" if self.weights is not None else "")

    def checked(self) -> "Options":
        """Returns the options with `x` as a tuple, `categories` and `dates` as dictionaries.

        Raises `ValueError` unless all are valid and compatible.
        """
        found = self._replace(
            x=as_names("x", self.x),
            categories=_as_mapping("categories", self.categories),
            dates=_as_mapping("dates", self.dates),
        )
        found._require_valid()
        return found

    def _require_valid(self) -> None:
        """Raises `ValueError` unless all options, in the form that `checked` returns, are valid
        and compatible."""
        if not isinstance(self.y, str):
            raise ValueError(f"y must be the name of a column; got {self.y!r}.")
        if not self.x:
            raise ValueError("x is empty: name at least one input column.")
        self._require_distinct_roles()
        if len(set(self.x)) < len(self.x):
            raise ValueError(
                f"An input column is named twice among {', '.join(map(repr, self.x))}."
            )
        for what, named, known in (
            ("categories", self.categories, self.x),
            ("dates", self.dates, (*self.x, self.y)),
        ):
            if unknown := [column for column in named if column not in known]:
                raise ValueError(
                    f"{what} must be among the {'input ' if known is self.x else ''}columns "
                    f"{', '.join(map(repr, known))}; got {', '.join(map(repr, unknown))}."
                )
        for column, words in self.categories.items():
            if words is not None:
                _require_levels(column, words)
            if column in self.dates:
                raise ValueError(f"Column {column!r} is named in both categories and dates.")
        require_bool("find_categories", self.find_categories)
        require_choice("decimal", self.decimal, (".", ","))
        require_choice("missing", self.missing, ("error", "drop"))
        require_choice("thousands", self.thousands, ("", " ", ",", ".", "'", "’"))
        try:
            codecs.lookup(self.encoding)
        except (LookupError, TypeError):
            raise ValueError(
                f'encoding must be one of Python, such as "cp1252"; got {self.encoding!r}.'
            ) from None
        is_character = isinstance(self.delimiter, str) and len(self.delimiter) == 1
        if not is_character or self.delimiter in '\n\r"':
            raise ValueError(
                f'delimiter must be one character, such as ";" or "\\t"; got {self.delimiter!r}.'
            )
        if self.decimal in (self.delimiter, self.thousands):
            name = "delimiter" if self.decimal == self.delimiter else "thousands"
            raise ValueError(f"{name} and decimal must differ; both are {self.decimal!r}.")

    def _require_distinct_roles(self) -> None:
        """Raises `ValueError` for a column with two roles, such as input and label, and for weights
        or clusters that are not the name of a column."""
        of_rows = {"weights": self.weights, "clusters": self.clusters}
        for role, name in of_rows.items():
            if not isinstance(name, str | None):
                raise ValueError(f"{role} must be the name of a column; got {name!r}.")
        roles = {"input": self.x, "label": (self.y,)}
        roles |= {role: (name,) for role, name in of_rows.items() if name is not None}
        for (first, names), (second, others) in itertools.combinations(roles.items(), 2):
            if both := [name for name in names if name in others]:
                raise ValueError(
                    f"Column {both[0]!r} is both {first} and {second}; choose another for one of "
                    f"them."
                )

    def columns(self) -> list[Column]:
        """Returns the columns to read: the inputs, the label, then weights and clusters, if any."""
        marks = self.decimal, self.thousands
        columns = [
            Column(
                name,
                *marks,
                "category" if name in self.categories else "date" if name in self.dates else None,
                self.categories.get(name),
                self.dates.get(name),
                may_hold_words=self.find_categories and name != self.y,
                is_label=name == self.y,
            )
            for name in (*self.x, self.y)
        ]
        if self.weights is not None:
            columns.append(Column(self.weights, *marks, "number", is_weight=True))
        if self.clusters is not None:
            columns.append(Column(self.clusters, *marks, "category"))
        return columns


def _require_levels(column: str, words: Any) -> None:
    """Raises `ValueError` unless `words` lists two words or more, each once."""
    if isinstance(words, str) or len(as_names("categories", words)) < 2:
        raise ValueError(
            f"categories must list the words of {column!r} in order, two or more; got {words!r}."
        )
    for word in words:
        if list(words).count(word) > 1:
            raise ValueError(f"categories list {word!r} twice for the column {column!r}.")


def _as_mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Returns an option as a dictionary from column names; those in a list are mapped to None.

    `ValueError` for other values. `name`: the name of the option in the error.
    """
    if isinstance(value, Mapping):
        as_names(name, list(value))
        if name == "dates" and not all(isinstance(each, str | None) for each in value.values()):
            raise ValueError(
                f'dates must map columns to formats, such as "%d.%m.%Y"; got {value!r}.'
            )
        return value
    return dict.fromkeys(as_names(name, value))


def _read_columns(path: Path, columns: Sequence[Column], options: Options) -> NewRows:
    """Returns the rows of a file, with these columns read as numbers.

    Numbers of words and dates are preliminary until `Column.finish`, unless it has been called.
    Rows of weight 0 are left out. With `options.missing` of "drop", so are rows with a missing
    cell. With "keep", the number of a missing cell is NaN, and the text of all cells is returned
    too.

    `OptionError` for a cell that cannot be read, with the row and the column. `ValueError` for an
    empty file, a missing column, and a row with more or fewer cells than the header.
    """
    records = Records(path, options.delimiter, options.encoding, options.decimal)
    header = next(records, None)
    if header is None:
        raise ValueError(f"{path} is empty; expected a header line with the names of the columns.")
    names = [name.strip() for name in header]
    _require_columns(path, names, columns, options)
    keeps_cells, kept, numbers, dropped = options.missing == "keep", [], array("d"), 0
    wanted = [names.index(column.name) for column in columns]
    weight = next((i for i, column in enumerate(columns) if column.is_weight), None)
    limits = np.finfo(jax.dtypes.canonicalize_dtype(float))
    too_large = float(limits.max) * (1.0 + float(limits.eps) / 4.0)  # rounds to infinity
    for row, cells in enumerate(records, 1):
        if len(cells) != len(names):
            place = f"{path}, row {row} (line {records.line})"
            raise ValueError(
                f"{place}: {len(cells)} cells where the header has {len(names)}. Is the delimiter "
                f"{options.delimiter!r}, and a cell that contains it in quotes? Names of rows, as "
                f"R's write.table writes them, need a name in the header."
            )
        found = [cells[i].strip() for i in wanted]
        is_dropped = options.missing == "drop" and any(map(Column.is_missing, columns, found))
        if is_dropped or (weight is not None and columns[weight].is_zero(found[weight])):
            dropped += 1
            continue
        if keeps_cells:
            kept.append(cells)
        for column, cell in zip(columns, found, strict=True):
            is_kept = keeps_cells and column.is_missing(cell)
            try:
                value = math.nan if is_kept else column.read(cell)
                if abs(value) >= too_large:
                    raise OptionError(
                        f"{value} is too large for {limits.dtype}. Use float64 (precision: "
                        f"float64, or jax_enable_x64)."
                    )
            except OptionError as error:
                where = f"{path}, row {row} (line {records.line}), column {column.name!r}"
                raise OptionError(f"{where}: {error.sentence}", **error.options) from None
            numbers.append(value)
    return NewRows(names, kept, np.asarray(numbers).reshape(-1, len(columns)), dropped)


def _require_columns(
    path: Path, names: list[str], columns: Sequence[Column], options: Options
) -> None:
    """Raises `ValueError` unless `names`, the header, has each requested column exactly once."""
    wanted = [column.name for column in columns]
    if missing := [column for column in wanted if column not in names]:
        others = {options.y: "y", options.weights: "weights", options.clusters: "clusters"}
        of = others.get(missing[0], "x") if len(missing) == 1 else "x"
        sentence = (
            f"{path} has no column for {of}: {', '.join(map(repr, missing))}; its columns are "
            f"{', '.join(map(repr, names))}."
        )
        other = OTHER_DELIMITER.search(names[0]) if len(names) == 1 else None
        raise OptionError(sentence, **({"delimiter": other[0]} if other else {}))
    for column in wanted:
        if names.count(column) > 1:
            raise ValueError(f"{path} has column {column!r} twice; rename one of them.")
