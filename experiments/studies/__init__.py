"""The studies: one module each."""
# ruff: noqa: F401  names for the rooms above

from .study import HoldOutSizes, Keys, Study, load, tables_as_rows, with_fields
