"""The cache of linear attention: sums of fixed size, to which each row is added once."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._core.arrays import as_float_dtype, wider_dtype
from .._core.validation import as_integer
from ..attention import PerHead
from ..attention._arguments import task_of
from ..kernels import Kernel
from ..methods import Linear, LinearState, Method, advance
from ..priors import Causal, Prior
from ..priors._base import key_mask_of
from ..rules import Rule
from ._heads import OfHeads


class RecurrentCache(eqx.Module):
    """The state of linear attention: one sum for each feature of each head, at any length.

    **Arguments:**

    - `heads`: the number of query heads; `features`: of features; `vo_size`: the size of values.
    - `dtype`: of the sums, and no less than float32: in bfloat16 a sum of equal numbers stops
      growing after a few hundred of them. Default: the default floating type.

    ```python
    >>> cache = ak.RecurrentCache(heads=2, features=4, vo_size=3)
    >>> cache.state.sums.shape
    (2, 4, 4)

    ```
    """

    state: LinearState
    length: Int[Array, ""]

    def __init__(self, heads: int, features: int, vo_size: int, *, dtype=None):
        heads = as_integer("heads", heads, 1)
        features = as_integer("features", features, 1)
        vo_size = as_integer("vo_size", vo_size, 1)
        dtype = wider_dtype(as_float_dtype("dtype", dtype))
        empty = LinearState.empty(features, vo_size, dtype)
        self.state = jax.tree.map(lambda leaf: jnp.stack([leaf] * heads), empty)
        self.length = jnp.array(0)

    def next_positions(self, rows: int) -> Int[Array, " rows"]:
        """The positions of the next rows."""
        return self.length + jnp.arange(rows)

    def append(
        self, q: OfHeads, k: OfHeads, v: OfHeads, method: Method, kernel: Any, rule: Any
    ) -> tuple[OfHeads, "RecurrentCache"]:
        """Returns the values of new rows, from themselves and all before, and the new cache."""
        assert isinstance(method, Linear)
        assert isinstance(kernel, Kernel)
        assert isinstance(rule, Rule)

        stored = self.state.sums.dtype
        dtype = wider_dtype(jnp.result_type(q, k, v), stored)

        def in_dtype(tree: Any, dtype: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)

        def head(state: LinearState, q: Array, k: Array, v: Array) -> tuple[Array, LinearState]:
            values = jnp.concatenate([v, jnp.ones_like(v[:, :1])], axis=1)
            of_both = method.both(q, k, kernel, rule)
            # parts of the kernel may be wider than its points
            softmax, state = advance(*in_dtype((state, *of_both, values), dtype))
            return softmax.with_sink(rule.log_sink()).value, state

        group = q.shape[1] // k.shape[1]
        heads = in_dtype((q, jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)), dtype)
        out, state = jax.vmap(head)(self.state, *(part.swapaxes(0, 1) for part in heads))
        where = lambda cache: (cache.state, cache.length)  # noqa: E731
        cache = eqx.tree_at(where, self, (in_dtype(state, stored), self.length + q.shape[0]))
        return out.swapaxes(0, 1).astype(q.dtype), cache


def features_of(
    method: Method,
    kernel: Kernel | PerHead,
    prior: Prior | PerHead | None,
    rule: Rule | PerHead,
    qk_size: int,
) -> int:
    """Returns the number of features of linear attention.

    **Raises:** `ValueError` if the method is another, there is a prior, or heads differ.
    """
    prior = prior or Causal()
    heads_differ = any(isinstance(part, PerHead) for part in (kernel, prior, rule))
    if not isinstance(method, Linear) or heads_differ:
        raise ValueError(
            "A recurrent cache needs linear attention with the same parts for all heads: make the "
            "module with method=ak.Linear(...), or use cache(capacity)."
        )
    assert isinstance(kernel, Kernel)
    assert isinstance(prior, Prior)
    assert isinstance(rule, Rule)
    one = jax.ShapeDtypeStruct((1, qk_size), jnp.result_type(float))
    if (
        reason := method.unsupported_reason(task_of(one, one, one, kernel, prior, rule))
    ) is not None:
        raise ValueError(f"Linear cannot evaluate this: {reason}")
    mask = key_mask_of(prior)
    if not mask.is_causal or mask.allowed is not None:
        raise ValueError(f"A recurrent cache takes no prior but ak.Causal(); got {prior!r}.")
    return eqx.filter_eval_shape(method.both, one, one, kernel, rule)[1].log.shape[1]
