"""Symbolic axis sizes: those that `jax.export` traces with, for programs of any size.

Signatures say `int` for a size of either kind, as the shapes of JAX do.
"""

from typing import Any

NO_SYMBOLIC_SIZES = (
    "it does not support the symbolic sizes of jax.export; use Dense() or Blockwise()"
)


def is_symbolic(*sizes: Any) -> bool:
    """Whether any size is symbolic: its order relative to an integer is then unknown."""
    return not all(isinstance(size, int) for size in sizes)


def is_at_most(size: Any, maximum: int) -> bool:
    """Whether a size is known to be at most `maximum`; false for a symbolic size."""
    return not is_symbolic(size) and size <= maximum
