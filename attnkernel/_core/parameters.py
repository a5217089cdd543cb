r"""Numbers of kernels, priors and rules: in natural units, trained or fixed, never out of domain.

A number that is written is trained; a default is fixed; `fixed(0.3)` holds a number fixed. A
trained number is stored as z, which may be any real number, and clipped where exp or the logistic
function σ would round to an end of the domain:

$$ \theta = e^{z} > 0, \qquad \theta = a + (b - a)\, \sigma(z) \in (a, b),
   \qquad z \in \mathbb{R} $$

A fixed number is no leaf of the tree: nothing can move it, and a checkpoint does not hold it.
"""

import abc
import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import wadler_lindig as wl
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .arrays import as_float64, as_real_array, is_concrete


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
    `ak.PerHead`.

    **Raises:** `ValueError` if it is no finite real number, or is known at run time alone.

    ```python
    >>> import attnkernel as ak
    >>> ak.Softmax(ak.fixed(0.5), sink_mass=ak.fixed(1e-16))
    Softmax(temperature=fixed(0.5), sink_mass=fixed(1e-16))

    ```
    """
    if isinstance(value, Fixed):
        return value
    if not is_concrete(value):
        raise ValueError("A fixed number must be known before a program is compiled; got a tracer.")
    _require_inside("value", value, -math.inf, math.inf, "a finite number")
    return Fixed(as_float64("value", value, "a real number"))


class Parameter(eqx.Module):
    """A number, or one of each head, in its natural unit: `value`."""

    @property
    @abc.abstractmethod
    def value(self) -> float | Float[Array, "..."]: ...

    @property
    def is_fixed(self) -> bool:
        """Whether it is no leaf of the tree."""
        return False

    def equals(self, number: float) -> bool:
        """Whether it is this number for good: fixed, and the same for all heads."""
        return False

    def log(self) -> Float[Array, "..."]:
        """The logarithm of the value."""
        return jnp.log(jnp.asarray(self.value, float))

    def __pdoc__(self, **kwargs: Any) -> wl.AbstractDoc:
        value = self.value
        known = isinstance(value, jax.Array) and is_concrete(value) and not value.ndim
        return wl.TextDoc(f"{float(value):.4g}") if known else wl.pdoc(value, **kwargs)


class Constant(Parameter):
    """A number that is fixed, and no leaf of the tree."""

    number: float = eqx.field(static=True)

    @property
    def value(self) -> float:
        return self.number

    @property
    def is_fixed(self) -> bool:
        return True

    def equals(self, number: float) -> bool:
        return self.number == number

    def times(self, factor: float) -> "Constant":
        """The parameter whose value is this one times a positive factor."""
        return Constant(self.number * factor)

    def __pdoc__(self, **kwargs: Any) -> wl.AbstractDoc:
        return wl.TextDoc(f"fixed({self.number})")


class ConstantOfHeads(Parameter):
    """A fixed number of each head, of which each takes its own by its place."""

    numbers: tuple[float, ...] = eqx.field(static=True)
    place: Int[Array, "..."]

    @property
    def value(self) -> Float[Array, "..."]:
        return jnp.asarray(self.numbers, float)[self.place]

    @property
    def is_fixed(self) -> bool:
        return True

    def equals(self, number: float) -> bool:
        return set(self.numbers) == {number}

    def times(self, factor: float) -> "ConstantOfHeads":
        """The parameter whose value is this one times a positive factor."""
        return ConstantOfHeads(tuple(number * factor for number in self.numbers), self.place)


class Free(Parameter):
    """Any real number."""

    z: Float[Array, "..."]

    @property
    def value(self) -> Float[Array, "..."]:
        return self.z


class Positive(Parameter):
    """A number above 0."""

    z: Float[Array, "..."]

    @property
    def value(self) -> Float[Array, "..."]:
        return jnp.exp(self.log())

    def log(self) -> Float[Array, "..."]:
        limits = jnp.finfo(self.z.dtype)
        low, high = math.log(float(limits.tiny)), math.log(float(limits.max))
        return jnp.clip(self.z, 0.999 * low, 0.999 * high)

    def times(self, factor: float) -> "Positive":
        """The parameter whose value is this one times a positive factor."""
        return Positive(self.z + math.log(factor))


class Between(Parameter):
    """A number of an open interval."""

    z: Float[Array, "..."]
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    @property
    def value(self) -> Float[Array, "..."]:
        # beyond this σ(z) is within a rounding of 0 or 1
        most = -0.8 * math.log(float(jnp.finfo(self.z.dtype).eps))
        return self.low + (self.high - self.low) * jax.nn.sigmoid(jnp.clip(self.z, -most, most))


PositiveParameter = Positive | Constant | ConstantOfHeads


def real(name: str, value: Number) -> Parameter:
    """A parameter that may be any finite number."""
    _require_inside(name, value, -math.inf, math.inf, "a finite number")
    return _constant(value) if isinstance(value, Fixed) else Free(_as_trained(name, value))


def positive(name: str, value: Number, hint: str, *, or_zero: bool = False) -> PositiveParameter:
    """A parameter above 0; if `or_zero`, one that is fixed may be 0."""
    is_fixed = isinstance(value, Fixed)
    low = -math.ulp(0.0) if or_zero and is_fixed else 0.0
    expected = "at least 0 and finite" if low else "positive and finite"
    _require_inside(name, value, low, math.inf, expected, hint)
    return _constant(value) if is_fixed else Positive(jnp.log(_as_trained(name, value)))


def between(name: str, value: Number, low: float, high: float, hint: str) -> Parameter:
    """A parameter above `low` and below `high`; one that is fixed may be `high`."""
    if isinstance(value, Fixed):
        expected = f"above {low:g}, and at most {high:g}"
        _require_inside(name, value, low, math.nextafter(high, math.inf), expected, hint)
        return _constant(value)
    _require_inside(name, value, low, high, f"above {low:g}, and below {high:g} to be fitted", hint)
    share = (_as_trained(name, value) - low) / (high - low)
    return Between(jnp.log(share) - jnp.log1p(-share), low, high)


def require_single(tree: Any) -> None:
    """Raise `ValueError` at a parameter that has a number for each of several heads."""
    is_parameter = lambda node: isinstance(node, Parameter)  # noqa: E731
    for node in jax.tree.leaves(tree, is_leaf=is_parameter):
        if is_parameter(node) and np.ndim(node.value):
            raise ValueError(
                f"A parameter has shape {np.shape(node.value)}: one number for each head goes into "
                f"ak.PerHead(...), and else it is a single number."
            )


def described(module: eqx.Module, **kwargs: Any) -> wl.AbstractDoc:
    """`__pdoc__` of a module that holds the parameter `name` as its field `name_parameter`."""
    pairs = [
        (field.name.removesuffix("_parameter"), getattr(module, field.name))
        for field in dataclasses.fields(module)  # type: ignore[arg-type]
    ]
    parts = wl.named_objs(pairs, **kwargs)
    begin, end = wl.TextDoc(f"{type(module).__name__}("), wl.TextDoc(")")
    return wl.bracketed(begin, parts, wl.comma, end, kwargs.get("indent", 2))


def _as_trained(name: str, value: ArrayLike) -> Float[Array, "..."]:
    """The number as a floating array of at least float32."""
    array = as_real_array(name, value)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def _constant(value: Fixed) -> Constant | ConstantOfHeads:
    numbers = value.numbers
    if not numbers.ndim:
        return Constant(float(numbers))
    place = jnp.arange(numbers.size).reshape(numbers.shape)
    return ConstantOfHeads(tuple(numbers.ravel().tolist()), place)


def _require_inside(
    name: str, value: Number, low: float, high: float, expected: str, hint: str = ""
) -> None:
    """Raise `ValueError` unless each number is strictly between `low` and `high`."""
    given = value.numbers if isinstance(value, Fixed) else value
    if not is_concrete(given):
        return
    numbers = as_float64(name, given, "a real number")
    most = float(jnp.finfo(jnp.result_type(float)).max)
    if np.any(np.isfinite(numbers) & (np.abs(numbers) > most)):
        raise ValueError(
            f"{name} has numbers too large for {jnp.result_type(float)}; got {numbers.tolist()}."
        )
    if not np.all((numbers > low) & (numbers < high)):
        raise ValueError(f"{name} must be {expected}; got {numbers.tolist()}. {hint}".rstrip())
