r"""Numbers of kernels, priors and rules that cannot leave their domain, fixed or to be fitted.

A number of Python or NumPy is fixed: it is no leaf of the tree, and nothing can move it. An array
of JAX is to be fitted: it is held as a number that may be anything, from which the parameter
follows, so that no step of any optimiser leaves the domain.

$$ \theta = e^{z} > 0, \qquad \theta = a + (b - a)\, \sigma(z) \in (a, b),
   \qquad z \in \mathbb{R} $$
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


class Parameter(eqx.Module):
    """A number, or one of each head, in its natural unit: `value`."""

    @property
    @abc.abstractmethod
    def value(self) -> ArrayLike: ...

    def __pdoc__(self, **kwargs: Any) -> wl.AbstractDoc:
        return wl.pdoc(self.value, **kwargs)

    def log(self) -> Float[Array, "..."]:
        """The logarithm of the value."""
        return jnp.log(jnp.asarray(self.value, float))


class Constant(Parameter):
    """A number that is fixed, and no leaf of the tree."""

    number: float = eqx.field(static=True)

    @property
    def value(self) -> float:
        return self.number


class ConstantOfHeads(Parameter):
    """A fixed number of each head, of which each takes its own by its place."""

    numbers: tuple[float, ...] = eqx.field(static=True)
    place: Int[Array, "..."]

    @property
    def value(self) -> Float[Array, "..."]:
        return jnp.asarray(self.numbers, float)[self.place]


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
        return jnp.exp(self.z)

    def log(self) -> Float[Array, "..."]:
        return self.z


class Between(Parameter):
    """A number of an open interval."""

    z: Float[Array, "..."]
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    @property
    def value(self) -> Float[Array, "..."]:
        return self.low + (self.high - self.low) * jax.nn.sigmoid(self.z)


def real(name: str, value: ArrayLike) -> Parameter:
    """A parameter that may be any finite number."""
    fixed = _fixed(name, value, -math.inf, math.inf, "a finite number")
    return fixed or Free(as_real_array(name, value))


def positive(name: str, value: ArrayLike, hint: str, *, or_zero: bool = False) -> Parameter:
    """A parameter above 0; if `or_zero`, one that is fixed may be 0."""
    least = 0.0
    if or_zero and not isinstance(value, jax.Array):
        least = -math.ulp(0.0)
    what = "at least 0 and finite" if least else "positive and finite"
    return _fixed(name, value, least, math.inf, what, hint) or Positive(
        jnp.log(as_real_array(name, value))
    )


def between(name: str, value: ArrayLike, low: float, high: float, hint: str) -> Parameter:
    """A parameter above `low` and below `high`; one that is fixed may be `high`."""
    is_array = isinstance(value, jax.Array)
    most, what = (high, "below") if is_array else (math.nextafter(high, math.inf), "at most")
    if fixed := _fixed(name, value, low, most, f"above {low:g}, and {what} {high:g}", hint):
        return fixed
    share = (as_real_array(name, value) - low) / (high - low)
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


def _fixed(
    name: str, value: ArrayLike, low: float, high: float, expected: str, hint: str = ""
) -> Parameter | None:
    """The number, or those of heads, as constants; None of an array of JAX, which is to be fitted.

    **Raises:** `ValueError` unless each is strictly between `low` and `high`.
    """
    if not is_concrete(value):
        return None
    numbers = as_float64(name, value, "a real number")
    if np.any(
        np.isfinite(numbers) & (np.abs(numbers) > float(jnp.finfo(jnp.result_type(float)).max))
    ):
        raise ValueError(
            f"{name} has numbers too large for {jnp.result_type(float)}; got {numbers.tolist()}."
        )
    if not np.all((numbers > low) & (numbers < high)):
        raise ValueError(f"{name} must be {expected}; got {numbers.tolist()}. {hint}".rstrip())
    if isinstance(value, jax.Array):
        return None
    if not numbers.ndim:
        return Constant(float(numbers))
    place = jnp.arange(numbers.size).reshape(numbers.shape)
    return ConstantOfHeads(tuple(numbers.ravel().tolist()), place)


def described(module: eqx.Module, **kwargs: Any) -> wl.AbstractDoc:
    """`__pdoc__` of a module that holds the parameter `name` as its field `name_parameter`."""
    pairs = [
        (field.name.removesuffix("_parameter"), getattr(module, field.name))
        for field in dataclasses.fields(module)  # type: ignore[arg-type]
    ]
    parts = wl.named_objs(pairs, **kwargs)
    begin, end = wl.TextDoc(f"{type(module).__name__}("), wl.TextDoc(")")
    return wl.bracketed(begin, parts, wl.comma, end, kwargs.get("indent", 2))
