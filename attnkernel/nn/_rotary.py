"""Rotary positions: the product of a rotated query and key depends only on their distance."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._core.arrays import as_integer_array, as_real_array, require_finite, wider_dtype
from .._core.validation import require_positive


def rotate(
    x: Float[Array, "*batch rows size"], positions: Int[Array, " rows"], base: float = 10_000.0
) -> Float[Array, "*batch rows size"]:
    r"""Rotates each pair of coordinates (c, c + d/2) by an angle proportional to the position.

    $$ (x_c + i\, x_{c + d/2})\, e^{i p \theta_c}, \qquad \theta_c = b^{-2c/d},\ 0 \le c < d/2 $$

    **Arguments:** `x`: points, d even. `positions`: p, of each row. `base`: b. Default 10 000.

    **Returns:** the shape of x. Angles are computed in at least float32.

    **Raises:** `ValueError` if d is odd, or b not above 0.

    **Source:** Su et al., *RoFormer: enhanced transformer with rotary position embedding* (2021),
    with the halves as in `equinox.nn.RotaryPositionalEmbedding`.

    ```python
    q, k = jax.random.normal(jax.random.PRNGKey(0), (2, 1, 8))
    products = [ak.rotate(q, jnp.array([i + 3])) @ ak.rotate(k, jnp.array([i])).T for i in (0, 5)]
    np.testing.assert_allclose(*products, rtol=1e-4, atol=1e-5)
    ```
    """
    x, positions = as_real_array("x", x), as_integer_array("positions", positions)
    if x.ndim < 2 or positions.shape != x.shape[-2:-1]:
        raise ValueError(
            f"x must have shape (*batch, rows, size), and positions one number per row; got x "
            f"{x.shape} and positions {positions.shape}."
        )
    require_finite("x", x)
    size = x.shape[-1]
    if size % 2:
        raise ValueError(f"Rotary positions rotate pairs of coordinates; got an odd size, {size}.")
    if np.ndim(base):
        raise ValueError(f"base must be one number, such as 10000.0; got {base!r}.")
    require_positive("base", base, "Try 10000.")
    require_positive("base", jnp.asarray(base, float), "Try 10000.")  # also once rounded
    dtype = wider_dtype(x.dtype)
    frequencies = base ** (-jnp.arange(0, size, 2, dtype=dtype) / size)
    angles = positions.astype(dtype)[:, None] * frequencies[None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(dtype), 2, axis=-1)
    batch = (1,) * (x.ndim - 2)
    cos, sin = cos.reshape(*batch, *cos.shape), sin.reshape(*batch, *sin.shape)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
