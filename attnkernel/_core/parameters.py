r"""Kinds of parameters: in natural units, trained or fixed, never out of their domain.

A trained number is stored as z, which may be any real number, and clipped where exp or the logistic
function σ would round to an end of the domain:

$$ \theta = e^{z} > 0, \qquad \theta = a + (b - a)\, \sigma(z) \in (a, b),
   \qquad z \in \mathbb{R} $$

A fixed number is no leaf of the tree: nothing can move it, and a checkpoint does not hold it.

A number that is written is trained. A default is fixed, except that of a lengthscale, and
`fixed(0.3)` holds a number fixed.
"""

import abc
import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import wadler_lindig as wl
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .arrays import (
    as_float64,
    as_numpy_if_concrete,
    as_real_array,
    is_concrete,
    namespace_of,
    wider_dtype,
)


class Parameter(eqx.Module):
    """A number, or one per dimension or per head, in its natural unit: `value`."""

    # Whether it is static: not trained.
    is_fixed: ClassVar[bool] = False

    # Whether it holds a value for each of several heads.
    has_heads: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def value(self) -> float | Float[Array, "..."]:
        """The number or numbers in natural units."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""

    def equals(self, number: float) -> bool:
        """Whether it is fixed at this number, for all heads."""
        return False

    def at(self, value: ArrayLike) -> "Parameter":
        """The parameter at another value; itself, unchanged, unless it is `Positive`."""
        return self

    def log(self) -> Float[Array, "..."]:
        """The logarithm of the value."""
        return jnp.log(jnp.asarray(self.value, float))

    def __pdoc__(self, **kwargs: Any) -> wl.AbstractDoc | None:
        """The printed value, to four digits; dtype and shape of a traced or long array.

        None, for the default form, if a leaf is not an array.
        """
        if not all(map(eqx.is_array, jax.tree.leaves(self, is_leaf=lambda leaf: leaf is None))):
            return None
        value = self.value
        max_shown = 16  # numbers of one parameter that its repr lists
        if isinstance(value, jax.Array) and not (is_concrete(value) and value.size <= max_shown):
            return wl.pdoc(value, **kwargs)
        text = _format_to_four_digits(np.asarray(value).tolist())
        return wl.TextDoc(f"fixed({text})" if self.is_fixed else text)


class Constant(Parameter):
    """A fixed number, or nested tuples of them for an array: no leaf of the tree."""

    is_fixed: ClassVar[bool] = True

    number: Any = eqx.field(static=True)

    @property
    def value(self) -> float | Float[Array, "..."]:
        return jnp.asarray(self.number, float) if isinstance(self.number, tuple) else self.number

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.number)

    def equals(self, number: float) -> bool:
        return self.number == number

    def times(self, factor: ArrayLike) -> "Constant | Positive":
        """The parameter whose value is this one times a positive factor.

        It is a `Constant`, or a `Positive` if the factor is traced.
        """
        if is_concrete(factor):
            return Constant(nested_tuples(np.multiply(self.number, factor)))
        return Positive(self.log() + jnp.log(factor), np.ndim(self.number))

    def __pdoc__(self, **kwargs: Any) -> wl.AbstractDoc:
        """The printed value in all its digits, as `fixed(...)`."""
        return wl.TextDoc(f"fixed({np.asarray(self.number).tolist()})")


class ConstantOfHeads(Parameter):
    """Fixed values of several heads: `numbers` has one per head, at index `place`.

    `place` is an array of the indices of all heads, or under `vmap` over heads the index of one.
    """

    is_fixed: ClassVar[bool] = True

    numbers: tuple[Any, ...] = eqx.field(static=True)
    place: Int[Array, "..."]

    @property
    def value(self) -> Float[Array, "..."]:
        """The values of the heads that `place` indexes: of all, or of one under `vmap`."""
        return jnp.asarray(self.numbers, float)[self.place]

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.place) + np.shape(self.numbers)[1:]

    @property
    def has_heads(self) -> bool:  # type: ignore[override]
        """Whether it holds a value for each of several heads; False under `vmap` over heads."""
        return np.ndim(self.place) > 0

    def equals(self, number: float) -> bool:
        return set(self.numbers) == {number}

    def times(self, factor: ArrayLike) -> "ConstantOfHeads":
        """The parameter whose value is this one times a positive factor."""
        return ConstantOfHeads(nested_tuples(np.multiply(self.numbers, factor)), self.place)


class Trained(Parameter):
    """A parameter that is stored as z, a leaf of the tree."""

    z: Float[Array, "..."]
    axes: int = eqx.field(static=True)  # of one head's value: 0, or 1 if one number per dimension

    def __pdoc__(self, **kwargs: Any) -> wl.AbstractDoc | None:
        """The printed value; z itself where it holds flags or codes, as in `Starts.edges`."""
        if eqx.is_array(self.z) and not eqx.is_inexact_array(self.z):
            return wl.pdoc(self.z, **kwargs)
        return super().__pdoc__(**kwargs)

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.z)

    @property
    def has_heads(self) -> bool:  # type: ignore[override]
        """Whether it holds a value for each of several heads: z has more axes than one value."""
        return len(self.shape) > self.axes


class Free(Trained):
    """Any real number."""

    @property
    def value(self) -> Float[Array, "..."]:
        return self.z


class Positive(Trained):
    """A number above 0."""

    @property
    def value(self) -> Float[Array, "..."]:
        if is_concrete(self.z):  # no program, and no warning at a float64 where x64 is off
            return jax.device_put(np.exp(np.clip(np.asarray(self.z), *self._safe_exponents())))
        return jnp.exp(self.log())

    def log(self) -> Float[Array, "..."]:
        low, high = (jnp.asarray(end, self.z.dtype) for end in self._safe_exponents())
        return jax.lax.clamp(low, self.z, high)  # `jnp.clip` traces 12 operations in derivatives

    def _safe_exponents(self) -> tuple[float, float]:
        """Returns the least and the largest z whose exp(z) neither overflows nor is subnormal in
        the dtype of the parameter."""
        limits = jnp.finfo(self.z.dtype)
        return 0.999 * math.log(float(limits.tiny)), 0.999 * math.log(float(limits.max))

    def at(self, value: ArrayLike) -> "Positive":
        return Positive(log_of(value, self.z.dtype), self.axes)

    def times(self, factor: ArrayLike) -> "Positive":
        """The parameter whose value is this one times a positive factor."""
        return Positive(self.z + jnp.log(jnp.asarray(factor, self.z.dtype)), self.axes)


class Between(Trained):
    """A number of an open interval, whose upper end may differ between dimensions."""

    low: float = eqx.field(static=True)
    high: float | tuple[float, ...] = eqx.field(static=True)

    @property
    def value(self) -> Float[Array, "..."]:
        width = np.asarray(self.high, self.z.dtype) - self.low
        return jax.nn.sigmoid(self._clip_logit()) * width + self.low

    def log_shares(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Returns log((θ − a) / (b − a)) and log((b − θ) / (b − a)) of the value θ in (a, b)."""
        return jax.nn.log_sigmoid(self._clip_logit()), jax.nn.log_sigmoid(-self._clip_logit())

    def _clip_logit(self) -> Float[Array, "..."]:
        """Returns z, the stored logit, clipped so that the logistic σ(z) rounds to neither 0 nor
        1, and the parameter stays inside its interval."""
        limits = jnp.finfo(self.z.dtype)
        low, high = (0.8 * math.log(float(least)) for least in (limits.tiny, limits.eps))
        return jnp.clip(self.z, high if self.low else low, -high)


def log_of(value: ArrayLike, dtype: Any) -> Float[Array, "..."]:
    """Returns the logarithms of numbers of at least 0, in this dtype; compiles nothing if they
    are concrete."""
    value = as_numpy_if_concrete(value)
    with np.errstate(divide="ignore"):
        return jax.device_put(namespace_of(value).log(value).astype(dtype))


PositiveParameter = Positive | Constant | ConstantOfHeads


def require_single(tree: Any) -> None:
    """Raises `ValueError` if a parameter in the tree has a number for each of several heads."""
    is_parameter = lambda node: isinstance(node, Parameter)  # noqa: E731
    for node in jax.tree.leaves(tree, is_leaf=is_parameter):
        if is_parameter(node) and node.has_heads:
            raise ValueError(
                f"A parameter has shape {node.shape}: one number for each head goes into "
                f"ak.PerHead(...), and else it is a single number."
            )


def natural(name: str, doc: str | None = None) -> Any:
    """Returns a property, with the docstring `doc`: the value, in its natural unit, of the
    parameter in the field `{name}_parameter`."""

    def value(self: Any) -> Any:
        return getattr(self, f"{name}_parameter").value

    value.__qualname__ = natural.__qualname__  # where links of the documentation lead
    return property(value, doc=doc)


def described(module: eqx.Module, **kwargs: Any) -> wl.AbstractDoc:
    """Returns the printed form of a module, for its `__pdoc__`.

    A field `name_parameter` is printed as `name`. Fields that are None, the default, are left out.
    """
    pairs = [
        (field.name.removesuffix("_parameter"), value)
        for field in dataclasses.fields(module)  # type: ignore[arg-type]
        if (value := getattr(module, field.name)) is not None
    ]
    parts = wl.named_objs(pairs, **kwargs)
    begin, end = wl.TextDoc(f"{type(module).__name__}("), wl.TextDoc(")")
    return wl.bracketed(begin, parts, wl.comma, end, kwargs.get("indent", 2))


def nested_tuples(numbers: Any) -> Any:
    """Returns a NumPy array, or nested lists, as nested tuples, which can be hashed. A single
    number becomes a number of Python."""
    numbers = numbers.tolist() if isinstance(numbers, np.ndarray | np.generic) else numbers
    return tuple(map(nested_tuples, numbers)) if isinstance(numbers, list) else numbers


def _format_to_four_digits(numbers: Any) -> str:
    """Returns a number, or nested lists of numbers, as text with four significant digits each."""
    if isinstance(numbers, list):
        return f"[{', '.join(map(_format_to_four_digits, numbers))}]"
    return f"{numbers:.4g}"


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

    **Raises:** `ValueError` if it is no finite real number within the range of JAX's default dtype,
    or is traced.

    ```python
    >>> import attnkernel as ak
    >>> ak.Softmax(ak.fixed(0.5), sink_mass=ak.fixed(1e-16))
    Softmax(temperature=fixed(0.5), sink_mass=fixed(1e-16))
    >>> ak.Gaussian(ak.fixed(0.3))
    Gaussian(lengthscale=fixed(0.3))

    ```
    """
    if isinstance(value, Fixed):
        return value
    if not is_concrete(value):
        raise ValueError("A fixed number must be known before a program is compiled; got a tracer.")
    _require_strictly_between("value", value, -math.inf, math.inf, "a finite number")
    return Fixed(as_float64("value", value, "a real number"))


def real(name: str, value: Number, hint: str = "") -> Parameter:
    """Returns a parameter that may be any finite number: trained, or fixed for an `ak.fixed(...)`.

    An array holds a number of each head.
    `ValueError` for other values, which names the argument `name` and ends with `hint`.
    """
    _require_strictly_between(name, value, -math.inf, math.inf, "a finite number", hint)
    return constant(value) if isinstance(value, Fixed) else Free(as_trained(name, value), 0)


def positive(
    name: str, value: Number, hint: str, *, or_zero: bool = False, per_dimension: bool = False
) -> PositiveParameter:
    """Returns a parameter above 0: trained, or fixed for an `ak.fixed(...)`.

    If `or_zero`, one that is fixed may be 0. With `per_dimension`, a vector holds a number of each
    dimension; without, of each head. `ValueError` for other values, as for `real`.
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
    """Returns a parameter above `low` and below `high`: trained, or fixed for an `ak.fixed(...)`.

    One that is fixed may be `high`, and if `or_low` also `low`. With `per_dimension`, or
    if `high` is a tuple, a vector holds a number of each dimension; else, of each head.
    `ValueError` for other values, as for `real`.
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
