"""A run: its directory, its ending, and how it is resumed and reproduced."""
# ruff: noqa: F401  names for the rooms above

from .directory import Run
from .distributed import reserve_threads
from .files import (
    OutputError,
    as_cell,
    flat,
    is_number,
    numbers_of,
    output_errors,
    plain,
    plain_table,
    read_json,
    save_figure,
    status_of,
    write_csv,
    write_json,
)
from .monitor import NO_MONITOR, Monitor
from .provenance import digest_of
from .runner import check, settings, study_of
