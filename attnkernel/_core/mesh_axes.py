"""Mesh axes along which arrays vary inside `jax.shard_map`, which checks them by default.

The carry of a loop must vary along the same axes before and after a step, and so must the results
of the branches of a `cond`. A constant varies along no axis.
"""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array


def vary_alike(tree: Any, *others: Any) -> Any:
    """Returns the tree, its arrays varying along all axes that any of the arrays varies along.

    The arrays are those of the tree and of `others`. Outside `jax.shard_map` no array varies, and
    the tree is returned unchanged.
    """
    leaves = jax.tree.leaves((tree, others))
    axes = frozenset().union(*map(_varying_axes, filter(eqx.is_array, leaves)))
    if not axes:
        return tree
    return jax.tree.map(
        lambda leaf: _mark_as_varying(leaf, axes) if eqx.is_array(leaf) else leaf, tree
    )


def _varying_axes(array: Any) -> frozenset[str]:
    """Returns the names of the mesh axes along which `jax.shard_map` lets the array differ between
    devices; outside it, none."""
    abstract = jax.typeof(array)
    if hasattr(abstract, "mat"):  # JAX from 0.10
        return abstract.mat.varying
    return getattr(abstract, "vma", frozenset())


def _mark_as_varying(array: Any, axes: frozenset[str]) -> Array:
    """Returns the same numbers, which `jax.shard_map` then lets differ between devices along these
    mesh axes too."""
    missing = tuple(sorted(axes - _varying_axes(array)))
    if not missing:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, missing, to="varying")
    lax: Any = jax.lax  # JAX 0.7 has `pvary` instead
    return lax.pvary(array, missing)
