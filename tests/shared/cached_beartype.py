"""beartype, once for each signature: 6 % of the CPU time of the tests of attention.

A function that is defined inside another is decorated at every call of the outer one. jaxtyping
makes two functions of its signature, whose bodies compute nothing, and has these checked.
"""

import typing

from beartype import beartype
from jaxtyping import AbstractArray

_CHECKED = {}


def parts_of(annotation):
    """An annotation by its parts, which are equal for equal annotations; jaxtyping's are not."""
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return annotation.array_type, annotation.dtypes, annotation.dim_str
    if parts := typing.get_args(annotation):
        return typing.get_origin(annotation), *map(parts_of, parts)
    return annotation


def check(function):
    """`beartype(function)`, or what it returned for an equal signature before."""
    annotations = [(name, parts_of(each)) for name, each in function.__annotations__.items()]
    named = function.__kwdefaults__ or {}
    key = (
        function.__module__,
        function.__qualname__,
        function.__code__,
        tuple(annotations),
        tuple(map(type, function.__defaults__ or ())),
        tuple((name, type(value)) for name, value in named.items()),
    )
    try:
        found = _CHECKED.get(key)
    except TypeError:  # a part without a hash
        return beartype(function)
    if found is None:
        found = _CHECKED[key] = beartype(function)
    return found
