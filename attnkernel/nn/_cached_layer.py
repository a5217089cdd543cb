"""Layers that can go on from a cache: one signature of `step` for all of them."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_boolean_array, require_finite
from .._core.validation import as_integer
from ..attention import PerHead
from ..priors import Prior, require_prior
from ._cache import Cache, as_count
from ._inputs import as_sequence, size_or, zero_invalid


class NewRows(NamedTuple):
    """The arguments of `step`, checked except for `positions`; rows of padding are 0."""

    x: Float[Array, "new size"]
    valid: Bool[Array, " new"] | None
    rows: Int[Array, ""] | int  # the number of valid rows
    mask: Bool[Array, "new new"] | None
    prior: Prior | PerHead | None
    positions: ArrayLike | None

    def refuse(self, reason: str, *names: str) -> None:
        """Raises `ValueError` if one of the named arguments is given."""
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} must be None: {reason}.")


class CachedLayer(eqx.Module):
    r"""A layer that computes the next rows of a sequence from a cache of the earlier ones.

    $$ (\mathrm{out}_{n+1..n+m}, C_{n+m}) = \mathrm{step}(x_{n+1..n+m}, C_n) $$

    Rows that are decoded equal the rows of the full, causal pass, however they are grouped: a
    prompt is one step of many rows. Sequences of different lengths are one batch, with a `count`
    for each:

    ```python
    layer = ak.nn.LatentAttention(2, 8, 4, key=jax.random.PRNGKey(0))
    caches = jax.vmap(lambda _: layer.cache(100))(jnp.arange(3))
    x = jax.random.normal(jax.random.PRNGKey(1), (3, 5, 8))
    step = jax.vmap(lambda x, cache, count: layer.step(x, cache, count=count))
    out, caches = step(x, caches, jnp.array([5, 2, 0]))
    assert caches.length.tolist() == [5, 2, 0]
    ```

    A tree of drafts is one step too. Its mask says which drafts each draft sees, its positions
    count the depth, and `keep` keeps the accepted path:

    ```python
    cache = layer.cache(100)
    mask = jnp.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool)  # two drafts follow the first
    positions = cache.length + jnp.array([0, 1, 1])
    out, drafted = layer.step(x[0, :3], cache, mask=mask, positions=positions)
    cache = drafted.keep(cache.length, jnp.array([0, 2]))
    assert cache.length == 2
    ```
    """

    query_size: eqx.AbstractVar[int]

    def step(
        self,
        x: Float[Array, "new query_size"],
        cache: Cache,
        *,
        mask: ArrayLike | None = None,
        prior: Prior | PerHead | None = None,
        positions: ArrayLike | None = None,
        count: ArrayLike | None = None,
    ) -> tuple[Float[Array, "new output_size"], Cache]:
        """The output of the next rows of a sequence, one or several, and the cache with them.

        **Arguments:**

        - `x`: the new rows. `cache`: of the rows before, made by this layer.
        - `mask`: which of the new rows sees which of the new rows, shape (new, new), True = attend;
          all see the rows before. Default: each sees those before it and itself.
        - `prior`: multiplied by the layer's own, at the positions of queries and keys.
        - `positions`: of the new rows, shape (new,); (new, axes) where `rotary` has several axes.
          Default: the cache counts rows; with several axes there is no default.
        - `count`: how many of the new rows are valid. The rest are padding: they do not enter the
          cache, and their output is 0. Default: all.

        **Raises:** `ValueError` for arrays of other shapes, rows that are not finite, arguments
        that the cache does not support, and if a full cache has no room (inside `jit`, at run
        time).
        """
        x = as_sequence("x", x, self.query_size)
        if x.shape[0] == 0:
            raise ValueError("x has no rows: a step takes one or more new rows.")
        if mask is not None:
            mask = as_boolean_array("mask", mask, 2, "(new, new), True = attend")
            if mask.shape != (len(x), len(x)):
                raise ValueError(
                    f"mask must say which new row sees which new row, shape (new, new) = "
                    f"{(len(x), len(x))}; got {mask.shape}. Rows in the cache are seen by all: "
                    f"hide some by prior=."
                )
        if prior is not None:
            require_prior("prior", prior)
        rows = as_count("count", count, len(x))
        valid = None if count is None else jnp.arange(len(x)) < rows
        x = zero_invalid(x, valid)
        require_finite("x", x)
        out, cache = self._decode_rows(NewRows(x, valid, rows, mask, prior, positions), cache)
        return zero_invalid(out, valid), cache

    @abc.abstractmethod
    def _decode_rows(self, new: NewRows, cache: Any) -> tuple[Array, Cache]:
        """Returns the output of all new rows, padding included, and the cache with the valid rows.

        Rows of padding may have any output: `step` sets it to 0.
        """


class HeadsLayer(CachedLayer):
    """A layer with a cache whose heads have queries and keys of one size, and values of one."""

    num_heads: int = eqx.field(static=True)
    query_size: int = eqx.field(static=True)
    output_size: int = eqx.field(static=True)
    qk_size: int = eqx.field(static=True)
    vo_size: int = eqx.field(static=True)

    def _set_sizes(
        self,
        num_heads: int,
        query_size: int,
        output_size: int | None,
        qk_size: int | None,
        vo_size: int | None,
    ) -> None:
        """Sets the sizes; `ValueError` unless they are positive integers.

        Default of `output_size`: `query_size`. Default of `qk_size` and `vo_size`, which are those
        of one head: `query_size // num_heads`.
        """
        self.num_heads = as_integer("num_heads", num_heads, 1)
        self.query_size = as_integer("query_size", query_size, 1)
        self.output_size = size_or("output_size", output_size, self.query_size)
        for name, size in (("qk_size", qk_size), ("vo_size", vo_size)):
            if size is None and self.query_size < self.num_heads:
                raise ValueError(
                    f"{name} is query_size // num_heads unless given, and that must be at least 1; "
                    f"got query_size {query_size} and num_heads {num_heads}."
                )
        share = self.query_size // self.num_heads
        self.qk_size = size_or("qk_size", qk_size, share)
        self.vo_size = size_or("vo_size", vo_size, share)
