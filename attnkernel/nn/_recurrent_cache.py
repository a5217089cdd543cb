"""The cache of recurrent layers: a state of fixed size, to which each row is added once."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from .._core.arrays import value_text
from ._cache import Cache


class RecurrentCache(Cache):
    """The state of a recurrent layer, of fixed size at any number of rows.

    It cannot go back: keep the earlier cache, and repeat the step with `count=`, the number of
    accepted rows.

    **Arguments:** `state`: a tree of arrays, as `ak.recurrent.regress` returns it. Layers
    make it by `cache()` or `recurrent_cache()`.

    **Raises:** `ValueError` if it is no such tree.

    ```python
    layer = ak.nn.RecurrentAttention(
        2, 8, estimator=ak.recurrent.LinearAttention(), key=jax.random.PRNGKey(0)
    )
    x = jax.random.normal(jax.random.PRNGKey(1), (5, 8))
    before = layer.cache()
    out, drafted = layer.step(x, before)
    _, cache = layer.step(x, before, count=3)  # three of the five drafts are accepted
    assert cache.length == 3 and cache.state.matrix.shape == (2, 4, 4)
    ```
    """

    state: Any
    length: Int[Array, ""]

    def __init__(self, state: Any):
        leaves = jax.tree.leaves(state)
        if not leaves or not all(map(eqx.is_array, leaves)):
            raise ValueError(
                f"state must be a tree of arrays, as ak.recurrent.regress returns it; got "
                f"{value_text(state)}."
            )
        self.state = state
        self.length = jnp.array(0)

    @property
    def dtype(self) -> Any:
        """The widest dtype of the state."""
        return jnp.result_type(*jax.tree.leaves(self.state))

    def keep(self, length: ArrayLike, rows: ArrayLike, count: ArrayLike | None = None) -> "Cache":
        raise ValueError(
            "A recurrent state cannot give rows back: keep the earlier cache, and repeat the step "
            "with count=, the number of accepted rows."
        )

    def _advanced(self, state: Any, rows: Int[Array, ""] | int) -> "RecurrentCache":
        """Returns the cache of another state, in the dtypes of this one, with more rows."""
        state = jax.tree.map(lambda new, old: new.astype(old.dtype), state, self.state)
        where = lambda cache: (cache.state, cache.length)  # noqa: E731
        return eqx.tree_at(where, self, (state, self.length + rows))
