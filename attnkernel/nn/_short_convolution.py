"""Short causal convolutions of rows, each channel by itself, with the last rows as their state."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._core.arrays import as_float_dtype, require_finite
from .._core.validation import as_integer, require_bool, require_key
from ._inputs import as_row_mask, as_sequence, zero_invalid


class ShortConvolution(eqx.Module):
    r"""A causal convolution of few rows, with weights of its own for each channel.

    $$ y_{t,c} = f\Big(\sum_{s=0}^{w-1} a_{s,c}\, x_{t-s,c}\Big), \qquad x_t = 0 \text{ for } t < 0,
       \quad f(z) = z \text{ or } \mathrm{silu}(z) $$

    **Arguments:** `channels`: the number of columns c of x. `width`: w, the number of rows, its own
    included. Default: 4. `silu`: whether f is silu. Default: yes. `dtype`: of the weights; they
    start uniform in $\pm w^{-1/2}$.

    **Raises:** `ValueError` if a size is not a positive integer.

    **Source:** Fu et al., *Hungry hungry hippos* (2023); Gu and Dao, *Mamba* (2024), width 4.

    ```python
    convolution = ak.nn.ShortConvolution(3, key=jax.random.PRNGKey(0))
    x = jax.random.normal(jax.random.PRNGKey(1), (7, 3))
    first, recent = convolution.step(x[:5], convolution.empty())
    rest, recent = convolution.step(x[5:], recent)
    assert jnp.allclose(convolution(x), jnp.concatenate([first, rest]), atol=1e-6)
    ```
    """

    weight: Float[Array, "width channels"]
    silu: bool = eqx.field(static=True)

    def __init__(
        self, channels: int, width: int = 4, *, silu: bool = True, dtype=None, key: PRNGKeyArray
    ):
        channels, width = as_integer("channels", channels, 1), as_integer("width", width, 1)
        require_bool("silu", silu)
        require_key("key", key)
        dtype, bound = as_float_dtype("dtype", dtype), width**-0.5
        self.weight = jax.random.uniform(key, (width, channels), dtype, -bound, bound)
        self.silu = bool(silu)

    def __call__(
        self, x: Float[Array, "rows channels"], mask: ArrayLike | None = None
    ) -> Float[Array, "rows channels"]:
        """The convolution of one sequence.

        **Arguments:** `x`: the rows. `mask`: True = valid row, shape (rows,). The others are
        skipped, and their output is 0. Default: all are valid.
        """
        return self.step(x, self.empty(), mask)[0]

    def empty(self, dtype: Any = None) -> Float[Array, "recent channels"]:
        """The rows before a sequence, for `step`: w − 1 rows of 0."""
        dtype = self.weight.dtype if dtype is None else as_float_dtype("dtype", dtype)
        width, channels = self.weight.shape
        return jnp.zeros((width - 1, channels), dtype)

    def step(
        self,
        x: Float[Array, "rows channels"],
        recent: Float[Array, "recent channels"],
        mask: ArrayLike | None = None,
    ) -> tuple[Float[Array, "rows channels"], Float[Array, "recent channels"]]:
        """The convolution of the next rows of a sequence, and the `recent` rows of the next step.

        These are the last w − 1 valid rows of the sequence, before convolution.

        **Arguments:** `x`, `mask`: the new rows, as in a call. `recent`: the w − 1 rows before.

        **Raises:** `ValueError` for another shape.
        """
        width, channels = self.weight.shape
        x = as_sequence("x", x, channels)
        valid = as_row_mask(mask, len(x))
        x = zero_invalid(x, valid)
        recent = as_sequence("recent", recent, channels)
        if len(recent) != width - 1:
            raise ValueError(
                f"recent must be the last rows before x, shape {(width - 1, channels)}; got "
                f"{recent.shape}."
            )
        for name, rows in (("x", x), ("recent", recent)):
            require_finite(name, rows)
        return self.next_rows(x, recent, valid)

    def next_rows(
        self, x: Array, recent: Array, valid: Bool[Array, " rows"] | None
    ) -> tuple[Array, Array]:
        """Returns the same as `step`, for arrays that are already checked.

        `valid`: True = valid row; None: all are valid.
        """
        rows = len(x)
        order = None if valid is None else jnp.argsort(~valid, stable=True)  # valid rows first
        x = x if order is None else x[order]
        padded = jnp.concatenate([recent.astype(x.dtype), x])
        out = jnp.zeros_like(x)
        for first, weight in enumerate(self.weight[::-1].astype(x.dtype)):
            out = out + padded[first : first + rows] * weight[None]
        out = jax.nn.silu(out) if self.silu else out
        if order is not None:
            out = zero_invalid(jnp.zeros_like(out).at[order].set(out), valid)
        count = rows if valid is None else jnp.sum(valid)
        last = jax.lax.dynamic_slice_in_dim(padded, count, len(recent))
        return out, last.astype(recent.dtype)
