"""What is decided while JAX traces: constants, decisions of batches, symbolic sizes, mesh axes.

Symbolic sizes are those that `jax.export` traces with, for programs of any size. Signatures say
`int` for a size of either kind, as the shapes of JAX do.

On a mesh of explicit axes JAX infers the sharding of every array, and refuses operations in which
it is ambiguous. Inside `jax.shard_map` JAX checks along which axes arrays vary. The carry of a loop
must vary along the same axes before and after a step, and so must the results of the branches of a
`cond`. A constant varies along no axis.
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
    JAX runs both branches. It cannot be differentiated in reverse mode.
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
    """Returns the tree with `jax.lax.stop_gradient` of its floating and complex arrays of JAX; all
    else as it is."""
    return jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, tree
    )


def vary_alike(tree: Any, *others: Any) -> Any:
    """Returns the tree, its arrays varying along all axes that any of the arrays varies along.

    The arrays are those of the tree and of `others`. Outside `jax.shard_map` no array varies, and
    the tree is returned unchanged.
    """
    arrays = filter(eqx.is_array, jax.tree.leaves((tree, others)))
    axes = frozenset().union(*(jax.typeof(array).mat.varying for array in arrays))
    if not axes:
        return tree

    def mark(leaf: Any) -> Any:
        missing = axes - jax.typeof(leaf).mat.varying if eqx.is_array(leaf) else None
        return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf

    return jax.tree.map(mark, tree)


def with_automatic_axes(
    run: Callable[..., Any], trees: tuple, like: Array, axes: Callable[[], int], columns: int = 1
) -> Any:
    """Returns `run(*trees)`; on a mesh of explicit axes XLA shards its intermediate arrays.

    Every result is sharded as `like` is, along all axes of `like` but the last `columns`. In a
    result these axes are the last of its first `axes()` axes; its other axes are not sharded.
    `axes` is called only on such a mesh. The mesh is that of the arrays: users need not have set
    it.
    """
    meshes = [
        jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(trees) if eqx.is_array(leaf)
    ]
    explicit = [mesh for mesh in meshes if jax.sharding.AxisType.Explicit in mesh.axis_types]
    if not explicit:
        return run(*trees)
    spec = tuple(jax.typeof(like).sharding.spec)
    spec = (*spec, *[None] * (like.ndim - len(spec)))[: like.ndim - columns]
    of_results = jax.sharding.PartitionSpec(*[None] * (axes() - len(spec)), *spec)
    moving, fixed = eqx.partition(trees, eqx.is_array)

    def inside(moving: Any) -> Any:
        return run(*eqx.combine(moving, fixed))

    spread: Any = jax.sharding.auto_axes(inside, out_sharding=of_results)
    with jax.sharding.use_abstract_mesh(explicit[0]):
        return spread(moving)
