"""A call as one compiled program, on a mesh of explicit axes too."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._core import tracing
from .._core.compilation import SMALL_PROGRAM_OPTIONS, ComparableFunction, can_use_options
from ..priors import MaskFunction, ScoreFunction
from ._per_head import batch_shape


def jit_if_pure(function: Any, parts: tuple, *arrays: Any) -> Any:
    """Returns `function(*parts, *arrays)`, compiled if `parts` hold only JAX arrays and constants.

    `parts`: kernel, prior, rule and other settings. If one holds a Python function, whose result
    may change between calls, the call is not compiled as a whole. The function of a `MaskFunction`
    or `ScoreFunction` counts as a constant, by its `comparable` form, unless it reads arrays of an
    outer `jit` or `vmap` or calls back into Python. On a mesh of explicit axes each result must
    begin with the batch axes and the rows of the first array.
    """
    if not _is_pure(parts):
        is_function = lambda node: isinstance(node, MaskFunction | ScoreFunction)  # noqa: E731
        parts = jax.tree.map(
            lambda node: node.comparable(arrays[0].dtype) if is_function(node) else node,
            parts,
            is_leaf=is_function,
        )
    call = _call_on_arrays
    if _is_pure(parts):
        call = _call_small if _is_small(parts, arrays) else _call_compiled
    return with_automatic_axes(lambda *of: call(function, of[0], of[1:]), parts, *arrays)


def _is_small(parts: tuple, arrays: tuple) -> bool:
    """Whether a call may set options of the compiler, and no array has more than 512 rows.

    Rows of all batch members count together.
    """
    if not can_use_options(parts, arrays):
        return False
    shapes = [array.shape for array in jax.tree.leaves(arrays)]
    return max(math.prod(shape[:-1] or shape) for shape in shapes) ** 2 <= 2**18


def with_automatic_axes(run: Any, parts: tuple, *arrays: Any) -> Any:
    """`run(parts, *arrays)`, with the sharding of intermediate arrays left to XLA on a mesh of
    explicit axes.

    The first axes of every result are the batch axes and the rows of the first array, and it is
    sharded along them as that array is.
    """

    def axes() -> int:
        return len(batch_shape(parts, *jax.tree.leaves(arrays))) + 1

    return tracing.with_automatic_axes(run, (parts, *arrays), arrays[0], axes)


def _call_on_arrays(function: Any, parts: tuple, arrays: tuple) -> Any:
    """Returns `function(*parts, *arrays)`. `parts`: kernel, prior, method and other settings;
    `arrays`: q, k, v and other arrays with rows.
    """
    return function(*parts, *arrays)


_call_compiled = eqx.filter_jit(_call_on_arrays)
_call_small: Any = eqx.filter_jit(  # pyright: ignore[reportCallIssue]  passed to `jax.jit`
    _call_on_arrays, compiler_options=SMALL_PROGRAM_OPTIONS
)


def _is_pure(node: Any) -> bool:
    """Whether every leaf of a tree is a JAX array or a hashable constant, so that a compiled call
    with equal leaves gives the same result.
    """
    if isinstance(node, tuple | dict):
        return all(map(_is_pure, node.values() if isinstance(node, dict) else node))
    if isinstance(node, eqx.Module):
        return all(_is_pure(getattr(node, field.name)) for field in dataclasses.fields(node))
    constant = bool | int | float | str | np.dtype | type | ComparableFunction | None
    return isinstance(node, jax.Array | jax.sharding.Mesh | constant)
