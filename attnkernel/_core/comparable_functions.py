"""Functions that are equal if they compute the same: a compiled call then serves them all."""

import functools
import types
from collections.abc import Callable, Hashable
from typing import Any

import jax

from .function_values import function_value


class ComparableFunction:
    """A function that equals others with the same key: all that its results depend on."""

    def __init__(self, function: Callable, key: Hashable):
        functools.update_wrapper(self, function, updated=())
        self.function, self.key, self.hash = function, key, hash(key)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComparableFunction) and self.key == other.key

    def __hash__(self) -> int:
        return self.hash


def comparable_by_program(function: Callable, *arguments: jax.ShapeDtypeStruct) -> Callable:
    """Returns the function of these arguments as one that equals those with the same StableHLO
    program, or unchanged if its program is incomplete.

    It is traced anew (5 ms), so that a change of what it reads, such as a global, is noticed. Not
    comparable: one that reads an array of an outer `jit` or `vmap`, or calls back into Python.
    """

    def traced_anew(*arguments: Any) -> Any:  # `jit` keeps the trace of a function that it knows
        return function(*arguments)

    traced = jax.jit(traced_anew).trace(*arguments)
    # the others are arrays of outer transformations
    if len(traced.jaxpr.in_avals) > len(arguments):
        return function
    program = traced.lower().as_text()
    return function if "custom_call" in program else ComparableFunction(function, program)


def comparable_by_value(tree: Any) -> Any:
    """Returns a tree whose functions equal those with the same code that read the same values.

    The values are those at this call: a function that reads a list equals another until the list
    changes. A function without a value (see `function_value`) equals only itself.

    ```python
    >>> from attnkernel._core.comparable_functions import comparable_by_value
    >>> first, second = (comparable_by_value(optax.adam(0.1)) for _ in range(2))
    >>> first == second, first == comparable_by_value(optax.adam(0.2))
    (True, False)
    ```
    """
    return jax.tree.map(_comparable_leaf, tree)


def _comparable_leaf(leaf: Any) -> Any:
    """Returns a Python function as a `ComparableFunction` if it has a value; all else unchanged."""
    if not isinstance(leaf, types.FunctionType | types.MethodType | functools.partial):
        return leaf
    key = function_value(leaf)
    return leaf if key is None else ComparableFunction(leaf, key)
