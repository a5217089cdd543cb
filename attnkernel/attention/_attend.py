"""`attend`: the entry point. Attention and Nadaraya–Watson regression are this call.

Beside it are the weights themselves, and the softmax state, which is merged over sets of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .._core.arrays import require_finite
from .._core.hints import explained
from .._core.tracing import is_symbolic, stop_gradients, vary_alike
from .._core.validation import as_integer, require_bool, require_instance
from ..kernels import Kernel
from ..methods import (
    Blockwise,
    Dense,
    Method,
    SoftmaxState,
    Votes,
    dense_weights,
    votes_of_member,
    votes_on_a_line,
)
from ..priors import Prior
from ..rules import Rule, Softmax
from ._auto import Auto, check_arguments, method_on_a_line, task_of
from ._jit import jit_if_pure
from ._per_head import KernelPriorRule, PerHead, first_head, has_heads, map_batch


@explained
def attend(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    kernel: Kernel | PerHead,
    prior: Prior | PerHead | None = None,
    rule: Rule | PerHead = Softmax(),
    method: Method = Auto(),
    return_log_mass: bool = False,
) -> Any:
    r"""Kernel regression; equivalently, attention.

    $$ \mathrm{attend}(q)_i = \frac{\sum_j w_{ij}\, v_j}{\sum_j w_{ij}}, \qquad
       \log w_{ij} = \tfrac1\tau \log K(q_i, k_j) + \log \pi(i, j) $$

    Query = test point, key = input, value = label. With the Gaussian kernel and no prior this is
    the estimator of Nadaraya (1964) and Watson (1964).

    **Arguments:**

    - `q`: queries, shape (*batch, queries, dim).
    - `k`: keys, shape (*batch, keys, dim); of another dimension than queries for kernels that
      compare them, such as `Projected`.
    - `v`: values, shape (*batch, keys, dim_v). Leading batch axes broadcast as in NumPy.
    - `kernel`: log K(q, k), for example `Gaussian(0.3)`.
    - `prior`: log π(i, j), for example `ExcludeSelf()`; None: all keys have equal prior weight.
    - `rule`: scores to weights. Default: softmax at temperature 1. For other rules see their
      docstrings. Kernel, prior and rule may each be `PerHead`: others for each head.
    - `method`: how the sum is evaluated. Default: `Auto()`, see `select_method`.
    - `return_log_mass`: also return log Σ_j w_ij; for `Entmax` the threshold λ is returned.

    **Returns:** shape (*batch, queries, dim_v) in the dtype of q; where a query sees no key, 0.
    With `return_log_mass`, also shape (*batch, queries); where a query sees no key, -inf. Sums
    are never formed below float32; scores above its largest number count as that number, so that
    such keys weigh alike. With `v = jnp.eye(keys)` the result is the weights themselves.

    **Raises:** `ValueError` if the shapes do not fit together, `method` refuses, or (where values
    are known, outside `jit`) a number is not finite. Inside `jit`, a query that is not finite is
    NaN in its own row alone.

    Batch and sequence axes may be symbolic (`jax.export`) for `Auto`, `Dense`, `Blockwise` and
    `Linear`.

    ```python
    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    fitted = ak.attend(x, x, jnp.sin(x), kernel=ak.Gaussian(0.3))
    left_out = ak.attend(x, x, x, kernel=ak.Gaussian(0.3), prior=ak.priors.ExcludeSelf())
    ```
    """
    require_bool("return_log_mass", return_log_mass)
    dtype, parts, arrays = _check_call(q, k, v, kernel, prior, rule, method)
    value, log_mass = jit_if_pure(_attend_over_batch, parts, *arrays)
    if return_log_mass:
        return value.astype(dtype), log_mass.astype(dtype)
    return value.astype(dtype)


def _check_call(
    q: Any, k: Any, v: Any, kernel: Any, prior: Any, rule: Any, method: Any
) -> tuple[Any, tuple[Method, int | None, KernelPriorRule], list[Array]]:
    """Returns the dtype of q, the parts of a call, and its arrays in the dtype of the sum.

    The parts are the resolved method, its batch size, and (kernel, prior, rule).

    **Raises:** `ValueError` if an argument does not fit, or the method refuses.
    """
    require_instance("method", method, Method, "ak.attention.Auto() or ak.methods.Blockwise()")
    arrays, task = check_arguments(q, k, v, kernel, prior, rule)
    for name, array in zip("qkv", arrays, strict=True):
        require_finite(name, array)
    if (reason := method.unsupported_reason(task)) is not None:
        raise ValueError(f"{type(method).__name__} cannot evaluate this: {reason}")
    dtype, method = arrays[0].dtype, method.resolve(task)
    parts, *arrays = vary_alike(_cast_floating_arrays(((kernel, prior, rule), *arrays), task.dtype))
    return dtype, (method, method.batch_size(task), parts), arrays


def attention_weights(
    q: ArrayLike,
    k: ArrayLike,
    *,
    kernel: Kernel | PerHead,
    prior: Prior | PerHead | None = None,
    rule: Rule | PerHead = Softmax(),
) -> Float[Array, "*batch queries keys"]:
    r"""The weights themselves, $a_{ij} = w_{ij} / \sum_l w_{il}$; 0 where a query sees no key.

    With a sink they sum to less than 1. They take O(queries x keys) memory: to look at, or where a
    model is to change them. Arguments as for `attend`.

    ```python
    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    weights = ak.attention_weights(x, x, kernel=ak.Gaussian(0.3))
    assert jnp.allclose(weights.sum(axis=1), 1.0)
    ```
    """
    dtype, (_, _, parts), (*points, _) = _check_call(q, k, k, kernel, prior, rule, Dense())
    return jit_if_pure(_weights_over_batch, (parts,), *points).astype(dtype)


@explained
def votes(
    q: ArrayLike,
    k: ArrayLike,
    *,
    kernel: Kernel | PerHead,
    prior: Prior | PerHead | None = None,
    rule: Rule | PerHead = Softmax(),
    k_largest: int = 10,
) -> Votes:
    r"""The k largest weights of each query with their keys, and how many keys share its weight.

    $$ a_{ij} = \frac{w_{ij}}{\varepsilon + \sum_l w_{il}}, \qquad
       b_{ij} = \frac{w_{ij}}{\sum_l w_{il}}, \qquad
       n_i = \frac{1}{\sum_j b_{ij}^2}, \qquad H_i = -\sum_j b_{ij} \log b_{ij} $$

    A prediction $\sum_j a_{ij} v_j$ is a vote of labels, or of tokens. The weights are those of
    `attention_weights`, whose matrix is not stored: blocks of queries meet all keys that they may
    see; where `Auto` sums on a line by `Sorted` or `Fourier`, so does this. All numbers are
    differentiable; $n_i$ and $H_i$ serve as penalties. The mass ε of a sink is part of $a_{ij}$
    alone.

    **Arguments:** as for `attend`, and

    - `k_largest`: k, at least 1. Of fewer keys all are named.

    **Returns:** an `ak.methods.Votes`, with the axes (*batch, queries) and dtype of `attend`.
    Inside `jit`, its numbers but `indices` are NaN for a query that is not finite.

    **Raises:** `ValueError` as `attend`; if k is no positive whole number; and for symbolic
    numbers of rows.

    ```python
    x = jnp.linspace(0.0, 1.0, 101)[:, None]
    found = ak.votes(x[:3], x, kernel=ak.Gaussian(0.02), k_largest=4)
    assert found.indices[0].tolist() == [0, 1, 2, 3]
    assert found.effective_number[0] < 6
    ```
    """
    count = as_integer("k_largest", k_largest, 1)
    dtype, (_, _, parts), (*points, _) = _check_call(q, k, k, kernel, prior, rule, Dense())
    if is_symbolic(*(size for array in points for size in array.shape[-2:])):
        raise ValueError("The numbers of rows of q and k must be known; got symbolic ones.")
    count = min(count, points[1].shape[-2])
    found = jit_if_pure(_votes_over_batch, (count, parts), *points)
    return _cast_floating_arrays(found, dtype)


def softmax_state(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    kernel: Kernel | PerHead,
    prior: Prior | PerHead | None = None,
    rule: Rule | PerHead = Softmax(),
    method: Method = Auto(),
    exact_maximum: bool = False,
) -> SoftmaxState:
    r"""The row maximum and the unnormalised sums of attention, without the sink of the rule.

    $$ m_i = \max_j \log w_{ij}, \qquad Z_i = \sum_j e^{-m_i} w_{ij}, \qquad
       T_i = \sum_j e^{-m_i} w_{ij}\, v_j $$

    States of disjoint sets of keys merge into that of their union: `first.merge(second)`. Then
    `.value` is T / Z, the result of `attend`, and `.log_mass` is m + log Z, the log-sum-exp. A sink
    is added once, at the end: `.with_sink(rule.log_sink())`. Positions count the rows of the call;
    `ak.priors.AtPositions` puts a prior at those of the whole sequence.

    **Arguments:** as for `attend`, and

    - `exact_maximum`: whether m is the maximum itself, which takes another pass of `Blockwise`.
      Default: no; m is then the maximum for `Dense`, and for other methods log Z or a number near
      it. Products such as $e^{m} Z$ do not depend on it.

    **Returns:** an `ak.methods.SoftmaxState`, in at least float32: `maximum` and `mass` of shape
    (*batch, queries), `total` (*batch, queries, dim_v). Derivatives of T / Z and of m + log Z do
    not depend on how m itself moves; those of one field alone mean nothing.

    **Raises:** `ValueError` as `attend`; for an `Entmax`, whose weights depend on all keys at once;
    and for `exact_maximum` of another method than `Dense` and `Blockwise`.

    **Source:** Milakov and Gimelshein, *Online normalizer calculation for softmax* (2018).

    ```python
    x = jnp.linspace(0.0, 1.0, 6)[:, None]
    first, second = (
        ak.attention.softmax_state(x, x[part], x[part], kernel=ak.DotProduct())
        for part in (slice(0, 2), slice(2, 6))
    )
    whole = ak.attend(x, x, x, kernel=ak.DotProduct())
    assert jnp.allclose(first.merge(second).value, whole, atol=1e-6)
    ```
    """
    require_bool("exact_maximum", exact_maximum)
    _, (method, batch_size, parts), arrays = _check_call(q, k, v, kernel, prior, rule, method)
    one = first_head(rule)
    if one.entmax_exponent is not None:
        raise ValueError(
            f"rule must weigh each key by itself, such as ak.Softmax(): the weights of "
            f"{type(one).__name__} depend on all keys of a query at once."
        )
    if exact_maximum and not isinstance(method, Dense | Blockwise):
        raise ValueError(
            f"exact_maximum=True needs method=ak.methods.Dense() or ak.methods.Blockwise(); got "
            f"{type(method).__name__}."
        )
    parts = (False, exact_maximum, method, batch_size, parts)
    return jit_if_pure(_states_over_batch, parts, *arrays)


def _attend_over_batch(
    *call: Any,
) -> tuple[Float[Array, "*_batch queries dim_v"], Float[Array, "*_batch queries"]]:
    r"""Returns $\sum_j w_{ij} v_j / \sum_j w_{ij}$ and the log-mass $\log \sum_j w_{ij}$, along all
    batch axes. Both are NaN for a query that is not finite. Sums include the mass of a sink. For an
    `Entmax` the second is its threshold λ.

    `call`: the arguments of `_states_over_batch` from `method` on.
    """
    state = _states_over_batch(True, False, *call)
    return state.value, state.log_mass


def _states_over_batch(
    with_sink: bool,
    exact_maximum: bool,
    method: Method,
    batch_size: int | None,
    parts: KernelPriorRule,
    q: Float[Array, "*#batch queries dim_q"],
    k: Float[Array, "*#batch keys dim_k"],
    v: Float[Array, "*#batch keys dim_v"],
) -> SoftmaxState:
    """Returns the `SoftmaxState`, m, Z and T, along all batch axes. `batch_size` elements of the
    batch are evaluated at a time (None: all at once). All are NaN for a query that is not finite.

    `with_sink`: whether the sums hold the sink of the rule. `exact_maximum`: whether m is the
    maximum itself, also of `Blockwise`.
    """

    def state(
        q: Array, k: Array, v: Array, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        rule = rule if with_sink else rule.without_sink()
        found = method.softmax_state(q, k, v, kernel, prior, rule)
        if exact_maximum and isinstance(method, Blockwise):
            constant = stop_gradients((q, k, kernel, prior, rule))
            found = found.relative_to(method.row_maximum(*constant))
        return found

    if 0 in (q.shape[-2], k.shape[-2]):  # methods are asked for at least one pair
        method = Dense()
    kernel, prior, rule = parts
    if prior is not None and not has_heads(prior):
        # what all members of the batch share of the prior is computed once
        task = task_of(q, k, v, *map(first_head, parts))
        parts = kernel, method.precomputed_prior(prior, task), rule
    return _map_members(state, batch_size, parts, q, k, v)


def _weights_over_batch(*call: Any) -> Float[Array, "*_batch queries keys"]:
    r"""Returns the weights $w_{ij} / \sum_l w_{il}$ along all batch axes; the sum includes the mass
    of a sink. `call`: the parts, q and k."""
    return _map_members(dense_weights, None, *call)


def _votes_over_batch(
    count: int,
    parts: KernelPriorRule,
    q: Float[Array, "*#batch queries dim_q"],
    k: Float[Array, "*#batch keys dim_k"],
) -> Votes:
    """Returns the `Votes` along all batch axes. `count`: how many of the largest weights to name.

    Their floating fields are NaN for a query that is not finite.
    """

    def votes(q: Array, k: Array, kernel: Kernel, prior: Prior | None, rule: Rule) -> Votes:
        method = method_on_a_line(task_of(q, k, k[:, :0], kernel, prior, rule))
        if method is None:
            return votes_of_member(q, k, kernel, prior, rule, count)
        return votes_on_a_line(q, k, kernel, prior, rule, count, method)

    return _map_members(votes, 1, parts, q, k)


def _map_members(
    function: Callable[..., Any], batch_size: int | None, parts: KernelPriorRule, *arrays: Array
) -> Any:
    """Maps `function(*arrays, kernel, prior, rule)` over all batch axes, `batch_size` members at a
    time (None: all at once). The kernel, q and k of each member are first precomputed.

    Results have a row for each query: NaN in floating results for a query that is not finite.
    """

    def of_member(parts: KernelPriorRule, q: Array, k: Array, *others: Array) -> Any:
        kernel, prior, rule = parts
        kernel, q, k = kernel.precomputed(q, k)
        q, valid = zero_nonfinite_queries(q)

        def mark(leaf: Array) -> Array:
            if jnp.issubdtype(leaf.dtype, jnp.integer):
                return leaf
            return jnp.where(jnp.expand_dims(valid, tuple(range(1, leaf.ndim))), leaf, jnp.nan)

        return jax.tree.map(mark, function(q, k, *others, kernel, prior, rule))

    return map_batch(of_member, batch_size, parts, *arrays)


def zero_nonfinite_queries(
    q: Float[Array, "queries dim"],
) -> tuple[Float[Array, "queries dim"], Bool[Array, " queries"]]:
    """Returns q with each row that is not finite set to 0, and which rows are finite.

    A query that is not finite would void the bounds of its block, and with them other queries.
    """
    valid = jnp.all(jnp.isfinite(q), axis=1)
    return jnp.where(valid[:, None], q, 0.0), valid


def _cast_floating_arrays(tree: Any, dtype: Any) -> Any:
    """Casts the real floating arrays of a tree to `dtype`; returns the other leaves unchanged."""

    def cast(leaf: Any) -> Any:
        floating = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, dtype) if floating else leaf

    return jax.tree.map(cast, tree)
