"""Trees as plain data and a list of arrays, and back: the content of a file of a model.

The plain data name classes and functions: the classes of attnkernel, the layers of Equinox, the
functions of `jax.nn`, and functions that a class lists in `saved_functions`. A user's own class
must be given to be found again. So a file can name only what its reader already has, and reading
it runs no code.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

Arrays = list[tuple[str, Any]]  # each with its path in the tree
Functions = Mapping[str, Callable]

ACTIVATIONS: Functions = MappingProxyType(
    {f"jax.nn.{name}": item for name, item in vars(jax.nn).items() if callable(item)}
    | {
        f"jax.numpy.{name}": getattr(jnp, name)
        for name in ("abs", "cos", "exp", "sin", "square", "tanh")
    }
    # a function of Equinox itself
    | {"identity": inspect.signature(eqx.nn.MLP.__init__).parameters["final_activation"].default}
)


def flatten(tree: Any) -> tuple[Any, Arrays]:
    """Returns a tree as plain data for JSON, and its arrays, each with its path in the tree.

    **Raises:** `ValueError` for a value that the plain data cannot name: a function that is neither
    in `ACTIVATIONS` nor in the `saved_functions` of its module's class, or an object that is no
    `eqx.Module`.
    """
    arrays: Arrays = []
    return _encode_tree(tree, "", arrays, ACTIVATIONS), arrays


def _encode_tree(value: Any, path: str, arrays: Arrays, functions: Functions) -> Any:
    """Returns a tree as data for JSON, and appends its arrays, with their paths, to `arrays`.
    `path` is the path of the tree itself; `functions`, by name, are those that it may hold."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if is_prng_key(value):
        data = _encode_tree(jax.random.key_data(value), path, arrays, functions)
        return {"key": str(jax.random.key_impl(value)), "data": data}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        if not isinstance(value, jax.Array) and np.asarray(value).dtype.hasobject:
            raise ValueError(f"{path or 'The array'} holds objects of Python, and not numbers.")
        arrays.append((path, value))
        return {"array": len(arrays) - 1}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        items = [_encode_tree(v, f"{path}[{i}]", arrays, functions) for i, v in enumerate(value)]
        return {type(value).__name__: items}
    if type(value) is dict and all(type(key) is str for key in value):
        # the keys of a training state are themselves paths, such as ".model.kernel"
        paths = {key: f"{path}{key}" if key[:1] in ".[" else f"{path}.{key}" for key in value}
        items = [[key, _encode_tree(value[key], paths[key], arrays, functions)] for key in value]
        return {"dict": items}
    if isinstance(value, eqx.Module):
        functions = _savable_functions(type(value))
        fields = {
            field.name: _encode_tree(
                getattr(value, field.name), f"{path}.{field.name}", arrays, functions
            )
            for field in dataclasses.fields(value)  # type: ignore[arg-type]
            if hasattr(value, field.name)
        }
        return {"module": class_name(type(value)), "fields": fields}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"dtype": jnp.dtype(value).name}
    for name, function in functions.items():
        if value is function:
            return {"function": name}
    raise ValueError(
        f"{path or 'This'} is {value!r}, a {type(value).__name__}, which a file cannot name: only "
        f"modules, arrays, numbers, strings, and lists, tuples and dictionaries of them are saved, "
        f"and functions of jax.nn. For another function write an eqx.Module with a `__call__`."
    )


def _savable_functions(cls: type) -> Functions:
    """Returns, by name, the functions that fields of a class may hold in a saved file:
    `ACTIVATIONS` and `cls.saved_functions`, if it has any."""
    return {**ACTIVATIONS, **getattr(cls, "saved_functions", {})}


def is_prng_key(value: Any) -> bool:
    """Whether it is a typed key of `jax.random.key`, whose dtype is not numeric."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def unflatten(plain: Any, arrays: Sequence[Any], classes: Sequence[type] = ()) -> Any:
    """Returns the tree that `flatten` took apart; `classes`: a user's own classes in it.

    **Raises:** `ValueError` for unknown names, and for data that `flatten` does not write;
    `TypeError` for an unknown dtype.
    """
    classes_by_name = registered_classes() | {class_name(own): own for own in classes}
    return _decode_tree(plain, arrays, classes_by_name, ACTIVATIONS)


def _decode_tree(
    encoded: Any, arrays: Sequence[Any], classes: Mapping[str, type], functions: Functions
) -> Any:
    """Returns the tree that `_encode_tree` turned into data for JSON. `arrays` are those that it
    refers to by number, `classes` and `functions` those that it may name."""
    back = functools.partial(_decode_tree, arrays=arrays, classes=classes, functions=functions)
    if encoded is None or isinstance(encoded, bool | int | float | str):
        return encoded
    match encoded:
        case {"float": "nan" | "inf" | "-inf" as text}:
            return float(text)
        case {"array": int(i)} if 0 <= i < len(arrays):
            return arrays[i]
        case {"key": str(kind), "data": data}:
            return jax.random.wrap_key_data(back(data), impl=kind)
        case {"list": list(items)}:
            return [back(item) for item in items]
        case {"tuple": list(items)}:
            return tuple(back(item) for item in items)
        case {"dict": list(pairs)} if all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
        ):
            return {key: back(item) for key, item in pairs}
        case {"dtype": str(name)}:
            return jnp.dtype(name)
        case {"function": str(name)} if name in functions:
            return functions[name]
        case {"module": str(name), "fields": dict(fields)}:
            if name not in classes:
                own = name.rpartition(".")[2]
                raise ValueError(
                    f"The file holds a {name}, which is not a class of this version of attnkernel. "
                    f"If it is your own class, give it: ak.load(path, classes=[{own}])."
                )
            back = functools.partial(back, functions=_savable_functions(classes[name]))
            return _make_module(
                classes[name], name, {key: back(item) for key, item in fields.items()}
            )
    raise ValueError(f"The file holds {str(encoded)[:80]!r}, which is no part of a saved model.")


def _make_module(cls: type, name: str, fields: dict[str, Any]) -> Any:
    """Returns an instance of the class with these values of its fields, without its `__init__`.
    `ValueError`, with the name of the class, unless all fields and no others are given."""
    expected = {field.name for field in dataclasses.fields(cls)}
    if not fields.keys() <= expected:
        unknown = ", ".join(sorted(fields.keys() - expected))
        raise ValueError(
            f"The file gives {name} a {unknown}, which it does not have: it was saved by another "
            f"version of attnkernel, or of your class."
        )
    if missing := expected - fields.keys():
        raise ValueError(
            f"The file gives {name} no {', '.join(sorted(missing))}: it was saved by another "
            f"version of attnkernel, or of your class."
        )
    module = object.__new__(cls)
    for key, value in fields.items():
        object.__setattr__(module, key, value)
    return module


def class_name(cls: type) -> str:
    """Returns the name of a class in files: its public name in attnkernel, such as `priors.Causal`.

    Private modules are left out, so that a file stays readable when a module is split. A class of
    Equinox is `equinox.nn.Linear`. A user's class `Net` is `own.Net`, from whichever module.
    """
    parts = [part for part in cls.__module__.split(".") if not part.startswith("_")]
    if parts[:1] == ["attnkernel"]:
        return ".".join([*parts[1:], cls.__qualname__])
    return (
        ".".join([*parts, cls.__qualname__]) if parts[:1] == ["equinox"] else f"own.{cls.__name__}"
    )


def registered_classes() -> dict[str, type]:
    """Returns the classes that a saved tree may hold, by their `class_name`.

    They are the imported subclasses of `equinox.Module` that are defined in attnkernel or in
    `equinox.nn` and are not abstract.
    """
    return {
        class_name(cls): cls
        for cls in _subclasses(eqx.Module)
        if cls.__module__.split(".")[0] == "attnkernel" or cls.__module__.startswith("equinox.nn")
    }


def _subclasses(cls: type) -> Iterator[type]:
    """Yields the subclasses of a class, direct and indirect, that are not abstract."""
    for inner in cls.__subclasses__():
        if not inspect.isabstract(inner):
            yield inner
        yield from _subclasses(inner)
