"""Rotary positions: the product of a rotated query and key depends only on their distance."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._core.arrays import as_integer_array, as_real_array, require_finite, wider_dtype
from .._core.host_arrays import is_concrete
from .._core.parameter_arguments import Fixed, Number, as_trained, constant
from .._core.parameters import Free, Parameter, described
from .._core.validation import require_bool
from ._rotary_frequencies import rotary_frequencies


class Rotary(eqx.Module):
    r"""Rotates pairs of coordinates by angles that are linear in the position.

    $$ (x_c + i\, x_{c'})\, e^{i \phi_c}, \qquad \phi_c = \sum_a p_a\, \theta_{ac},\
       0 \le c < m $$

    p is the position along one axis, or along several, as of a patch of an image. The product of a
    rotated query and a rotated key depends on positions only through their difference.

    **Arguments:**

    - `frequencies`: θ, of shape (m,) or (axes, m). Coordinates beyond the first 2m are left as
      they are. Trained if given; `ak.fixed(ak.nn.llama3_frequencies(...))` holds them fixed, and
      `ak.nn` has those of NTK, YaRN and several axes too. Default: $b^{-2c/d}$, fixed, for points
      of any even size d.
    - `base`: b, of the default. Default 10 000.
    - `interleaved`: whether c' = c + 1 for even c, rather than c + m. Weights of one pairing do
      not fit the other. Default: no.

    **Raises:** `ValueError` if the base is not above 0, or frequencies are no such array.

    **Source:** Su et al., *RoFormer: enhanced transformer with rotary position embedding* (2021);
    pairs as in `equinox.nn.RotaryPositionalEmbedding`; interleaved, as in GPT-J and Llama.

    ```python
    q, k = jax.random.normal(jax.random.PRNGKey(0), (2, 1, 8))
    turn = ak.Rotary()
    products = [turn(q, jnp.array([i + 3])) @ turn(k, jnp.array([i])).T for i in (0, 5)]
    np.testing.assert_allclose(*products, rtol=1e-4, atol=1e-5)
    ```
    """

    frequencies_parameter: Parameter | None
    base: float = eqx.field(static=True)
    interleaved: bool = eqx.field(static=True)
    __pdoc__ = described

    def __init__(
        self,
        frequencies: Number | None = None,
        *,
        base: float = 10_000.0,
        interleaved: bool = False,
    ):
        rotary_frequencies(2, base)  # raises for an invalid base
        require_bool("interleaved", interleaved)
        self.frequencies_parameter = None if frequencies is None else _as_parameter(frequencies)
        self.base, self.interleaved = float(base), interleaved

    @property
    def axes(self) -> int:
        """The number of axes of positions."""
        parameter = self.frequencies_parameter
        return 1 if parameter is None or len(parameter.shape) == 1 else parameter.shape[0]

    def frequencies_of(self, size: int) -> Float[Array, "axes pairs"]:
        """θ, for points of a size.

        **Raises:** `ValueError` if points have too few coordinates.
        """
        parameter = self.frequencies_parameter
        if parameter is None:
            return jnp.asarray(rotary_frequencies(size, self.base), float)[None]
        found = jnp.atleast_2d(jnp.asarray(parameter.value, float))
        if 2 * found.shape[1] > size:
            raise ValueError(
                f"{found.shape[1]} frequencies rotate {2 * found.shape[1]} coordinates; got points "
                f"of size {size}."
            )
        return found

    def __call__(
        self,
        x: Float[Array, "*batch rows size"],
        positions: Int[Array, " rows"] | Int[Array, "rows axes"],
    ) -> Float[Array, "*batch rows size"]:
        """Returns the rotated points, in the shape of x; angles are computed in at least float32.

        **Arguments:** `x`: points. `positions`: p of each row; with several axes, shape
        (rows, axes).

        **Raises:** `ValueError` if x has too few coordinates, or positions another shape.
        """
        x, positions = as_real_array("x", x), as_integer_array("positions", positions)
        self.require_positions("positions", positions, x.shape[-2] if x.ndim > 1 else -1)
        require_finite("x", x)
        dtype = wider_dtype(x.dtype)
        frequencies = self.frequencies_of(x.shape[-1]).astype(dtype)
        at = positions.astype(dtype).reshape(-1, self.axes)
        # not a matrix product: on some devices it would round positions to bfloat16
        angles = jnp.sum(at[:, :, None] * frequencies[None], axis=1)
        angles = angles.reshape((1,) * (x.ndim - 2) + angles.shape)
        pairs = frequencies.shape[1]
        rotated, rest = x[..., : 2 * pairs].astype(dtype), x[..., 2 * pairs :]
        pairing = (pairs, 2) if self.interleaved else (2, pairs)
        axis = -1 if self.interleaved else -2
        both = rotated.reshape(*rotated.shape[:-1], *pairing)
        first, second = jnp.take(both, 0, axis=axis), jnp.take(both, 1, axis=axis)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=axis)
        return jnp.concatenate([turned.reshape(rotated.shape).astype(x.dtype), rest], axis=-1)

    def require_positions(self, name: str, positions: Array, rows: int) -> None:
        """Raises `ValueError` unless there is one position per row, along each axis."""
        shape = (rows,) if self.axes == 1 else (rows, self.axes)
        if positions.shape != shape:
            needed = "one number per row" if self.axes == 1 else "(rows, axes)"
            raise ValueError(
                f"x must have shape (*batch, rows, size), and {name} {needed}, here {shape}; got "
                f"{name} {positions.shape}."
            )


def _as_parameter(frequencies: Number) -> Parameter:
    """Returns the parameter of an array of frequencies; `ValueError` unless it has 1 or 2 axes."""
    is_fixed = isinstance(frequencies, Fixed)
    array: Any = frequencies.numbers if is_fixed else as_real_array("frequencies", frequencies)
    is_finite = not is_concrete(array) or np.all(np.isfinite(array))
    if array.ndim not in (1, 2) or not array.size or not is_finite:
        raise ValueError(
            "frequencies must be finite numbers of shape (pairs,) or (axes, pairs), such as "
            f"ak.nn.rotary_frequencies(64); got shape {array.shape}."
        )
    if is_fixed:
        return constant(frequencies, array.ndim)
    return Free(as_trained("frequencies", array), array.ndim)
