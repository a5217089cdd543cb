"""The records of a CSV file, read line by line, with errors that name the line."""

import csv
from collections.abc import Iterator
from pathlib import Path

MAX_LINE_CHARACTERS = 2**24


class Records(Iterator[list[str]]):
    """The records of a CSV file that are not blank; `line` is where the last one began."""

    def __init__(self, path: Path, delimiter: str = ","):
        self._path = path
        csv.field_size_limit(MAX_LINE_CHARACTERS)  # a cell may be that long
        self._reader = csv.reader(_read_lines(path), delimiter=delimiter, strict=True)
        self.line = 0

    def __next__(self) -> list[str]:
        while True:
            self.line = self._reader.line_num + 1
            try:
                cells = next(self._reader)
            except csv.Error as error:
                raise ValueError(
                    f"{self._path}, line {self.line}: not CSV ({error}). Is a quote not closed?"
                ) from None
            if len(cells) > 1 or (cells and cells[0].strip()):
                return cells


def _read_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a regular UTF-8 file; `ValueError` says why it cannot be read."""
    try:
        if path.exists() and not path.is_file():  # a device has no end
            kind = "a directory" if path.is_dir() else "no regular file"
            raise RefusedFileError(f"{path} is {kind}; expected a CSV file.")
        with path.open(encoding="utf-8-sig", newline="") as file:
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
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not UTF-8 text (byte {_first_invalid_byte(path)}); save it as UTF-8."
        ) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except RefusedFileError:
        raise
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not the name of a file: {error}.") from None


class RefusedFileError(ValueError):
    """A file that exists is not a CSV file."""


def _first_invalid_byte(path: Path) -> int:
    """Returns the offset, from 0, of the first byte of a file that is not valid UTF-8."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0
