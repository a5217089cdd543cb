"""Checks of single arguments: an error says what was expected, what came, and what to try."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .arrays import as_float64, is_concrete, value_text

MAX_INTEGER = 2**31 - 1


def require_shape(
    function: str, result: Any, shape: tuple[int, ...], expected: str, hint: str
) -> Any:
    """Returns the result of a user's function; `ValueError` unless it has this shape. `function` is
    its name in the error, and `expected` describes the shape."""
    if jnp.shape(result) != shape:
        raise ValueError(
            f"{function} must return {expected}; got shape {jnp.shape(result)}. {hint}"
        )
    return result


def require_positive(name: str, value: ArrayLike) -> None:
    """Raises `ValueError` unless every entry is finite and above zero.

    The error calls the value a distance in the units of x. Traced values are not checked.
    """
    if not is_concrete(value):
        return
    array = as_float64(name, value, "a positive real number")
    if not np.all(np.isfinite(array) & (array > 0)):
        raise ValueError(
            f"{name} must be positive and finite; got {array.tolist()}. It is a distance in the "
            f"units of x: try a tenth of the range of x."
        )


def as_integer(name: str, value: Any, minimum: int, hint: str = "") -> int:
    """Returns one concrete integer, of Python or of NumPy or JAX without axes, as an `int`.

    **Raises:** `ValueError` for anything else, below `minimum`, and above 2³¹ − 1.
    """
    if not _is_integer_in_range(value, minimum) or not is_concrete(value):
        allowed = _describe_range(value, minimum)
        raise ValueError(f"{name} must be {allowed}; got {value_text(value)}. {hint}".rstrip())
    return int(value)


def as_integer_tuple(name: str, value: Any, minimum: int) -> tuple[int, ...]:
    """Returns one integer or several as a tuple; `ValueError` unless there is one, and each is
    concrete, at least `minimum` and at most 2³¹ − 1."""
    is_array = isinstance(value, np.ndarray) and not np.ma.is_masked(value)
    plain: Any = np.asarray(value).tolist() if is_array else value
    items: list[Any] = list(plain) if isinstance(plain, Sequence) else [plain]
    if not items or not all(
        _is_integer_in_range(item, minimum) and is_concrete(item) for item in items
    ):
        raise ValueError(
            f"{name} must be {_describe_range(value, minimum)}, or several, such as "
            f"({minimum}, {minimum + 2}); got {value_text(value)}."
        )
    return tuple(map(int, items))


def require_integer(name: str, value: Any, minimum: int | None = None) -> None:
    """Raises `ValueError` unless it is one integer, at least `minimum`, if that is given.

    Its magnitude is at most 2³¹ − 1, and a Boolean is no integer.
    Arrays without axes are allowed, and tracers, whose values are not checked.
    """
    if not _is_integer_in_range(value, minimum):
        raise ValueError(
            f"{name} must be {_describe_range(value, minimum)}; got {value_text(value)}."
        )


def is_real_number(value: Any) -> bool:
    """Whether it is one real number of Python or NumPy that float32 can hold."""
    is_real = isinstance(value, int | float | np.integer | np.floating)
    return is_real and not isinstance(value, bool) and bool(abs(value) <= np.finfo(np.float32).max)


def require_bool(name: str, value: Any) -> None:
    """Raises `ValueError` unless it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False; got {value_text(value)}.")


def require_instance(name: str, value: Any, kinds: type | tuple[type, ...], example: str) -> None:
    """Raises `ValueError` unless it is an instance of one of the classes."""
    if isinstance(value, kinds):
        return
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    names = " or ".join(kind.__name__ for kind in listed)
    hint = ""
    if isinstance(value, type) and issubclass(value, kinds):
        hint = f" This is the class: call it, {value.__name__}(...)."
    raise ValueError(
        f"{name} must be a {names} of attnkernel, such as {example}; got {value_text(value)}.{hint}"
    )


def require_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises `ValueError` unless it is one of the strings."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {listed}; got {value_text(value)}.")


def require_string(name: str, value: Any) -> None:
    """Raises `ValueError` unless it is a string."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string; got {value_text(value)}.")


def require_level(name: str, value: Any) -> None:
    """Raises `ValueError` unless it is a float between 0 and 1, both excluded."""
    if not isinstance(value, float | np.floating) or not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, such as 0.95; got {value_text(value)}.")


def require_function(name: str, value: Any) -> None:
    """Raises `ValueError` unless it can be called."""
    if not callable(value):
        raise ValueError(f"{name} must be a function; got {value_text(value)}.")


def as_path(name: str, path: Any) -> Path:
    """Returns the path of a file, given as a path or a string; `ValueError` for other values. The
    file need not exist."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise ValueError(f"{name} must be the path of a file; got {value_text(path)}.")
    return Path(path)


def as_names(name: str, names: Any) -> tuple[str, ...]:
    """Returns one column name or several as a tuple; `ValueError` for other values."""
    listed = (names,) if isinstance(names, str) else names
    if not isinstance(listed, Sequence) or not all(isinstance(each, str) for each in listed):
        raise ValueError(f"{name} must be a name, or a list of names; got {value_text(names)}.")
    return tuple(listed)


def require_key(name: str, key: Any, axes: int = 0) -> None:
    """Raises `ValueError` unless it is a key of `jax.random`, or an array of keys.

    `axes`: the number of axes of the array of keys, 0 for one key.
    """
    dtype, shape = getattr(key, "dtype", None), np.shape(key) if hasattr(key, "dtype") else ()
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    is_raw = dtype == np.uint32 and shape[axes:] in ((2,), (4,))
    if not (len(shape) == axes if is_typed else is_raw):
        example = "jax.random.PRNGKey(0)"
        if axes:
            example = f"jax.random.split({example}, fits)"
        raise ValueError(f"{name} must be a PRNG key, such as {example}; got {value_text(key)}.")


def _is_integer_in_range(value: Any, minimum: int | None) -> bool:
    """Whether the value is one integer, at least the minimum, if any, and at most 2³¹ − 1 in
    magnitude; of a tracer, whose value is unknown, whether it is one integer."""
    if isinstance(value, bool | np.bool_) or np.ma.is_masked(value):
        return False
    if not isinstance(value, int | np.integer):
        dtype = getattr(value, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.integer) or np.ndim(value):
            return False
        if not is_concrete(value):
            return True
    return (minimum is None or int(value) >= minimum) and abs(int(value)) <= MAX_INTEGER


def _describe_range(value: Any, minimum: int | None) -> str:
    """Returns the allowed integers in words for an error about the value, such as "an integer, at
    least 1"; the maximum only where the value exceeds it."""
    limits = [] if minimum is None else [f"at least {minimum}"]
    if isinstance(value, int | np.integer) and abs(int(value)) > MAX_INTEGER:
        limits.append("at most 2**31 - 1 in magnitude")
    return "an integer" + (f", {' and '.join(limits)}" if limits else "")


class OptionError(ValueError):
    """A fault of a file, with the options of its reader that may settle it."""

    def __init__(self, sentence: str, **options: Any):
        self.sentence, self.options = sentence, options
        hint = " or ".join(f"{name}={value!r}" for name, value in options.items())
        super().__init__(f"{sentence} Try {hint}." if hint else sentence)
