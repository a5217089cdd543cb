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
    return _stack_values(
        heads, type(heads[0]).__name__ if one_class else "The kernel, prior or rule"
    )


def _stack_values(values: Sequence[Any], path: str) -> Any:
    """Stacks `values`, those of one field in each head, along a new first axis: modules, tuples and
    lists item by item. What is no number must be equal in all heads. `path`: the name of the field
    in errors, such as "Gaussian.lengthscale".
    """
    first, classes = values[0], [type(value) for value in values]
    if all(isinstance(value, jax.Array | np.ndarray | bool | int | float) for value in values):
        return _stack_arrays(values, path)
    if len(set(classes)) > 1:
        raise ValueError(
            f"{path} must have the same class in every head; {_describe_class_difference(classes)}."
        )
    if isinstance(first, Constant):
        numbers = tuple(value.number for value in values)
        return ConstantOfHeads(numbers, jnp.arange(len(values)))
    if isinstance(first, tuple | list):
        if len({len(value) for value in values}) > 1:
            raise ValueError(f"{path} must have the same length in every head.")
        return type(first)(
            _stack_values(items, f"{path}[{i}]")
            for i, items in enumerate(zip(*values, strict=True))
        )
    if isinstance(first, eqx.Module):
        return _stack_modules(values, path)
    if any(value is not first and value != first for value in values):
        listed = ", ".join(map(repr, values))
        raise ValueError(f"{path} is no number and must be the same in every head; got {listed}.")
    return first


def _describe_class_difference(classes: Sequence[type]) -> str:
    """Returns in words how the classes of one field differ between heads, for an error."""
    if all(issubclass(each, Parameter) for each in classes):
        return "it is fixed in some and trained in others"
    if type(None) in classes:
        return "it is None in some and given in others"
    return "got " + " and ".join(sorted({each.__name__ for each in classes}))


def _stack_modules(modules: Sequence[Any], path: str) -> Any:
    """Stacks modules of one class, one of each head, field by field; a static field must be equal
    in all. `path` names the modules in errors.
    """
    first, stacked = modules[0], {}
    for field in dataclasses.fields(first):
        name = f"{path}.{field.name.removesuffix('_parameter')}"
        values = [getattr(module, field.name) for module in modules]
        if not field.metadata.get("static"):
            stacked[field.name] = _stack_values(values, name)
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


def _stack_arrays(arrays: Sequence[Any], path: str) -> jax.Array:
    """Stacks arrays or numbers of one shape, one of each head, along a new first axis; `path` names
    them in errors.
    """
    shapes = {np.shape(array) for array in arrays}
    if len(shapes) > 1:
        listed = " and ".join(map(str, sorted(shapes)))
        raise ValueError(f"{path} must have the same shape in every head; got {listed}.")
    return jnp.stack([jnp.asarray(array) for array in arrays])
