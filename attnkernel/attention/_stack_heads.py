"""Stacks kernels, priors or rules, one of each head, into one with an axis of heads."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._core.parameters import Constant, ConstantOfHeads, Parameter
from .._core.validation import require_instance
from ..kernels import Kernel
from ..priors import Prior
from ..rules import Rule

EXAMPLE = "eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, 8))"


def stack_heads(heads: Sequence[Any]) -> Any:
    """The heads as one kernel, prior or rule, whose arrays have a leading axis of heads.

    **Raises:** `ValueError` unless the heads are of one class and differ in numbers alone.
    """
    if not heads:
        raise ValueError("stack must have at least one head; got an empty list.")
    for h, head in enumerate(heads):
        require_instance(f"stack[{h}]", head, (Kernel, Prior, Rule), "ak.Gaussian(0.1)")
    one_class = len({*map(type, heads)}) == 1
    return _stack_parts(
        heads, type(heads[0]).__name__ if one_class else "The kernel, prior or rule"
    )


def _stack_parts(parts: Sequence[Any], path: str) -> Any:
    """The same field of every head, stacked; `path` names it in errors."""
    first, classes = parts[0], [type(part) for part in parts]
    if all(isinstance(part, jax.Array | np.ndarray | bool | int | float) for part in parts):
        return _stack_numbers(parts, path)
    if len(set(classes)) > 1:
        raise ValueError(
            f"{path} must have the same class in every head; {_class_difference(classes)}."
        )
    if isinstance(first, Constant):
        numbers = tuple(part.number for part in parts)
        return ConstantOfHeads(numbers, jnp.arange(len(parts)))
    if isinstance(first, tuple | list):
        if len({len(part) for part in parts}) > 1:
            raise ValueError(f"{path} must have the same length in every head.")
        return type(first)(
            _stack_parts(items, f"{path}[{i}]") for i, items in enumerate(zip(*parts, strict=True))
        )
    if isinstance(first, eqx.Module):
        return _stack_fields(parts, path)
    if any(part is not first and part != first for part in parts):
        listed = ", ".join(map(repr, parts))
        raise ValueError(f"{path} is no number and must be the same in every head; got {listed}.")
    return first


def _class_difference(classes: Sequence[type]) -> str:
    """A phrase that says how the classes of one field differ."""
    if all(issubclass(each, Parameter) for each in classes):
        return "it is fixed in some and trained in others"
    if type(None) in classes:
        return "it is None in some and given in others"
    return "got " + " and ".join(sorted({each.__name__ for each in classes}))


def _stack_fields(parts: Sequence[Any], path: str) -> Any:
    """Modules of one class, stacked field by field; a static field must be the same in all."""
    first, stacked = parts[0], {}
    for field in dataclasses.fields(first):
        name = f"{path}.{field.name.removesuffix('_parameter')}"
        values = [getattr(part, field.name) for part in parts]
        if not field.metadata.get("static"):
            stacked[field.name] = _stack_parts(values, name)
        elif any(value != values[0] for value in values):
            listed = ", ".join(map(repr, values))
            raise ValueError(f"{name} must be the same in every head; got {listed}.")
    names = list(stacked)
    return eqx.tree_at(
        lambda module: [getattr(module, name) for name in names],
        first,
        [stacked[name] for name in names],
        is_leaf=lambda node: node is None,
    )


def _stack_numbers(numbers: Sequence[Any], path: str) -> jax.Array:
    """Arrays or numbers of one shape, stacked."""
    shapes = {np.shape(number) for number in numbers}
    if len(shapes) > 1:
        listed = " and ".join(map(str, sorted(shapes)))
        raise ValueError(f"{path} must have the same shape in every head; got {listed}.")
    return jnp.stack([jnp.asarray(number) for number in numbers])
