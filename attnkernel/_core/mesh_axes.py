"""Axes of device meshes: those that shardings name, and those along which arrays vary.

On a mesh of explicit axes JAX infers the sharding of every array, and refuses operations in which
it is ambiguous. Inside `jax.shard_map` JAX checks along which axes arrays vary. The carry of a loop
must vary along the same axes before and after a step, and so must the results of the branches of a
`cond`. A constant varies along no axis.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array


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

    `axes()`: the number of first axes of every result that are sharded as all but the last
    `columns` axes of `like`; a result may have more batch axes in front. The mesh is that of the
    arrays: users need not have set it.
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
