"""Heads and batches: one kernel, prior or rule for each head, and one sum for each member."""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import kernels, priors
from .._core.parameters import Constant, ConstantOfHeads
from .._core.tracing import is_symbolic
from .._core.validation import as_integer, require_instance
from ..kernels import Kernel
from ..priors import Prior, ScoreFunction
from ..rules import Rule

_EXAMPLE = "eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, 8))"
KernelPriorRule = tuple[Any, Any, Any]  # kernel, prior and rule, each for all heads or `PerHead`


class PerHead(eqx.Module):
    """A kernel, prior or rule for each head: for each place along the last batch axis.

    With it, the result of `attend` has an axis of heads before the queries, also if q, k and v have
    none. It is multiplied by another of its kind, of all heads or `PerHead`, by `*`.

    **Arguments:**

    - `stack`: a list of kernels, of priors or of rules, one of each head. They must have the same
      class and differ in numbers alone. Or one kernel, prior or rule whose arrays all have leading
      axes of heads, as `eqx.filter_vmap` makes it.
    - `axes`: the number of leading axes of heads, such as 2 for (groups, heads of a group). They
      are the last batch axes. Default: 1.

    **Raises:** `ValueError` if heads of a list differ in more than numbers, if arrays of a stack
    differ in the axes of heads, or if a stack has no array.

    ```python
    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    kernel = ak.PerHead([ak.Gaussian(0.1), ak.Gaussian(1.0)])
    assert ak.attend(x, x, x, kernel=kernel).shape == (2, 5, 1)
    ```
    """

    stack: Kernel | Prior | Rule
    axes: int = eqx.field(static=True)

    def __init__(self, stack: Kernel | Prior | Rule | Sequence[Any], axes: int = 1):
        self.axes = as_integer("axes", axes, 1)
        if isinstance(stack, list | tuple):
            if self.axes != 1:
                raise ValueError(
                    f"A list of heads has one axis; got axes={axes}. For more give one stack: "
                    f"{_EXAMPLE}."
                )
            stack = _stack_heads(stack)
        require_instance("stack", stack, (Kernel, Prior, Rule), _EXAMPLE)
        self.stack = cast(Any, stack)
        shapes = {leaf.shape[: self.axes] for leaf in self._stacked_arrays()}
        if len(shapes) != 1 or len(next(iter(shapes))) < self.axes:
            raise ValueError(
                f"Every array of the stack must have the same {self.axes} leading axes of heads; "
                f"got {sorted(shapes) or 'no array'}. Try {_EXAMPLE}."
            )
        is_function = lambda node: isinstance(node, ScoreFunction)  # noqa: E731
        self.stack = jax.tree.map(
            lambda node: node.numbered(self.shape) if is_function(node) else node,
            self.stack,
            is_leaf=is_function,
        )

    def _stacked_arrays(self) -> list[Array]:
        """Returns the array leaves of `stack`, each with the axes of heads first."""
        return jax.tree.leaves(eqx.filter(self.stack, eqx.is_array))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes of heads."""
        return self._stacked_arrays()[0].shape[: self.axes]

    def head(self, *index: int) -> Any:
        """The kernel, prior or rule of one head. `index`: one integer for each axis of heads."""
        return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, self.stack)

    def __mul__(self, other: "Kernel | Prior | PerHead") -> Kernel | Prior:
        return self._product()(self, other)

    def __rmul__(self, other: Kernel | Prior) -> Kernel | Prior:
        return self._product()(other, self)

    def _product(self) -> Any:
        """Returns the class of products of kernels, or of priors; `ValueError` for rules."""
        if isinstance(self.stack, Rule):
            raise ValueError("Kernels and priors have a product; a rule has none.")
        return kernels.Product if isinstance(self.stack, Kernel) else priors.Product


def _is_per_head(node: Any) -> bool:
    """Whether a node of a tree is a `PerHead`."""
    return isinstance(node, PerHead)


def has_heads(part: Any) -> bool:
    """Whether a kernel, prior or rule holds a `PerHead`."""
    return any(map(_is_per_head, jax.tree.leaves(part, is_leaf=_is_per_head)))


def first_head(part: Any) -> Any:
    """The kernel, prior or rule of the first head; one without heads is returned as it is."""
    return jax.tree.map(
        lambda node: node.head(*[0] * node.axes) if _is_per_head(node) else node,
        part,
        is_leaf=_is_per_head,
    )


def batch_shape(parts: Any, *arrays: Any) -> tuple[Any, ...]:
    """Returns the broadcast shape of the batch axes of all arrays and the axes of heads in `parts`.

    `arrays`: of shape (*batch, rows, columns). `parts`: a tree that may hold `PerHead`s.

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


def map_batch(
    function: Callable[..., Any], batch_size: int | None, parts: KernelPriorRule, *arrays: Array
) -> Any:
    """Maps `function(parts, *arrays)` over all batch axes, `batch_size` members at a time.

    `batch_size` None: all members at once. The function gets arrays without batch axes, and the
    member's head in place of each `PerHead`. Results have the batch axes first.
    """
    batch = batch_shape(parts, *arrays)

    def with_batch_rank(leaf: Array, axes: int) -> Array:
        return jnp.expand_dims(leaf, tuple(range(len(batch) - axes)))

    # the arrays of each member, with all batch axes, and the rest, which all share
    nodes, structure = jax.tree.flatten(parts, _is_per_head)
    own, shared = [], []
    for node in nodes:
        mine, rest = eqx.partition(node.stack, eqx.is_array) if _is_per_head(node) else (None, node)
        own.append(jax.tree.map(lambda leaf, node=node: with_batch_rank(leaf, node.axes), mine))
        shared.append(rest)
    rows = [with_batch_rank(array, array.ndim - 2) for array in arrays]
    leaves, of_leaves = jax.tree.flatten((own, rows))

    def of_member(leaves: list[Array]) -> Any:
        own, arrays = jax.tree.unflatten(of_leaves, leaves)
        members = [
            eqx.combine(mine, rest) if _is_per_head(node) else rest
            for mine, rest, node in zip(own, shared, nodes, strict=True)
        ]
        return function(jax.tree.unflatten(structure, members), *arrays)

    count = math.prod(batch)
    # a symbolic number of members is mapped one by one, or all at once
    if batch_size is None or (batch_size > 1 if is_symbolic(count) else count <= batch_size):
        return _vmap_over_axes(of_member, leaves, batch)
    flat = [
        jnp.broadcast_to(leaf, batch + rest).reshape(count, *rest)
        for leaf in leaves
        for rest in [leaf.shape[len(batch) :]]
    ]
    found = jax.lax.map(of_member, flat, batch_size=batch_size if batch_size > 1 else None)
    return jax.tree.map(lambda leaf: leaf.reshape(*batch, *leaf.shape[1:]), found)


def _vmap_over_axes(
    function: Callable[[list[Array]], Any], leaves: list[Array], sizes: tuple[int, ...]
) -> Any:
    """Maps `function` over the first axes of all `leaves`, one `vmap` for each axis. `sizes`: those
    of the axes; a leaf of size 1 along an axis is shared there.
    """
    if not sizes:
        return function(leaves)
    shared = [leaf.shape[0] == 1 for leaf in leaves]
    leaves = [leaf[0] if one else leaf for leaf, one in zip(leaves, shared, strict=True)]

    def inner(leaves: list[Array]) -> Any:
        return _vmap_over_axes(function, leaves, sizes[1:])

    if sizes[0] == 1:
        return jax.tree.map(lambda leaf: leaf[None], inner(leaves))
    return jax.vmap(inner, in_axes=([None if one else 0 for one in shared],))(leaves)


def _stack_heads(heads: Sequence[Any]) -> Any:
    """The heads as one kernel, prior or rule, whose arrays have a leading axis of heads.

    **Raises:** `ValueError` unless the heads are of one class and differ in numbers alone.
    """
    if not heads:
        raise ValueError("stack must have at least one head; got an empty list.")
    for h, head in enumerate(heads):
        require_instance(f"stack[{h}]", head, (Kernel, Prior, Rule), "ak.Gaussian(0.1)")
    is_constant = lambda node: isinstance(node, Constant)  # noqa: E731
    # static fields are part of the structure
    leaves, structures = zip(
        *(jax.tree.flatten(head, is_leaf=is_constant) for head in heads), strict=True
    )
    kinds = [(s, list(map(_describe_leaf, of))) for s, of in zip(structures, leaves, strict=True)]
    for head, kind in zip(heads, kinds, strict=True):
        if kind != kinds[0]:
            raise ValueError(
                f"Heads must be of one class and differ in numbers alone, each fixed or trained in "
                f"all; got {heads[0]!r} and {head!r}."
            )
    stacked = [_stack_leaves(of_heads) for of_heads in zip(*leaves, strict=True)]
    return jax.tree.unflatten(structures[0], stacked)


def _describe_leaf(leaf: Any) -> Any:
    """Returns what must be equal in all heads: for a number, whether it is fixed, and its shape;
    for any other leaf, the leaf itself."""
    is_fixed = isinstance(leaf, Constant)
    return (is_fixed, np.shape(leaf.value if is_fixed else leaf)) if _is_number(leaf) else leaf


def _is_number(leaf: Any) -> bool:
    """Whether a leaf holds numbers, fixed or trained."""
    return isinstance(leaf, Constant | jax.Array | np.ndarray | bool | int | float)


def _stack_leaves(leaves: Sequence[Any]) -> Any:
    """Returns one leaf for all heads: numbers, one per head, stacked along a new first axis.

    Fixed numbers become a `ConstantOfHeads`. Any other leaf is equal in all heads: it is returned.
    """
    if isinstance(leaves[0], Constant):
        return ConstantOfHeads(tuple(leaf.number for leaf in leaves), jnp.arange(len(leaves)))
    return jnp.stack([jnp.asarray(leaf) for leaf in leaves]) if _is_number(leaves[0]) else leaves[0]
