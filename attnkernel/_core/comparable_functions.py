"""Functions that are equal if they compute the same: a compiled call then serves them all."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


class ComparableFunction:
    """A function of two positions, equal to others whose StableHLO program is the same."""

    def __init__(self, function: Callable[[Any, Any], Any], program: str):
        self.function, self.program = function, program

    def __call__(self, i: Any, j: Any) -> Any:
        return self.function(i, j)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComparableFunction) and self.program == other.program

    def __hash__(self) -> int:
        return hash(self.program)


def as_comparable(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns the function as a `ComparableFunction`, or unchanged if its program is incomplete.

    It is traced anew (5 ms), so that a change of what it reads, such as a global, is noticed. Not
    comparable: one that reads an array of an outer `jit` or `vmap`, or calls back into Python.
    """

    def traced_anew(i: Any, j: Any) -> Any:  # `jit` keeps the trace of a function that it knows
        return function(i, j)

    position = jax.ShapeDtypeStruct((), jnp.int32)
    traced = jax.jit(traced_anew).trace(position, position)
    if len(traced.jaxpr.in_avals) > 2:  # the others are arrays of outer transformations
        return function
    program = traced.lower().as_text()
    return function if "custom_call" in program else ComparableFunction(function, program)
