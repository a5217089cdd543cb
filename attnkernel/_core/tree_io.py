"""Trees as plain data and a list of arrays, and back: what a file of a model is made of.

The plain data name classes and functions by registered names, those of attnkernel and of the
layers of Equinox; a class of one's own has to be handed over to be found again. So a file can name
only what its reader already has, and reading it runs nothing.
"""

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

Arrays = list[tuple[str, Any]]  # with the place of each


def flatten(tree: Any) -> tuple[Any, Arrays]:
    """Plain data, as JSON has them, and the arrays of a tree.

    **Raises:** `ValueError` at what has no name: functions, and objects that are no `eqx.Module`.
    """
    arrays: Arrays = []
    return _plain(tree, "", arrays), arrays


def _plain(value: Any, place: str, arrays: Arrays) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if is_key(value):
        inner = _plain(jax.random.key_data(value), place, arrays)
        return {"key": str(jax.random.key_impl(value)), "data": inner}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        if not isinstance(value, jax.Array) and np.asarray(value).dtype.hasobject:
            raise ValueError(f"{place or 'The array'} holds objects of Python, and not numbers.")
        arrays.append((place, value))
        return {"array": len(arrays) - 1}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        inner = [_plain(item, f"{place}[{i}]", arrays) for i, item in enumerate(value)]
        return {type(value).__name__: inner}
    if type(value) is dict and all(type(key) is str for key in value):
        # keys may themselves be paths, of a state
        join = [(key, f"{place}{key}" if key[:1] in ".[" else f"{place}.{key}") for key in value]
        return {"dict": [[key, _plain(value[key], where, arrays)] for key, where in join]}
    if isinstance(value, eqx.Module):
        fields = {
            field.name: _plain(getattr(value, field.name), f"{place}.{field.name}", arrays)
            for field in dataclasses.fields(value)  # type: ignore[arg-type]
            if hasattr(value, field.name)
        }
        return {"module": name_of(type(value)), "fields": fields}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"dtype": jnp.dtype(value).name}
    for name, function in _functions().items():
        if value is function:
            return {"function": name}
    raise ValueError(
        f"{place or 'This'} is {value!r}, a {type(value).__name__}, which a file cannot name: only "
        f"modules, arrays, numbers, strings, and lists, tuples and dictionaries of them are saved. "
        f"Of functions: those of jax.nn; for another write an eqx.Module with a `__call__`."
    )


def is_key(value: Any) -> bool:
    """Whether it is an array of keys in JAX's newer style, which are no numbers."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def unflatten(plain: Any, arrays: Sequence[Any], classes: Sequence[type] = ()) -> Any:
    """The tree again. `classes`: those of one's own that may be in it.

    **Raises:** `ValueError` for names that are unknown, and for data that are of no tree.
    """
    return _tree(plain, arrays, registered() | {name_of(own): own for own in classes})


def _tree(plain: Any, arrays: Sequence[Any], known: Mapping[str, type]) -> Any:
    back = functools.partial(_tree, arrays=arrays, known=known)
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    match plain:
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
        case {"function": str(name)} if name in _functions():
            return _functions()[name]
        case {"module": str(name), "fields": dict(fields)}:
            if name not in known:
                own = name.rpartition(".")[2]
                raise ValueError(
                    f"The file holds a {name}, which is no class of this attnkernel. If it is one "
                    f"of your own, hand it over: ak.load(path, classes=[{own}])."
                )
            return _module(known[name], name, {key: back(item) for key, item in fields.items()})
    raise ValueError(f"The file holds {str(plain)[:80]!r}, which is no part of a saved model.")


def _module(cls: type, name: str, fields: dict[str, Any]) -> Any:
    """An instance with these fields, as `jax.tree_util` makes them: its `__init__` is not run."""
    expected = {field.name for field in dataclasses.fields(cls)}
    if not fields.keys() <= expected:
        strange = ", ".join(sorted(fields.keys() - expected))
        raise ValueError(
            f"The file gives {name} a {strange}, which it has not here: it was saved by another "
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


def name_of(cls: type) -> str:
    """`priors.Causal` for `attnkernel.priors._masks.Causal`: files of ours may be split later."""
    parts = [part for part in cls.__module__.split(".") if not part.startswith("_")]
    if parts[:1] == ["attnkernel"]:
        return ".".join([*parts[1:], cls.__qualname__])
    return (
        ".".join([*parts, cls.__qualname__]) if parts[:1] == ["equinox"] else f"own.{cls.__name__}"
    )


def registered() -> dict[str, type]:
    """The classes of attnkernel and the layers of Equinox, by name."""
    return {
        name_of(cls): cls
        for cls in _subclasses(eqx.Module)
        if cls.__module__.split(".")[0] == "attnkernel" or cls.__module__.startswith("equinox.nn")
    }


def _subclasses(cls: type) -> Iterator[type]:
    for inner in cls.__subclasses__():
        if not inspect.isabstract(inner):
            yield inner
        yield from _subclasses(inner)


@functools.cache
def _functions() -> dict[str, Any]:
    """Functions that a model may hold, by name: activations, and the scores of objectives."""
    ours, jnp_names = sys.modules["attnkernel"], ("abs", "cos", "exp", "sin", "square", "tanh")
    found = {f"jax.nn.{name}": item for name, item in vars(jax.nn).items() if callable(item)}
    found |= {f"jax.numpy.{name}": getattr(jnp, name) for name in jnp_names}
    mlp = inspect.signature(eqx.nn.MLP.__init__).parameters  # which has a function of its own
    found["identity"] = mlp["final_activation"].default
    return found | {name: getattr(ours, name) for name in ("log_score", "squared_error")}
