"""Arrays read exactly: a number that JAX's dtype cannot hold is refused, never wrapped or rounded.

Values are checked only where they are concrete: inside `jit`, `vmap` or `grad` an array is a tracer
without a value, and only its shape and dtype are checked. What is concrete is indexed, padded and
compared by NumPy, which compiles nothing.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

if TYPE_CHECKING:  # a type checker cannot tell whether an expression is of JAX or of NumPy
    AnyArray = Any
else:
    AnyArray = jax.Array | np.ndarray | np.generic

Scalar = Float[Array, ""]


def namespace_of(array: Any) -> Any:
    """Returns the module whose functions take an array: `numpy`, which compiles nothing, or
    `jax.numpy`."""
    return array.__array_namespace__()


def as_numpy_if_concrete(tree: Any) -> Any:
    """Returns a tree with its arrays and Python numbers as NumPy arrays; arrays that are not
    concrete stay as they are."""
    is_known = lambda leaf: eqx.is_array_like(leaf) and is_concrete(leaf)  # noqa: E731
    return jax.tree.map(lambda leaf: np.asarray(leaf) if is_known(leaf) else leaf, tree)


def to_jax(tree: Any) -> Any:
    """Returns a tree with its NumPy arrays as arrays of JAX; compiles nothing."""
    is_numpy = lambda leaf: isinstance(leaf, np.ndarray | np.generic)  # noqa: E731
    arrays, rest = eqx.partition(tree, is_numpy)
    return eqx.combine(jax.device_put(arrays), rest)


def is_concrete(*arrays: ArrayLike) -> bool:
    """Whether every array has a value in this process: no tracer, no part on other processes."""

    def is_local(array: jax.Array) -> bool:
        return array.is_fully_addressable or array.is_fully_replicated

    return not any(
        isinstance(array, Tracer) or (isinstance(array, jax.Array) and not is_local(array))
        for array in arrays
    )


def is_outside_jit(*trees: Any) -> bool:
    """Whether all arrays of the trees are concrete, and no `jit` surrounds the call."""
    # inside `jit` every new array is a tracer
    return is_concrete(jax.device_put(np.zeros(())), *filter(eqx.is_array, jax.tree.leaves(trees)))


def can_use_numpy(*trees: Any) -> bool:
    """Whether no `jit` surrounds the call, and each array is concrete and whole on a single device.

    NumPy can then index and pad them, which compiles nothing. Different arrays may be on different
    devices.
    """
    arrays = filter(eqx.is_array, jax.tree.leaves(trees))
    return is_outside_jit(trees) and all(len(array.devices()) == 1 for array in arrays)


def index_on_host(array: Array, index: Any) -> Array:
    """Returns `array[index]`; by NumPy where `can_use_numpy`, as XLA compiles a program for each
    shape."""
    if not can_use_numpy(array):
        return array[index]
    return put_like(array, np.asarray(array)[index])


def put_like(array: Array, values: Any) -> Any:
    """Returns a tree of NumPy arrays as arrays of JAX, on the device that another array is
    committed to, else on JAX's default device. `ValueError` if that array is on several."""
    (device,) = array.devices()
    return jax.device_put(values, device if array.committed else None)


PRECISIONS = ("default", "high", "highest")  # of products on accelerators, as JAX names them


def precise_matmul(a: Array, b: Array, precision: str | None = None) -> Array:
    """Returns the matrix product in the full precision of its dtype, on any device.

    `precision`: "default" or "high", to take less. None: "highest".
    """
    return jnp.matmul(a, b, precision=precision or "highest")


def as_precision(name: str, precision: Any) -> str | None:
    """Returns the precision of a product, a `jax.lax.Precision` or its name, as its name.

    None stays None. `ValueError` for other values.
    """
    if precision is None:
        return None
    given = precision.name.lower() if isinstance(precision, jax.lax.Precision) else precision
    if not isinstance(given, str) or given not in PRECISIONS:
        raise ValueError(
            f"{name} must be a jax.lax.Precision, or one of {', '.join(map(repr, PRECISIONS))}; "
            f"got {value_text(precision)}."
        )
    return given


def power_of_two(exponent: Float[Array, "..."], dtype: Any) -> Float[Array, "..."]:
    """Returns $2^e$ exactly, in this dtype.

    Each exponent e is a whole number, and $2^e$ a normal number of the dtype; this is not checked.

    By its bits: `jnp.ldexp` traces 52 operations.
    """
    limits = jnp.finfo(dtype)
    bits = exponent.astype(f"int{limits.bits}") + (limits.maxexp - 1)
    return jax.lax.bitcast_convert_type(bits << limits.nmant, dtype)


def inverse_or_zero(numbers: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns 1 / s for each number s from 0, such as a weight, and 0 where s is 0."""
    is_positive = numbers > 0
    return jnp.where(is_positive, 1.0 / jnp.where(is_positive, numbers, 1.0), 0.0)


def value_text(value: Any) -> str:
    """Returns the value as an error quotes it: `np.int64(1)` as 1, in lists and tuples too. An
    array or frame of more than 8 numbers is given by its type and shape."""
    shape = getattr(value, "shape", ())
    if isinstance(shape, tuple) and math.prod(shape) > 8:
        return f"{type(value).__name__} of shape {shape}"
    plain = jax.tree.map(
        lambda leaf: leaf.item() if isinstance(leaf, np.generic) else leaf,
        value,
        is_leaf=lambda part: type(part) not in (list, tuple),  # keys of a dict may not be sorted
    )
    return repr(plain)


def wider_dtype(dtype: Any, other: Any = jnp.float32) -> Any:
    """Returns the dtype to which JAX promotes both, even where users forbid implicit promotion."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, other)


def as_float_dtype(name: str, dtype: Any) -> Any:
    """Returns a floating dtype; for None JAX's default, float32 or with x64 float64.

    `ValueError` for other dtypes.
    """
    if dtype is None:
        return jnp.result_type(float)
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise ValueError(
            f"{name} must be a floating dtype, such as jnp.float32 or jnp.bfloat16; got {dtype!r}."
        )
    return found


def as_float64(name: str, value: Any, expected: str) -> np.ndarray:
    """Returns concrete real numbers in float64, which may be NaN or infinite.

    `ValueError` for Booleans, complex numbers, text, masked entries and an empty array. `expected`
    says in the error what a number must be.
    """
    array = as_numpy_or_none(value)
    # V: bfloat16 and the 8-bit floats of JAX
    if array is None or array.dtype.kind not in "fiuV" or not array.size or array.dtype.names:
        raise ValueError(
            f"{name} must be {expected}, or an array of them; got {value_text(value)}."
        )
    return array.astype(float)


def as_integer_array(name: str, numbers: Any, axes: int | None = None) -> Int[Array, "..."]:
    """Returns integers in JAX's default dtype, with this number of axes, or any for None;
    `ValueError` for others, and where the dtype cannot hold them.

    Differences of short or unsigned integers would wrap.
    """
    dtype = jnp.result_type(int)
    is_array = isinstance(numbers, jax.Array)
    given = numbers if is_array and not is_concrete(numbers) else as_numpy_or_none(numbers)
    has_axes = given is not None and axes in (None, given.ndim)
    if given is None or not has_axes or not jnp.issubdtype(given.dtype, jnp.integer):
        got = value_text(numbers)
        if given is not None and given.ndim:
            got = f"dtype {given.dtype} and shape {given.shape}"
        raise ValueError(f"{name} must be integers, one per row, shape (rows,); got {got}.")
    with np.errstate(over="ignore"):
        kept = given.astype(dtype)
    if isinstance(given, np.ndarray) and not np.array_equal(given, kept):
        raise ValueError(
            f"{name} has integers too large for {dtype}. Subtract the smallest, or take "
            f"np.unique(..., return_inverse=True)[1]."
        )
    return numbers if is_array and numbers.dtype == dtype else jnp.asarray(kept)


def as_boolean_array(name: str, value: Any, axes: int, expected: str) -> Bool[Array, "..."]:
    """Returns a Boolean array with this number of axes; `ValueError` for others. `expected` is its
    shape in words."""
    array = value if isinstance(value, jax.Array) else as_numpy_or_none(value)
    if array is None or array.dtype != bool or array.ndim != axes:
        shape = f"{value!r}" if array is None else f"dtype {array.dtype} and shape {array.shape}"
        raise ValueError(f"{name} must be a Boolean array of shape {expected}; got {shape}.")
    return jnp.asarray(array)


def as_real_array(name: str, x: Any) -> Float[Array, "..."]:
    """Returns real numbers as a floating array of JAX, of the same shape.

    Floating dtypes stay, except those that JAX does not have, such as float64 without x64. Concrete
    integers are converted through float64: JAX itself wraps 64-bit integers at 2³¹ without x64.

    **Raises:** `ValueError` for masked entries, complex numbers, text, dates and rows of different
    lengths, and for a frame of pandas as in `as_numpy_or_none`. Also where the conversion overflows
    or merges more than 1 % of the distinct numbers of a column.
    """
    require_unmasked(name, x)
    if x is None or isinstance(x, str | Mapping | type):
        raise ValueError(f"{name} must be an array of numbers; got {x!r}.")
    if isinstance(x, jax.Array) and x.dtype.kind in "iu" and is_concrete(x):
        x = np.asarray(x)  # float32 tells fewer integers apart than int32
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
        array = jnp.asarray(x)
        kind = "c" if jnp.issubdtype(array.dtype, jnp.complexfloating) else array.dtype.kind
    else:
        given = as_numpy_or_none(x)
        if given is None:
            raise ValueError(
                f"{name} must be an array of numbers, its rows equally long; got {x!r}."
            )
        if given.dtype.kind in "OUS":
            given = _objects_to_float64(name, np.asarray(x, object))
        if given.dtype.kind in "mM":
            raise ValueError(
                f"{name} must be numbers; got {given.dtype}. Subtract one of the dates, and "
                f"divide by a unit: (dates - dates[0]) / np.timedelta64(1, 'D')."
            )
        if given.dtype.names is not None:
            raise ValueError(
                f"{name} must be an array of numbers; got a structured array. Stack its columns: "
                f"numpy.lib.recfunctions.structured_to_unstructured({name})."
            )
        kind = given.dtype.kind
        given = given.astype(float) if kind in "biu" or given.dtype == np.longdouble else given
        with np.errstate(over="ignore"):
            array = given.astype(jax.dtypes.canonicalize_dtype(given.dtype), copy=False)
        if kind != "c":
            _require_no_precision_loss(name, given, array)
        array = jax.device_put(array)  # `jnp.asarray` compiles a program for each shape
    if kind == "c":
        raise ValueError(f"{name} must be real; got dtype {array.dtype}.")
    return array.astype(float) if kind in "biu" else array


def require_unmasked(name: str, x: Any) -> None:
    """Raises `ValueError` if entries of an array of `numpy.ma` are masked."""
    if np.ma.is_masked(x):
        raise ValueError(
            f"{name} has {np.ma.count_masked(x)} masked entries: leave their rows out, or give "
            f"rows with masked labels the weight 0 and any number."
        )


def as_points(name: str, x: ArrayLike) -> Float[Array, "points dim"]:
    """Returns points as rows, shape (n, dim); shape (n,) becomes (n, 1).

    `ValueError` for other shapes, and for what `as_real_array` refuses.
    """
    if isinstance(x, np.ndarray) and x.ndim == 1:
        x = x[:, None]  # NumPy compiles nothing
    array = as_real_array(name, x)
    if array.ndim == 0:
        raise ValueError(
            f"{name} must have shape (n,) or (n, dim); got a single number. "
            f"Try jnp.array([{name}])."
        )
    if array.ndim > 2 or array.shape[1:] == (0,):
        raise ValueError(
            f"{name} must have shape (n,) or (n, dim), dim at least 1; got {array.shape}."
        )
    return index_on_host(array, np.s_[:, None]) if array.ndim == 1 else array


def require_finite(
    name: str,
    rows: Float[Array, "*batch rows columns"] | Float[np.ndarray, "*batch rows columns"],
    advice_for_nan: str = "",
) -> None:
    """Raises `ValueError` unless every number of every row is finite.

    Traced arrays are not checked. `advice_for_nan` ends the error if a number is NaN.
    """
    if not is_concrete(rows) or np.all(np.isfinite(np.asarray(rows))):
        return
    bad = np.argwhere(~np.all(np.isfinite(np.asarray(rows)), axis=-1))
    first = tuple(bad[0].tolist())
    raise ValueError(
        f"{name} must be finite; {len(bad)} of {math.prod(rows.shape[:-1])} rows are not, the "
        f"first is row {first[0] if len(first) == 1 else first} (counted from 0): "
        f"{np.asarray(rows)[first]}. Drop or fill those rows"
        f"{advice_for_nan if np.any(np.isnan(np.asarray(rows))) else ''}."
    )


def precision_loss(given: np.ndarray, converted: np.ndarray) -> str | None:
    """Returns a sentence for an error if `converted`, the given column in a narrower dtype, merges
    more than 1 % of the distinct numbers; else None, also if a number is not finite.

    The sorted numbers are cut at gaps of more than 1000 steps of the narrower dtype, so that an
    outlier does not hide a cluster. Clusters that span more than 1e5 steps are not checked: float32
    merges 3 % of a million random numbers in [0, 1), without effect on a fit.
    """
    if not np.all(np.isfinite(given)):
        return None  # `require_finite` reports it
    numbers, place = np.unique(given, return_index=True)
    rounded = converted[place]
    step = np.spacing(np.abs(rounded)).astype(float)
    gaps = np.diff(numbers) / np.maximum(step[1:], step[:-1])
    max_cluster_gap_steps = 1e3  # of the narrower dtype, between neighbours of a cluster
    first = np.flatnonzero(np.append(True, gaps > max_cluster_gap_steps))
    last = np.append(first[1:], len(numbers)) - 1
    spans = (numbers[last] - numbers[first]) / np.maximum(step[first], step[last])
    merged = np.add.reduceat(np.append(np.diff(rounded) == 0, False), first)
    max_checked_steps = 1e5  # of the narrower dtype, over the range of a cluster
    lost = int(np.sum(merged[spans < max_checked_steps]))
    max_merged_share = 0.01  # of the distinct numbers of a column, by rounding
    if lost <= max_merged_share * len(numbers):
        return None
    return (
        f"its {len(numbers)} different numbers become {len(numbers) - lost} in {converted.dtype}."
    )


def as_numpy_or_none(value: Any) -> np.ndarray | None:
    """Returns the value as a NumPy array; None where it cannot be one, such as rows of
    different lengths, or has masked entries.

    **Raises:** `ValueError` for a `Series` or `DataFrame` whose index is not 0, 1, ..., in order:
    what it belongs to could be meant by position or by index.
    """
    is_frame = hasattr(value, "index") and hasattr(value, "iloc")
    if is_frame and value.index.tolist() != list(range(len(value))):
        raise ValueError(
            f"A {type(value).__name__} is read in the order of its rows here, and its index is not "
            f"0, 1, ...: give its to_numpy() if their order is right."
        )
    try:
        return None if np.ma.is_masked(value) else np.asarray(value)
    except ValueError:
        return None


ADVICE_FOR_CLASSES = (
    "Classes are predicted by attnkernel.sklearn.KernelClassifier, and the probability of one of "
    "two by ak.LocalLikelihood with the labels (y == word).astype(float)."
)


def _objects_to_float64(name: str, x: np.ndarray) -> Float[np.ndarray, "..."]:
    """Returns an array of Python objects as float64; `ValueError`, with the name of the argument
    and the place of the first entry that is not a number."""
    out = np.empty(x.shape)
    for index, value in np.ndenumerate(x):
        if isinstance(value, str) or not np.isscalar(value):
            if not index:
                raise ValueError(f"{name} must be numbers; got {value_text(value)}.")
            row = ", column ".join(map(str, index))
            advice = "Names need codes 0, 1, ... and a categorical kernel."
            raise ValueError(
                f"{name} must be numbers; row {row} (counted from 0) is {value_text(value)}. Drop "
                f"or fill that row. {ADVICE_FOR_CLASSES if name == 'y' else advice}"
            )
        out[index] = value
    return out


def _require_no_precision_loss(name: str, given: np.ndarray, converted: np.ndarray) -> None:
    """Raises `ValueError`, with the name of the argument, if `converted`, the given array in a
    narrower dtype, overflows, or merges more than 1 % of the distinct numbers of a column."""
    if given.dtype == converted.dtype or not given.size:
        return
    if np.any(overflowed := np.isinf(converted) & np.isfinite(given)):
        raise ValueError(
            f"{name} has numbers too large for {converted.dtype}, such as {given[overflowed][0]}. "
            f"Use float64 (jax_enable_x64), or another unit."
        )
    columns = (a.reshape(-1, a.shape[-1] if a.ndim > 1 else 1).T for a in (given, converted))
    for column, (numbers, rounded) in enumerate(zip(*columns, strict=True)):
        if loss := precision_loss(numbers, rounded):
            is_table = given.ndim > 1 and given.shape[-1] > 1
            where = f"{name}, column {column}" if is_table else name
            raise ValueError(
                f"{where}: {loss} Use float64 (jax_enable_x64), or subtract a common offset "
                f"before they become {converted.dtype}."
            )
