"""Sizes of axes: integers, or symbolic dimensions while `jax.export` traces for all sizes.

Signatures say `int` for both, as the shapes of JAX do.
"""

from typing import Any

UNSUPPORTED = "it does not support the symbolic sizes of jax.export; use Dense() or Blockwise()"


def is_symbolic(*sizes: Any) -> bool:
    """Whether any size is symbolic: its order relative to an integer is then unknown."""
    return not all(isinstance(size, int) for size in sizes)


def at_most(size: Any, most: int) -> bool:
    """Whether a size is known to be at most `most`. False for a symbolic size."""
    return not is_symbolic(size) and size <= most
