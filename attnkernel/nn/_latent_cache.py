"""The cache of latent attention: one latent for each row, shared by all heads."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.validation import as_integer
from ._row_cache import RowCache, Rows, checked_parts


class LatentCache(RowCache):
    r"""The latents of the rows so far, and the rotated parts of their keys, side by side.

    For each row it holds r + dᵣ numbers, where a `KVCache` of H heads holds 2Hd.

    **Arguments:** `latent_size`: r. `rotary_size`: dᵣ. Default: 0. Others as in `KVCache`.

    **Raises:** `ValueError` if sizes are not positive integers, or a ring has no window.

    **Source:** DeepSeek-AI, *DeepSeek-V2* (2024).

    ```python
    >>> cache = ak.nn.LatentCache(100, latent_size=8, rotary_size=4)
    >>> cache.latents.shape, cache.rotated_keys.shape
    ((100, 8), (100, 4))

    ```
    """

    latent_size: int = eqx.field(static=True)

    def __init__(
        self,
        capacity: int,
        latent_size: int,
        rotary_size: int = 0,
        *,
        ring: bool = False,
        sinks: int = 0,
        spare: int = 0,
        dtype=None,
    ):
        latent_size = as_integer("latent_size", latent_size, 1)
        rotary_size = as_integer("rotary_size", rotary_size, 0)
        self.latent_size = latent_size
        shapes = ((latent_size + rotary_size,),)
        super().__init__(capacity, shapes, ring, sinks, spare, dtype)

    @property
    def latents(self) -> Float[Array, "capacity latent_size"]:
        """The latents, at the places of their rows."""
        return self.parts[0][:, : self.latent_size]

    @property
    def rotated_keys(self) -> Float[Array, "capacity rotary_size"]:
        """The rotated parts of keys, at the places of their rows."""
        return self.parts[0][:, self.latent_size :]

    def append(
        self,
        latents: Float[Array, "new latent_size"],
        rotated_keys: Float[Array, "new rotary_size"],
        *,
        count: ArrayLike | None = None,
        positions: ArrayLike | None = None,
    ) -> tuple[Rows, "LatentCache"]:
        """Returns the rows that new rows may attend to, themselves included, and the new cache.

        **Arguments:** `latents`, `rotated_keys`: of the new rows. `count`, `positions`: as in
        `KVCache.append`.

        **Raises:** `ValueError` if a full cache has no room for them; inside `jit` the error is
        one of run time.
        """
        held = (self.latents, self.rotated_keys)
        parts = checked_parts(latents=(latents, held[0]), rotated_keys=(rotated_keys, held[1]))
        return self._append((jnp.concatenate(parts, axis=1),), count, positions)
