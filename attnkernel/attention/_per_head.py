"""Heads and batches: one kernel, prior or rule for each head, and one sum for each member."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._core.symbolic_sizes import is_symbolic
from .._core.validation import as_integer, require_instance
from ..kernels import Kernel
from ..priors import Prior, Sum
from ..rules import Rule

Parts = tuple[Any, Any, Any]  # kernel, prior and rule, each for all heads or `PerHead`


class PerHead(eqx.Module):
    """A kernel, prior or rule for each head: for each place along the last batch axis.

    `attend(q, k, v, kernel=PerHead(eqx.filter_vmap(ak.Gaussian)(lengthscales)))` has an axis of
    heads before the queries, whether q, k and v have one or not. To a prior of all heads it is
    added by `+`.

    **Arguments:**

    - `stack`: a kernel, prior or rule whose every array has leading axes of heads, as
      `eqx.filter_vmap` makes them.
    - `axes`: how many: the last batch axes, such as (groups, heads of a group). Default: 1.

    **Raises:** `ValueError` if arrays of the stack differ in these axes, or it has none.
    """

    stack: Kernel | Prior | Rule
    axes: int = eqx.field(default=1, static=True)

    def __check_init__(self):
        example = "eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, 8))"
        require_instance("stack", self.stack, (Kernel, Prior, Rule), example)
        as_integer("axes", self.axes, 1)
        shapes = {leaf.shape[: self.axes] for leaf in self._arrays()}
        if len(shapes) != 1 or len(next(iter(shapes))) < self.axes:
            raise ValueError(
                f"Every array of the stack must have the same {self.axes} leading axes of heads; "
                f"got {sorted(shapes) or 'no array'}. Try "
                f"eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, 8))."
            )

    def _arrays(self) -> list[Array]:
        return jax.tree.leaves(eqx.filter(self.stack, eqx.is_array))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes of heads."""
        return self._arrays()[0].shape[: self.axes]

    def head(self, *index: int) -> Any:
        """The kernel, prior or rule of one head."""
        return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, self.stack)

    def __add__(self, other: "Prior | PerHead") -> Sum:
        return Sum(self, other)

    __radd__ = __add__


def _is_per_head(node: Any) -> bool:
    return isinstance(node, PerHead)


def first(part: Any) -> Any:
    """The part as the first head has it."""
    return jax.tree.map(
        lambda node: node.head(*[0] * node.axes) if _is_per_head(node) else node,
        part,
        is_leaf=_is_per_head,
    )


def batch_shape(parts: Any, *arrays: Any) -> tuple[Any, ...]:
    """The batch axes of rows and columns, and of heads, together.

    **Raises:** `ValueError` where they do not broadcast.
    """
    heads = [node.shape for node in jax.tree.leaves(parts, _is_per_head) if _is_per_head(node)]
    try:
        return jnp.broadcast_shapes(*(array.shape[:-2] for array in arrays), *heads)
    except ValueError:
        shapes = ", ".join(
            f"{name} {array.shape}" for name, array in zip("qkv", arrays, strict=False)
        )
        of_heads = f", and heads {', '.join(map(str, heads))}" if heads else ""
        raise ValueError(
            f"The leading batch axes must broadcast; got {shapes}{of_heads}."
        ) from None


def over_batch(
    function: Callable[..., Any], at_a_time: int | None, parts: Parts, *arrays: Array
) -> Any:
    """`function(parts, *arrays)` of every member of a batch: so many at a time; None: all."""
    batch = batch_shape(parts, *arrays)

    def whole_rank(leaf: Array, axes: int) -> Array:
        return jnp.expand_dims(leaf, tuple(range(len(batch) - axes)))

    # what each member has of its own, all its batch axes in place, and what all share
    nodes, structure = jax.tree.flatten(parts, _is_per_head)
    own, shared = [], []
    for node in nodes:
        mine, rest = eqx.partition(node.stack, eqx.is_array) if _is_per_head(node) else (None, node)
        own.append(jax.tree.map(lambda leaf, node=node: whole_rank(leaf, node.axes), mine))
        shared.append(rest)
    rows = [whole_rank(array, array.ndim - 2) for array in arrays]
    leaves, of_leaves = jax.tree.flatten((own, rows))

    def of_member(leaves: list[Array]) -> Any:
        own, arrays = jax.tree.unflatten(of_leaves, leaves)
        members = [
            eqx.combine(mine, rest) if _is_per_head(node) else rest
            for mine, rest, node in zip(own, shared, nodes, strict=True)
        ]
        return function(jax.tree.unflatten(structure, members), *arrays)

    count = math.prod(batch)
    # a symbolic number of members is cut into single ones, or not at all
    if at_a_time is None or (at_a_time > 1 if is_symbolic(count) else count <= at_a_time):
        return _nested(of_member, leaves, batch)
    flat = [
        jnp.broadcast_to(leaf, batch + rest).reshape(count, *rest)
        for leaf in leaves
        for rest in [leaf.shape[len(batch) :]]
    ]
    found = jax.lax.map(of_member, flat, batch_size=at_a_time if at_a_time > 1 else None)
    return jax.tree.map(lambda leaf: leaf.reshape(*batch, *leaf.shape[1:]), found)


def _nested(
    of_member: Callable[[list[Array]], Any], leaves: list[Array], batch: tuple[int, ...]
) -> Any:
    """One `vmap` for each axis; what has size 1 there is shared."""
    if not batch:
        return of_member(leaves)
    shared = [leaf.shape[0] == 1 for leaf in leaves]
    leaves = [leaf[0] if one else leaf for leaf, one in zip(leaves, shared, strict=True)]

    def inner(leaves: list[Array]) -> Any:
        return _nested(of_member, leaves, batch[1:])

    if batch[0] == 1:
        return jax.tree.map(lambda leaf: leaf[None], inner(leaves))
    return jax.vmap(inner, in_axes=([None if one else 0 for one in shared],))(leaves)
