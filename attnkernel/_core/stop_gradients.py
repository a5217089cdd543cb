"""Trees of constants: arrays through which no derivative passes."""

from typing import TypeVar

import equinox as eqx
import jax

Tree = TypeVar("Tree")


def stop_gradients(tree: Tree) -> Tree:
    """Returns the tree with `jax.lax.stop_gradient` of its real arrays; all else as it is."""
    return jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, tree
    )
