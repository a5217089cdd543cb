"""What is decided while JAX traces: constants of derivatives, decisions of batches, symbolic sizes.

Symbolic sizes are those that `jax.export` traces with, for programs of any size. Signatures say
`int` for a size of either kind, as the shapes of JAX do.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array


def over_batch(reduce: Callable[..., Array]) -> Callable[[Array], Array]:
    """Returns the identity that under `vmap` reduces the batch, along axis 0, to one result.

    The result has no batch axis, so that a `cond` on it stays a `cond`: with a batched predicate
    JAX runs both branches. It has no derivative.
    """

    @jax.custom_batching.custom_vmap
    def reduced(value: Array) -> Array:
        return value

    @reduced.def_vmap
    def _(size: int, batched: list[bool], values: Array) -> tuple[Array, bool]:
        return reduced(reduce(values, axis=0)), False

    return reduced


# whether any batch element needs a branch that is correct, if slower, for all of them
any_in_batch = over_batch(jnp.any)


NO_SYMBOLIC_SIZES = (
    "it does not support the symbolic sizes of jax.export; use Dense() or Blockwise()"
)


def is_symbolic(*sizes: Any) -> bool:
    """Whether any size is symbolic: its order relative to an integer is then unknown."""
    return not all(isinstance(size, int) for size in sizes)


def is_at_most(size: Any, maximum: int) -> bool:
    """Whether a size is known to be at most `maximum`; false for a symbolic size."""
    return not is_symbolic(size) and size <= maximum


Tree = TypeVar("Tree")


def stop_gradients(tree: Tree) -> Tree:
    """Returns the tree with `jax.lax.stop_gradient` of its real arrays; all else as it is."""
    return jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, tree
    )
