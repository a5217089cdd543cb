"""Functions that are equal if they compute the same: a compiled call then serves them all."""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax


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


def comparable_by_program(
    function: Callable, *arguments: Any, call: Callable | None = None
) -> Callable:
    """Returns the function as one that equals those with the same StableHLO program of these
    arguments and the same structure of results, or unchanged if its program is incomplete.

    It is traced anew (5 ms), so that a change of what it reads, such as a global, is noticed. Not
    comparable: one that reads an array of an outer `jit` or `vmap`, or calls back into Python.

    **Arguments:** `arguments`: trees of `jax.ShapeDtypeStruct`. `call`: calls the function with
    these and with what is no array. Default: the function itself.

    ```python
    >>> from attnkernel._core.comparable_functions import comparable_by_program
    >>> number = jax.ShapeDtypeStruct((), jnp.float32)
    >>> one, same, other = (
    ...     comparable_by_program(lambda x, a=a: a * x, number) for a in (2.0, 2.0, 3.0)
    ... )
    >>> one == same, one == other
    (True, False)

    ```
    """

    def traced_anew(*arguments: Any) -> Any:  # `jit` keeps the trace of a function that it knows
        return (call or function)(*arguments)

    traced = jax.jit(traced_anew).trace(*arguments)
    # the others are arrays of outer transformations
    if len(traced.jaxpr.in_avals) > len(jax.tree.leaves(arguments)):
        return function
    program = traced.lower().as_text()
    if "custom_call" in program:
        return function
    return ComparableFunction(function, (program, jax.tree.structure(traced.out_info)))
