"""The records of a table in a file, read line by line, with errors that name the line."""

import codecs
import csv
import gzip
import itertools
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from .._core.validation import OptionError

MAX_LINE_CHARACTERS = 2**24
READERS = {".xlsx": "read_excel", ".xls": "read_excel", ".parquet": "read_parquet"}  # of pandas


class Records(Iterator[list[str]]):
    """An iterator over the records of a table that are not blank, each a list of cells.

    `line` is the line, counted from 1, on which the last record began. A first line such as
    `sep=;`, which Excel writes, replaces the delimiter. A file that cannot be read, or is not CSV,
    raises `ValueError`, from the constructor or at the record. A new iterator sets the limit of
    `csv.field_size_limit` for the process.
    """

    def __init__(self, path: Path, delimiter=",", encoding: str = "utf-8", decimal: str = "."):
        self._path, self.line = path, 0
        csv.field_size_limit(MAX_LINE_CHARACTERS)  # a cell may be that long
        lines = _read_lines(path, encoding, sep=delimiter, decimal=decimal)
        first = list(itertools.islice(lines, 1))
        said = re.fullmatch(r'"?sep=(.)"?\s*', first[0]) if first else None
        self._lines_before, delimiter = (0, delimiter) if said is None else (1, said[1])
        lines = lines if said else itertools.chain(first, lines)
        self._reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)

    def __next__(self) -> list[str]:
        while True:
            self.line = self._lines_before + self._reader.line_num + 1
            try:
                cells = next(self._reader)
            except csv.Error as error:
                raise ValueError(
                    f"{self._path}, line {self.line}: not CSV ({error}). Is a quote not closed?"
                ) from None
            if len(cells) > 1 or (cells and cells[0].strip()):
                return cells


def _read_lines(path: Path, encoding: str, **marks: str) -> Iterator[str]:
    """Yields the lines of a text file, also compressed by gzip, and of a workbook or Parquet file
    as CSV with these marks, `sep` and `decimal`; `ValueError` says why it cannot be read, as for a
    line of 2²⁴ characters."""
    try:
        if path.exists() and not path.is_file():  # a device has no end
            kind = "a directory" if path.is_dir() else "no regular file"
            raise RefusedFileError(f"{path} is {kind}; expected a CSV file.")
        if path.suffix in READERS and path.exists():
            yield from _read_by_pandas(path, **marks)
            return
        with path.open("rb") as file:
            first = file.read(4)
        for start, (kind, advice) in SIGNATURES.items():
            if first.startswith(start) and not (path.suffix == ".gz" and kind.endswith("gzip")):
                raise RefusedFileError(f"{path} is {kind}, not CSV: {advice}, or save it as CSV.")
        # a byte-order mark of UTF-8 is skipped
        skipping = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding=skipping, newline="") as file:
            number = 0
            while line := file.readline(MAX_LINE_CHARACTERS):
                number += 1
                if len(line) == MAX_LINE_CHARACTERS:
                    raise RefusedFileError(
                        f"{path}, line {number}: more than {MAX_LINE_CHARACTERS} characters; "
                        f"expected the cells of one row."
                    )
                yield line
    except FileNotFoundError:
        raise ValueError(
            f"There is no file {path} (looked from the directory {Path.cwd()})."
        ) from None
    except UnicodeError:
        raise _encoding_error(path, encoding) from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from None
    except RefusedFileError:
        raise
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not the name of a file: {error}.") from None


# what a file begins with: what it is, and what to do
SIGNATURES = {
    b"PK\x03\x04": ("an Excel workbook or another ZIP archive", "name a workbook NAME.xlsx"),
    b"\xd0\xcf\x11\xe0": ("an old Excel workbook", "name it NAME.xls"),
    b"PAR1": ("a Parquet file", "name it NAME.parquet"),
    b"\x1f\x8b": ("compressed by gzip", "name it NAME.csv.gz"),
    b"%PDF": ("a PDF", "copy its table into a spreadsheet"),
}


def _read_by_pandas(path: Path, **marks: str) -> Iterator[str]:
    """Yields the lines of CSV of the first sheet of a workbook, or of a Parquet file.

    `RefusedFileError` if pandas is not installed or cannot read the file.
    """
    try:
        import pandas  # noqa: PLC0415  an extra

        frame = getattr(pandas, READERS[path.suffix])(path)
    except ImportError as error:
        raise RefusedFileError(f"{path} is read by pandas: {error}") from None
    except Exception as error:
        raise RefusedFileError(f"{path} cannot be read: {error}") from None
    yield from frame.to_csv(index=False, **marks).splitlines(keepends=True)


def _encoding_error(path: Path, encoding: str) -> OptionError:
    """Returns the error for a file of another encoding, with the one that it is likely to have."""
    start, place = path.read_bytes(), 0
    guess = "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "cp1252"
    try:
        start.decode(encoding)
    except UnicodeDecodeError as error:
        place = error.start
    options = {} if guess == encoding else {"encoding": guess}
    sentence = f"{path} is not {encoding.upper()} text (byte {place}); save it as UTF-8."
    return OptionError(sentence, **options)


class RefusedFileError(ValueError):
    """A file exists, but cannot be read as a table, such as a directory or a PDF."""
