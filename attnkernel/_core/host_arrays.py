"""Arrays with a value on this host, which NumPy takes and which compile nothing, or traced ones.

Inside `jit`, `vmap` or `grad` an array of JAX is a tracer without a value.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array

if TYPE_CHECKING:  # a type checker cannot tell whether an expression is of JAX or of NumPy
    AnyArray = Any
else:
    AnyArray = jax.Array | np.ndarray | np.generic


def namespace_of(array: Any) -> Any:
    """Returns the module whose functions take an array: `numpy`, which compiles nothing, or
    `jax.numpy`."""
    return array.__array_namespace__()


def as_numpy_if_concrete(tree: Any) -> Any:
    """Returns a tree with its numbers as NumPy arrays; arrays that are traced stay as they are."""
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


def is_on_host(*trees: Any) -> bool:
    """Whether all arrays of the trees are concrete, and no `jit` surrounds the call."""
    # inside `jit` every new array is a tracer
    return is_concrete(jax.device_put(np.zeros(())), *filter(eqx.is_array, jax.tree.leaves(trees)))


def is_on_one_device(*trees: Any) -> bool:
    """Whether each array is concrete and on one device, and no `jit` surrounds the call.

    NumPy can then index and pad them, which compiles nothing.
    """
    arrays = filter(eqx.is_array, jax.tree.leaves(trees))
    return is_on_host(trees) and all(len(array.devices()) == 1 for array in arrays)


def index_on_host(array: Array, index: Any) -> Array:
    """Returns `array[index]`, by NumPy where the array is concrete and on one device: XLA
    compiles a program for each shape."""
    if not is_on_one_device(array):
        return array[index]
    return put_like(array, np.asarray(array)[index])


def put_like(array: Array, values: Any) -> Any:
    """Returns a tree of NumPy arrays as arrays of JAX, on the device of another array."""
    return jax.device_put(values, array.sharding if array.committed else None)
