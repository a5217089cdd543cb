r"""Rotary positions: the product of a rotated query and key depends only on their distance.

A pair of coordinates with frequency θ turns once in 2π/θ positions: $r = L \theta / 2\pi$ times in
the L positions of the training. For longer sequences, pairs that turn often tell near positions
apart, and stay as they are. Pairs that turn less than once would reach new angles at s L positions,
and are slowed by s.
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._core.arrays import as_integer_array, as_real_array, is_concrete, require_finite, wider_dtype
from .._core.parameters import Fixed, Free, Number, Parameter, as_trained, constant, described
from .._core.validation import as_integer, is_real_number, require_bool, require_instance


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
        """Returns θ for points of `size` coordinates: one row for each axis of positions.

        **Raises:** `ValueError` if points have too few coordinates for the given frequencies; by
        default, if `size` is odd.
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

        **Raises:** `ValueError` if positions have another shape, x is not finite, or its size does
        not suit the frequencies.
        """
        x, positions = as_real_array("x", x), as_integer_array("positions", positions)
        axes = () if self.axes == 1 else (self.axes,)
        if x.ndim < 2 or positions.shape != (x.shape[-2], *axes):
            needed = "one number per row" if self.axes == 1 else f"shape (rows, {self.axes})"
            raise ValueError(
                f"x must have shape (*batch, rows, size), and positions {needed}; got {x.shape} "
                f"and {positions.shape}."
            )
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


def require_rotary(rotary: Any, size: int, name: str = "qk_size") -> None:
    """Raises `ValueError` unless it is None, or a `Rotary` that rotates points of this size."""
    if rotary is not None:
        require_instance("rotary", rotary, Rotary, "ak.Rotary()")
        try:
            rotary.frequencies_of(size)
        except ValueError as error:
            raise ValueError(f"rotary cannot rotate heads of {name} {size}: {error}") from None


def _as_parameter(frequencies: Number) -> Parameter:
    """Returns frequencies as a parameter, constant if they are `ak.fixed`, else trained.

    Raises `ValueError` unless they are finite, with 1 or 2 axes.
    """
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


def rotary_frequencies(size: int, base: float = 10_000.0) -> Float[np.ndarray, " pairs"]:
    r"""$\theta_c = b^{-2c/d}$, c = 0 … d/2 − 1.

    **Arguments:** `size`: d, the number of coordinates to rotate, even. `base`: b.

    **Raises:** `ValueError` if d is odd, or b not above 0.

    **Source:** Su et al., *RoFormer: enhanced transformer with rotary position embedding* (2021).

    ```python
    >>> ak.nn.rotary_frequencies(4)
    array([1.  , 0.01])

    ```
    """
    size = as_integer("size", size, 2)
    if size % 2:
        raise ValueError(f"Rotary positions rotate pairs of coordinates: size must be even: {size}")
    base = _require_above("base", base, 0.0, "10000.0")
    return base ** (-np.arange(0, size, 2) / size)


def ntk_frequencies(
    size: int, factor: float, base: float = 10_000.0
) -> Float[np.ndarray, " pairs"]:
    r"""$\theta_c = b'^{-2c/d}$ with $b' = b\, s^{d/(d-2)}$: the slowest pair is slowed by s.

    **Arguments:** `size`, `base`: as in `rotary_frequencies`. `factor`: s ≥ 1, how many times
    longer sequences are than in training.

    **Raises:** `ValueError` if d is not even and above 2, s below 1, or b not above 0.

    **Source:** bloc97, *NTK-aware scaled RoPE* (2023).

    ```python
    >>> ak.nn.ntk_frequencies(4, 4.0) / ak.nn.rotary_frequencies(4)
    array([1.  , 0.25])

    ```
    """
    size = as_integer("size", size, 4)
    factor = _require_above("factor", factor, 1.0, "4.0", or_equal=True)
    base = _require_above("base", base, 0.0, "10000.0")
    return rotary_frequencies(size, base * factor ** (size / (size - 2)))


def llama3_frequencies(
    size: int,
    factor: float,
    length: int,
    base: float = 500_000.0,
    *,
    low: float = 1.0,
    high: float = 4.0,
) -> Float[np.ndarray, " pairs"]:
    r"""$\theta' = \gamma \theta + (1 - \gamma)\, \theta / s$ with
    $\gamma = \mathrm{clip}\big( (r - r_l) / (r_h - r_l), 0, 1 \big)$.

    θ are those of `rotary_frequencies`, and $r = L \theta / 2\pi$ is the number of turns of a pair
    in L positions. Pairs of $r_h$ turns or more keep θ. Those of $r_l$ or fewer are slowed by s.

    **Arguments:**

    - `size`, `base`: as in `rotary_frequencies`. Default base: 500 000.
    - `factor`: s ≥ 1; Llama 3.1 has 8. `length`: L, of the sequences of the first training; 8192.
    - `low`, `high`: $r_l < r_h$, turns in L positions. Defaults: 1 and 4. With 1 and 32 these are
      the frequencies of equation 23 of the YaRN paper.

    **Raises:** `ValueError` if a number is out of range.

    **Source:** Grattafiori et al., *The Llama 3 herd of models* (2024), as released with
    Llama 3.1; Peng et al., *YaRN: efficient context window extension* (2024), section 3.2.

    ```python
    >>> ak.nn.llama3_frequencies(4, 8.0, 8192, base=1e9) / ak.nn.rotary_frequencies(4, 1e9)
    array([1.   , 0.125])

    ```
    """
    theta, factor, length = _checked(size, factor, length, base)
    low = _require_above("low", low, 0.0, "1.0")
    high = _require_above("high", high, low, "4.0")
    turns = length * theta / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * theta + (1.0 - kept) * theta / factor


def yarn_frequencies(
    size: int,
    factor: float,
    length: int,
    base: float = 10_000.0,
    *,
    fast: float = 32.0,
    slow: float = 1.0,
) -> Float[np.ndarray, " pairs"]:
    r"""$\theta' = \gamma_c \theta + (1 - \gamma_c)\, \theta / s$, where γ falls linearly in c.

    θ are those of `rotary_frequencies`.

    γ is 1 up to the pair that turns `fast` times in L positions, its number rounded down, and 0
    from the pair that turns `slow` times, rounded up: the released code of YaRN, whose ramp is
    linear in c, not in turns as in the paper. YaRN also scales all scores by
    $(0.1 \ln s + 1)^2$: `ak.DotProduct((0.1 * np.log(s) + 1) ** 2 / np.sqrt(d))`.

    **Arguments:** `size`, `base`: as in `rotary_frequencies`. `factor`: s ≥ 1. `length`: L, of the
    sequences of the first training. `fast`, `slow`: turns. Defaults: 32 and 1.

    **Raises:** `ValueError` if a number is out of range.

    **Source:** Peng, Quesnelle, Fan and Shippole, *YaRN: efficient context window extension of
    large language models* (2024), and its code.

    ```python
    >>> np.round(ak.nn.yarn_frequencies(8, 4.0, 2048) / ak.nn.rotary_frequencies(8), 3)
    array([1.  , 1.  , 0.625, 0.25 ])

    ```
    """
    theta, factor, length = _checked(size, factor, length, base)
    slow = _require_above("slow", slow, 0.0, "1.0")
    fast = _require_above("fast", fast, slow, "32.0")

    def pair_that_turns(times: float) -> float:
        return size * math.log(length / (times * 2 * math.pi)) / (2 * math.log(base))

    begin = max(math.floor(pair_that_turns(fast)), 0)
    end = min(math.ceil(pair_that_turns(slow)), size - 1)
    slowed = np.clip((np.arange(size // 2) - begin) / max(end - begin, 1e-3), 0.0, 1.0)
    return (1.0 - slowed) * theta + slowed * theta / factor


def axial_frequencies(
    sizes: Sequence[int], base: float = 10_000.0
) -> Float[np.ndarray, "axes pairs"]:
    r"""Frequencies of several axes, each with coordinates of its own: $\theta_{ac}$ is that of
    `rotary_frequencies(sizes[a])` for the pairs of axis a, and 0 for the others.

    **Arguments:** `sizes`: the number of coordinates of each axis, even. `base`: b.

    **Raises:** `ValueError` if a size is odd, or b not above 0.

    **Source:** the axial form of Heo et al., *Rotary position embedding for vision transformer*
    (2024); trained frequencies without zeros are its mixed form.

    ```python
    >>> ak.nn.axial_frequencies([4, 2])
    array([[1.  , 0.01, 0.  ],
           [0.  , 0.  , 1.  ]])

    ```
    """
    from scipy.linalg import block_diag  # noqa: PLC0415

    is_list = isinstance(sizes, Sequence) and not isinstance(sizes, str) and len(sizes) > 0
    if not is_list or any(not is_real_number(size) or size < 2 or size % 2 for size in sizes):
        raise ValueError(
            f"sizes must be an even number for each axis, such as [32, 32]; got {sizes!r}."
        )
    return np.asarray(block_diag(*(rotary_frequencies(size, base) for size in sizes)))


def _checked(
    size: int, factor: float, length: int, base: float
) -> tuple[Float[np.ndarray, " pairs"], float, int]:
    """Returns `rotary_frequencies(size, base)`, the factor and the length; `ValueError` unless both
    are at least 1."""
    factor = _require_above("factor", factor, 1.0, "4.0", or_equal=True)
    return rotary_frequencies(size, base), factor, as_integer("length", length, 1)


def _require_above(
    name: str, number: float, low: float, example: str, *, or_equal: bool = False
) -> float:
    """Returns the number; `ValueError` unless it is one, and above `low`, or equal if allowed."""
    is_valid = is_real_number(number) and (number > low or (or_equal and number == low))
    if not is_valid or not np.isfinite(number):
        least = "at least" if or_equal else "above"
        raise ValueError(f"{name} must be {least} {low:g}, such as {example}; got {number!r}.")
    return float(number)
