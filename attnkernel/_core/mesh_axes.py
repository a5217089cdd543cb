"""Mesh axes along which arrays vary inside `jax.shard_map`, which compares them by default.

The first carry of a loop and the last must vary along the same axes, and so must the results of
the branches of a `cond`. A constant varies along none.
"""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array


def vary_alike(tree: Any, *like: Any) -> Any:
    """The tree, every array of it varying along all mesh axes of any array of it and of `like`.

    Outside `jax.shard_map` no array varies, and the tree is returned as it is.
    """
    leaves = jax.tree.leaves((tree, like))
    axes = frozenset().union(*map(_varying_axes, filter(eqx.is_array, leaves)))
    if not axes:
        return tree
    return jax.tree.map(lambda leaf: _vary(leaf, axes) if eqx.is_array(leaf) else leaf, tree)


def _varying_axes(array: Array) -> frozenset[str]:
    of_type = jax.typeof(array)
    if hasattr(of_type, "mat"):  # JAX from 0.10
        return of_type.mat.varying
    return getattr(of_type, "vma", frozenset())


def _vary(array: Array, axes: frozenset[str]) -> Array:
    missing = tuple(sorted(axes - _varying_axes(array)))
    if not missing:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, missing, to="varying")
    before: Any = jax.lax  # JAX 0.7, where it is the function `pvary`
    return before.pvary(array, missing)
