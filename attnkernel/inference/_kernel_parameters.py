"""The parameters of a kernel in natural units, named by the columns of x that they belong to."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._core.parameters import Parameter
from ..kernels import Kernel, OnColumns, Product

MAX_LISTED_NUMBERS = 16  # of one array; larger ones, such as those of projections, are left out


def kernel_expression(kernel: Kernel) -> str:
    """The kernel as a formula without numbers: `Gaussian.on(0) * AitchisonAitken.on(1)`."""
    if isinstance(kernel, Product):
        return f"{kernel_expression(kernel.first)} * {kernel_expression(kernel.second)}"
    if isinstance(kernel, OnColumns):
        columns = ", ".join(map(repr, kernel.columns))
        return f"{kernel_expression(kernel.kernel)}.on({columns})"
    inner = ", ".join(map(kernel_expression, _inner_kernels(kernel)))
    return f"{type(kernel).__name__}({inner})" if inner else type(kernel).__name__


def natural_parameters(kernel: Kernel, names: Sequence[str]) -> dict[str, float]:
    """Each number of a kernel by its name: `lengthscale of age`.

    A name that would come twice starts with that of its kernel: `Periodic lengthscale of age`.
    """
    found: dict[str, float] = {}
    for owner, name, value in _named_numbers(kernel, tuple(names)):
        found[name if name not in found else f"{owner} {name}"] = value
    return found


def _named_numbers(kernel: Kernel, names: tuple[str, ...]) -> Iterator[tuple[str, str, float]]:
    """Yields (class name of the kernel, name, value) for each scalar parameter, nested ones too.

    `names`: those of the columns that the kernel sees.
    """
    if isinstance(kernel, OnColumns):
        names = tuple(c if isinstance(c, str) else names[c] for c in kernel.columns)
    owner = type(kernel).__name__
    for name, value in _own_parameters(kernel):
        if np.size(value) > MAX_LISTED_NUMBERS:
            continue
        if value.ndim == 0:
            yield owner, f"{name} of {', '.join(names)}", float(value)
        elif value.shape == (len(names),):
            yield from (
                (owner, f"{name} of {column}", float(each))
                for column, each in zip(names, value, strict=True)
            )
        else:
            yield from (
                (owner, f"{name}{list(place)}", float(value[place]))
                for place in np.ndindex(value.shape)
            )
    for inner in _inner_kernels(kernel):
        yield from _named_numbers(inner, names)


def _inner_kernels(kernel: Kernel) -> list[Kernel]:
    """Returns the kernels that are fields of a kernel."""
    return [value for _, value in _fields(kernel) if isinstance(value, Kernel)]


def _own_parameters(kernel: Kernel) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and value of each parameter of a kernel, without those of inner kernels.

    Its natural parameters are its public properties with a real value. A parameter without a
    property is read from its field, in which `log_a` is the logarithm of a.
    """
    natural = {name: getattr(kernel, name) for name in _property_names(type(kernel))}
    natural = {
        name: value
        for name, value in natural.items()
        if isinstance(value, jax.Array) or getattr(kernel, f"{name}_parameter", None) is not None
    }
    yield from ((name, np.asarray(value)) for name, value in natural.items())
    for name, value in _fields(kernel):
        plain = name.removesuffix("_parameter").removeprefix("log_")
        if plain in natural:
            continue
        if isinstance(value, Parameter):
            yield plain, np.asarray(value.value)
        elif eqx.is_inexact_array(value) and (plain != name or not natural):
            yield plain, np.asarray(value if plain == name else np.exp(value))


def _property_names(kind: type) -> list[str]:
    """Returns the names of a kernel class's public properties, except those of `Kernel` itself."""
    classes = [each for each in kind.__mro__ if issubclass(each, Kernel) and each is not Kernel]
    names = {
        name: None
        for each in classes
        for name, value in vars(each).items()
        if isinstance(value, property) and not name.startswith("_")
    }
    return list(names)


def _fields(kernel: Kernel) -> Iterator[tuple[str, Any]]:
    """Yields the name and value of each dataclass field of a kernel."""
    for field in dataclasses.fields(kernel):  # type: ignore[arg-type]
        yield field.name, getattr(kernel, field.name)
