"""Sizes of axes: numbers, or symbols where `jax.export` makes one program for all sizes."""

from typing import Any

Size = Any  # an int, or a symbol

SYMBOLIC = "its numbers of rows cannot be symbols of jax.export: use Dense(), Blockwise() or Auto()"


def is_symbol(*sizes: Any) -> bool:
    """Whether any of these sizes is a symbol, which cannot be compared with a number."""
    return not all(isinstance(size, int) for size in sizes)


def at_most(size: Any, most: int) -> bool:
    """Whether a size is a number up to `most`; a symbol may be of any size, so it is not."""
    return not is_symbol(size) and size <= most
