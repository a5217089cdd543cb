"""Arguments that are numbers of kernels, priors and rules: checked, and made parameters.

A number that is written is trained. A default is fixed, except that of a lengthscale, and
`fixed(0.3)` holds a number fixed.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .arrays import as_float64, as_real_array, wider_dtype
from .host_arrays import as_numpy_if_concrete, is_concrete, namespace_of
from .parameters import (
    Between,
    Constant,
    ConstantOfHeads,
    Free,
    Parameter,
    Positive,
    PositiveParameter,
    log_of,
    nested_tuples,
)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Numbers that are not trained: what `fixed` returns, for an argument of a kernel or rule."""

    numbers: np.ndarray

    def __repr__(self) -> str:
        return f"fixed({self.numbers.tolist()})"


Number = ArrayLike | Fixed


def fixed(value: ArrayLike) -> Fixed:
    r"""Returns a number that no fit moves, for any argument that would be trained.

    $$ \partial \mathcal{L} / \partial \theta = 0 \text{ by construction: } \theta
       \text{ is no leaf of the tree} $$

    Each fixed number compiles a program of its own.

    **Arguments:** `value`: θ in its natural unit, one number; or one of each head, for
    `ak.PerHead`; for a lengthscale, one of each dimension.

    **Raises:** `ValueError` if it is no finite real number, or is known at run time alone.

    ```python
    >>> import attnkernel as ak
    >>> ak.Softmax(ak.fixed(0.5), sink_mass=ak.fixed(1e-16))
    Softmax(temperature=fixed(0.5), sink_mass=fixed(1e-16))
    >>> ak.Periodic(0.5, period=ak.fixed(24.0))
    Periodic(lengthscale=0.5, period=fixed(24.0))

    ```
    """
    if isinstance(value, Fixed):
        return value
    if not is_concrete(value):
        raise ValueError("A fixed number must be known before a program is compiled; got a tracer.")
    _require_strictly_between("value", value, -math.inf, math.inf, "a finite number")
    return Fixed(as_float64("value", value, "a real number"))


def real(name: str, value: Number, hint: str = "") -> Parameter:
    """A parameter that may be any finite number."""
    _require_strictly_between(name, value, -math.inf, math.inf, "a finite number", hint)
    return constant(value) if isinstance(value, Fixed) else Free(as_trained(name, value), 0)


def positive(
    name: str,
    value: Number,
    hint: str,
    *,
    or_zero: bool = False,
    per_dimension: bool = False,
) -> PositiveParameter:
    """A parameter above 0; if `or_zero`, one that is fixed may be 0.

    With `per_dimension`, a vector holds a number of each dimension; without, of each head.
    """
    is_fixed = isinstance(value, Fixed)
    low = -math.ulp(0.0) if or_zero and is_fixed else 0.0
    expected = "at least 0 and finite" if low else "positive and finite"
    _require_strictly_between(name, value, low, math.inf, expected, hint)
    axes = _count_dimension_axes(name, value) if per_dimension else 0
    if is_fixed:
        return constant(value, axes)
    trained = as_trained(name, value)
    return Positive(log_of(trained, trained.dtype), axes)


def between(
    name: str,
    value: Number,
    low: float,
    high: float | tuple[float, ...],
    hint: str,
    *,
    or_low: bool = False,
    per_dimension: bool = False,
) -> Between | Constant | ConstantOfHeads:
    """A parameter above `low` and below `high`; one that is fixed may be `high`, and if `or_low`
    also `low`. With `per_dimension`, a vector holds a number of each dimension.
    """
    most = np.asarray(high)
    axes = max(most.ndim, _count_dimension_axes(name, value, most.shape) if per_dimension else 0)
    shown = np.round(most, 6).tolist()
    if isinstance(value, Fixed):
        least = math.nextafter(low, -math.inf) if or_low else low
        expected = f"{'at least' if or_low else 'above'} {low:g}, and at most {shown}"
        _require_strictly_between(name, value, least, np.nextafter(most, math.inf), expected, hint)
        return constant(value, axes)
    _require_strictly_between(
        name, value, low, most, f"above {low:g}, and below {shown} to be fitted", hint
    )
    trained = as_numpy_if_concrete(as_trained(name, value))
    share, xp = (trained - low) / (most - low).astype(trained.dtype), namespace_of(trained)
    return Between(jax.device_put(xp.log(share) - xp.log1p(-share)), axes, low, high)


def as_trained(name: str, value: ArrayLike) -> Float[Array, "..."]:
    """Returns the value as a floating array, in JAX's default precision or a wider one."""
    array = as_real_array(name, value)
    return array.astype(wider_dtype(array.dtype, jnp.result_type(float)))


def constant(value: Fixed, axes: int = 0) -> Constant | ConstantOfHeads:
    """Returns the parameter of fixed numbers. The last `axes` axes are those of one head; axes
    before them are of several heads."""
    shape = value.numbers.shape
    heads = shape[: len(shape) - axes]
    if not heads:
        return Constant(nested_tuples(value.numbers))
    flat = value.numbers.reshape(-1, *shape[len(heads) :])
    return ConstantOfHeads(nested_tuples(flat), jnp.arange(len(flat)).reshape(heads))


def _count_dimension_axes(name: str, value: Number, expected: tuple[int, ...] = ()) -> int:
    """Returns 0 for one number, 1 for a vector of one number per dimension; `ValueError` for other
    shapes. `expected` is the shape of the vector, () if any length is allowed."""
    shape = np.shape(_unwrap_fixed(value))
    if len(shape) > 1 or (shape and expected and shape != expected):
        raise ValueError(
            f"{name} must be one number or one per dimension, shape {expected or '(dim,)'}; got "
            f"shape {shape}. For several heads: ak.PerHead([ak.Gaussian(0.1), ak.Gaussian(1.0)])."
        )
    return len(shape)


def _unwrap_fixed(value: Number) -> ArrayLike:
    """Returns the numbers inside an `ak.fixed(...)`, and any other value as it is."""
    return value.numbers if isinstance(value, Fixed) else value


def _require_strictly_between(
    name: str, value: Number, low: float, high: ArrayLike, expected: str, hint: str = ""
) -> None:
    """Raises `ValueError` unless each number of the value, or inside its `ak.fixed`, is strictly
    between `low` and `high` and within the range of JAX's default dtype; traced values are not
    checked. The error says "`name` must be `expected`", then the hint."""
    given = _unwrap_fixed(value)
    if not is_concrete(given):
        return
    numbers = as_float64(name, given, "a real number")
    if not np.all((numbers > low) & (numbers < high)):
        raise ValueError(f"{name} must be {expected}; got {numbers.tolist()}. {hint}".rstrip())
    limits, size = jnp.finfo(jnp.result_type(float)), np.abs(numbers)
    if np.any((size > float(limits.max)) | (size < (0.0 if low else float(limits.tiny)))):
        raise ValueError(
            f"{name} has numbers that {limits.dtype} cannot hold; got {numbers.tolist()}."
        )
