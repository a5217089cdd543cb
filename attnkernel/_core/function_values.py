"""The value of a Python function: its code and everything that it reads.

Two functions with equal values compute the same, although each is an object of its own.
"""

import dis
import enum
import functools
import hashlib
import types
from collections.abc import Hashable, Iterable
from typing import Any

import jax
import numpy as np

# Packages whose modules, module-level names and classes do not change while a program runs
STATELESS_MODULES = frozenset({"builtins", "functools", "math", "operator"})
PURE_PYTHON = frozenset({"attnkernel", "equinox", "optax"})  # objects with attributes alone
LIBRARIES = STATELESS_MODULES | PURE_PYTHON | {"jax", "jaxlib", "jaxtyping", "numpy"}
STATEFUL_BUILTINS = frozenset({"__import__", "eval", "exec", "globals", "input", "open"})
CONTAINERS = tuple | list | dict | set | frozenset
JITTED = type(jax.jit(np.sin))
PARTIALS = (functools.partial, jax.tree_util.Partial)
MAX_PARTS, MAX_DEPTH = 10_000, 100


class _NoValueError(Exception):
    """A function reads something that cannot be compared by value."""


class _Identity:
    """An object that equals only itself; holding it keeps its `id` from being used again."""

    def __init__(self, of: Any):
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


def function_value(function: Any) -> Hashable | None:
    """Returns a hashable snapshot of what a function is and reads, or None if there is none.

    Compared are code, defaults, attributes, cells and global names, recursively: numbers by type
    and bits, arrays by dtype, shape and entries, containers by their items in order, functions of
    `jax.jit` by identity. It calls no code of the user.

    There is none if the function reads, or may read, an object of a user's class, a module outside
    `LIBRARIES`, a traced array or more than `MAX_PARTS` objects; or if it imports or sets a global.
    """
    try:
        return _Snapshot().of(function)
    except _NoValueError:
        return None


class _Snapshot:
    """The walk over what one function reads. It asks for types only, so that it runs no method of
    a user's class."""

    def __init__(self):
        self.parts = 0
        self.open: list[int] = []  # ids of the objects that the walk is inside of

    def of(self, value: Any) -> Hashable:
        """Returns the value of any object; raises `_NoValueError` if it has none."""
        self.parts += 1
        if self.parts > MAX_PARTS or len(self.open) > MAX_DEPTH:
            raise _NoValueError
        kind = type(value)
        if kind in (types.NoneType, bool, int, str, bytes, types.EllipsisType):
            return kind, value
        if kind in (float, complex):
            return kind, value.real.hex(), value.imag.hex()
        if id(value) in self.open:  # a function that calls itself, a list in itself
            return "the object at this depth", self.open.index(id(value))
        self.open.append(id(value))
        found = self._of_object(kind, value)
        self.open.pop()
        return found

    def all(self, values: Iterable[Any]) -> tuple[Hashable, ...]:
        """Returns the values of several objects."""
        return tuple(map(self.of, values))

    def _of_object(self, kind: type, value: Any) -> Hashable:
        """Returns the value of an object that is no number and no string. `kind`: its type."""
        if kind is types.FunctionType:
            return self._of_function(value)
        if kind is types.MethodType:
            return "method", *self.all((value.__func__, value.__self__))
        if kind in PARTIALS:
            return _Identity(kind), *self.all((value.func, value.args, value.keywords))
        if kind in (tuple, list, set, frozenset):
            return _Identity(kind), *self.all(value)
        if kind is dict:
            return "dict", self.all(value), self.all(value.values())
        if _is_constant(kind, value):
            return _Identity(value)
        if _package(kind.__module__) not in LIBRARIES:
            raise _NoValueError
        if issubclass(kind, np.dtype):
            return "dtype", value
        if issubclass(kind, np.ndarray | np.generic | jax.Array):
            return _array_value(value)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return _Identity(kind), *self.all(value)
        if _package(kind.__module__) in PURE_PYTHON and not issubclass(kind, CONTAINERS):
            return _Identity(kind), self.of(vars(value))
        raise _NoValueError

    def _of_function(self, function: types.FunctionType) -> Hashable:
        """Returns the value of a Python function."""
        cells = [_cell_content(cell) for cell in function.__closure__ or ()]
        reads = (function.__defaults__, function.__kwdefaults__, vars(function), cells)
        names: Iterable[str] = ()
        if _package(function.__globals__.get("__name__")) not in LIBRARIES:
            names = _global_names(function.__code__)
        read = [(name, self._of_name(name, function.__globals__)) for name in names]
        return function.__code__, self.all(reads), tuple(read)

    def _of_name(self, name: str, scope: dict[str, Any]) -> Hashable:
        """Returns the value of a global name; None if it names a builtin or only an attribute."""
        if name in scope:
            return self.of(scope[name])
        if name in STATEFUL_BUILTINS:
            raise _NoValueError
        return None


def _cell_content(cell: types.CellType) -> tuple[Any, ...]:
    """Returns what a cell holds, in a tuple; an empty one if the variable has no value yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _array_value(array: Any) -> Hashable:
    """Returns the value of an array of JAX or NumPy; raises `_NoValueError` if it has none."""
    if not isinstance(array.dtype, np.dtype) or array.dtype.hasobject:
        raise _NoValueError
    placed = ()
    if isinstance(array, jax.Array):
        if not array.is_fully_addressable:
            raise _NoValueError
        placed = (array.weak_type, array.committed, array.sharding)
    digest = hashlib.sha256(np.asarray(array).tobytes()).digest()
    return _Identity(type(array)), array.dtype, array.shape, placed, digest


def _is_constant(kind: type, value: Any) -> bool:
    """Whether an object of this type is compared by identity, as it does not change."""
    if kind is types.ModuleType:
        return _package(value.__name__) in LIBRARIES
    if issubclass(kind, type):
        return _package(value.__module__) in LIBRARIES
    if kind is types.BuiltinFunctionType:
        return value.__self__ is None or type(value.__self__) is types.ModuleType
    if issubclass(kind, enum.Enum):
        return _package(kind.__module__) in LIBRARIES
    return kind in (np.ufunc, JITTED)


def _package(module: Any) -> str:
    """Returns the first part of the name of a module."""
    return str(module).partition(".")[0]


@functools.cache
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Returns the names that the code and the functions inside it may read from its globals.

    Names of attributes are among them. Raises `_NoValueError` if the code imports or sets a global.
    """
    changes = {dis.opmap[name] for name in ("IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")}
    if changes.intersection(code.co_code[::2]):
        raise _NoValueError
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_global_names(constant))
    return tuple(sorted(names))
