"""Files of a run directory: where it is, its JSON, its figures, its status and its lock."""

import contextlib
import csv
import errno
import io
import itertools
import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import to_jsonable_python
from rich.table import Column, Table

from attnkernel._core.saving import write_atomically

from .. import PROGRAM
from .provenance import digest_of_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

try:
    import fcntl
except ImportError:  # not on Windows: there two processes are not kept apart
    fcntl = None


class OutputError(Exception):
    """The output directory exists, or cannot be written."""


@contextlib.contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Raises an `OSError` of the block as an `OutputError` that names its file, or else `path`."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise OutputError(f"{where} cannot be written: {error.strerror or error}") from None


def require_run(directory: Path, hint: str = "") -> None:
    """**Raises:** `OutputError` if a directory holds no run; `hint` ends its sentence."""
    if not (directory / "config.yaml").is_file():
        raise OutputError(f"{directory} is no run: there is no config.yaml in it{hint}")


_RECORDS = re.compile(r"(meta|status)\.json|output\.log|sources(_\d+)?\.patch|kernels\.py")


def is_record(name: str) -> bool:
    """Whether a file of a run says how it was made: it has no checksum, and may differ when the run
    is repeated.
    """
    return _RECORDS.fullmatch(name) is not None


def default_directory(name: str) -> Path:
    """`results/NAME/TIME`, one that does not exist yet."""
    places = numbered_places(Path("results") / name / time.strftime("%Y-%m-%d_%H-%M-%S"))
    return next(place for place in places if not place.exists())


def numbered_places(directory: Path) -> Iterator[Path]:
    """The directory, then `NAME_2`, `NAME_3`, ..."""
    yield directory
    for number in itertools.count(2):
        yield directory.with_name(f"{directory.name}_{number}")


def rename_if_free(made: Path, place: Path) -> bool:
    """Renames the directory `made` to `place`; returns False if a file or a directory with entries
    is there.
    """
    try:
        made.rename(place)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    return True


def resume_command(directory: Path) -> str:
    """The words to type."""
    return f"{PROGRAM} resume {shlex.quote(os.fspath(directory))}"


def save_figure(folder: Path, name: str, figure: "Figure", arrays: Mapping[str, Any]) -> Path:
    """Saves a figure as PNG and PDF, and the arrays that it shows, by default those of
    `plotted_arrays`; returns the first.
    """
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / f"{name}.png")
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
    shown: dict[str, Any] = dict(arrays or plotted_arrays(figure))
    np.savez(folder / f"{name}.npz", **shown)
    return folder / f"{name}.png"


def plotted_arrays(figure: "Figure") -> dict[str, np.ndarray]:
    """The arrays that a figure shows, by the number of the panel and the label in the legend, such
    as "2: softmax"; without one, that of the vertical axis. A label that begins with "_" is not in
    the legend, and is read without it.

    Lines, points and outlines of bands have the rows x and y; error bars have these, and x and y of
    both ends; bars have one row, their heights; images are as they are. The words at the ticks of
    an axis, such as names of data sets, are "2: words along x".
    """
    from matplotlib.collections import PolyCollection  # noqa: PLC0415  with the first figure
    from matplotlib.container import BarContainer, ErrorbarContainer  # noqa: PLC0415
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415

    found: dict[str, np.ndarray] = {}
    for number, ax in enumerate(figure.axes, 1):
        shown: list[tuple[Any, np.ndarray]] = [
            (line, np.transpose(line.get_xydata()))
            for line in ax.lines
            if line.get_transform() is ax.transData and line.get_label() != "_nolegend_"
        ]
        shown += [(image, np.asarray(image.get_array())) for image in ax.images]
        for drawn in (*ax.containers, *ax.collections):
            if isinstance(drawn, PolyCollection):  # of `fill_between`
                shown.append((drawn, np.transpose(drawn.get_paths()[0].vertices)))
            elif isinstance(drawn, BarContainer):
                shown.append((drawn, np.array([patch.get_height() for patch in drawn.patches])))
            elif isinstance(drawn, ErrorbarContainer):
                points, _, (bars,) = drawn.lines
                ends = np.reshape(bars.get_segments(), (-1, 4))
                shown.append((drawn, np.column_stack([points.get_xydata(), ends]).T))
        for drawn, array in shown:
            label = drawn.get_label()
            words = ax.get_ylabel() if label.startswith("_child") else label.removeprefix("_")
            name = f"{number}: {words}"
            same = sum(key.partition(" (again")[0] == name for key in found)
            if array.size:
                found[f"{name} (again {same})" if same else name] = array
        for along, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
            if isinstance(axis.get_major_formatter(), FuncFormatter):  # of words that are given
                words = [tick.get_text() for tick in axis.get_ticklabels()]
                found[f"{number}: words along {along}"] = np.array(words)
    return found


def plain(value: Any) -> Any:
    """Numbers as JSON has them: arrays as lists, what is not finite as null."""
    return to_jsonable_python(
        value, inf_nan_mode="null", fallback=lambda array: np.asarray(array).tolist()
    )


def flat(tree: Any, name: str = "") -> dict[str, Any]:
    """The leaves of a summary or config by their dotted names."""
    if isinstance(tree, Mapping):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list):
        items = [(str(i), value) for i, value in enumerate(tree)]
    else:
        return {name: tree}
    found = {}
    for key, value in items:
        found |= flat(value, f"{name}.{key}" if name else key)
    return found


def numbers_of(summary: Any) -> dict[str, Any]:
    """The numbers of a summary by their dotted names."""
    return {key: value for key, value in flat(summary).items() if is_number(value)}


def is_number(value: Any) -> bool:
    """Whether a value is a number, and no Boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file whole or not at all."""
    write_atomically(path, (json.dumps(plain(content), indent=2) + "\n").encode())


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file whole or not at all; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    write_atomically(path, text.getvalue().encode())


def plain_table(
    title: str | None, columns: Sequence[str | Column], rows: Iterable[Sequence[str]]
) -> Table:
    """A table for the terminal, without lines."""
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def as_cell(value: Any, digits: int = 4) -> str:
    """A number as text, floats with these significant digits; those of a list with commas, and of a
    dictionary with their names, or as an interval about their mean; none for None and NaN.
    """
    value = plain(value)
    if isinstance(value, dict) and value.keys() == {"mean", "half_width"}:
        return "{mean:.3g} ± {half_width:.1g}".format(**value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {as_cell(one, digits)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(as_cell(one, digits) for one in value)
    return (
        f"{value:.{digits}g}" if isinstance(value, float) else "" if value is None else str(value)
    )


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is missing or invalid."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def status_of(directory: Path) -> dict[str, Any]:
    """The status of a run: its `status.json`, corrected by what is found on the disk.

    `stopped`: running by its status, but without a process. `damaged`: done, but a file differs
    from its checksum, or the summary cannot be read. `unknown`: without a status.
    """
    status = read_json(directory / "status.json")
    state, files = status.get("state"), status.get("files")
    if not isinstance(state, str):
        return status | {"state": "unknown", "reason": "status.json is missing or damaged"}
    if state == "running" and not _is_running(directory):
        return status | {"state": "stopped", "reason": "its process is gone"}
    if state == "done":
        if not isinstance(files, dict) and not read_json(directory / "summary.json"):
            return status | {"state": "damaged", "reason": "summary.json cannot be read"}
        for name, digest in files.items() if isinstance(files, dict) else ():
            path = directory / str(name)
            if not path.is_file() or digest_of_file(path) != digest:
                return status | {"state": "damaged", "reason": f"{name} is not as it was written"}
    return status


def _is_running(directory: Path) -> bool:
    """Whether a process holds the lock of a run directory; True if that is unknown."""
    if fcntl is None:
        return True
    try:
        os.close(locked(directory))
    except (OutputError, OSError):
        return True
    return False


def locked(directory: Path) -> int:
    """The directory as a file, locked until that is closed or this process ends in whatever way.

    **Raises:** `OutputError` where another process has it.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OutputError(f"{directory} is running: its process has not ended") from None
    except OSError:
        pass  # a file system without locks does not keep two processes apart
    return handle
