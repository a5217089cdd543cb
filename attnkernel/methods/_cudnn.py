r"""cuDNN's attention, in which heads of queries share keys and values without copies of them.

cuDNN takes several heads of queries for one head of keys. Under `vmap` over queries alone the batch
becomes such heads; under any other `vmap` it becomes cuDNN's batch. JAX's own rule for `vmap` wants
all arrays to have the batch axis, and would repeat the keys. The rule is that of a primitive, since
`jax.custom_batching.custom_vmap` has no gradients.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

Limits = tuple[int | None, int | None]


def attend_by_cudnn(
    q: Float[Array, "queries head"],
    k: Float[Array, "keys head"],
    v: Float[Array, "keys head"],
    limits: Limits,
) -> tuple[Float[Array, "queries head"], Float[Array, " queries"]]:
    """Returns softmax(q kᵀ) v and the log-sum-exp of each row of q kᵀ, in half precision.

    `limits`: the most keys before and after its own that a query sees; it has a left one only
    beside a right one of 0.
    """
    out, log_mass = _bind(*(x[None, :, None, :] for x in (q, k, v)), limits=limits)
    return out[0, :, 0], log_mass[0, :, 0, 0]


def _call_cudnn(
    q: Float[Array, "batch queries heads head"],
    k: Float[Array, "batch keys 1 head"],
    v: Float[Array, "batch keys 1 head"],
    *,
    limits: Limits,
) -> list[Array]:
    """Returns the values and the log-sum-exp of each query, the latter with a last axis of 1."""
    left, right = limits
    # a `vmap` of gradients is JAX's: batched all or none, as its rule for cuDNN assumes until 0.10
    never = jnp.any(jnp.stack([jnp.isnan(x[0, 0, 0, 0]) for x in (q, k, v)])) & False
    q, k, v = (jnp.where(never, 0, x) for x in (q, k, v))
    out, log_mass = jax.nn.dot_product_attention(
        q,
        k,
        v,
        scale=1.0,
        is_causal=right == 0,
        local_window_size=None if left is None else (left, 0),
        implementation="cudnn",
        return_residual=True,
    )
    return [out, log_mass[..., None]]


_attend = Primitive("attend_by_cudnn")
_attend.multiple_results = True


def _bind(*arrays: Array, limits: Limits) -> list[Array]:
    """Returns `_call_cudnn(*arrays, limits=limits)`, traced, as one equation."""
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    traced = jax.make_jaxpr(functools.partial(_call_cudnn, limits=limits))(*shapes)
    return _attend.bind(*arrays, traced=traced, limits=limits)


def _abstract(*avals: Any, traced: ClosedJaxpr, limits: Limits) -> Sequence[Any]:
    """Returns the shapes and dtypes of the results."""
    return traced.out_avals


def _evaluate(*arrays: Array, traced: ClosedJaxpr, limits: Limits) -> Sequence[Array]:
    """Returns the results of a call outside of any transformation."""
    return jax.jit(jaxpr_as_fun(traced))(*arrays)


def _lower(context: Any, *arrays: Any, traced: ClosedJaxpr, limits: Limits) -> Any:
    """Returns the compiler's operations."""
    return mlir.lower_fun(jaxpr_as_fun(traced), multiple_results=True)(context, *arrays)


def _differentiate(
    primals: Sequence[Array], tangents: Sequence[Any], *, traced: ClosedJaxpr, limits: Limits
) -> tuple[Sequence[Array], Sequence[Array]]:
    """Returns the results and their tangents, which are those of JAX's call of cuDNN."""
    moving = tuple(map(ad.instantiate_zeros, tangents))
    return jax.jvp(jaxpr_as_fun(traced), tuple(primals), moving)


def _batch(
    arrays: Sequence[Array], axes: Sequence[Any], *, traced: ClosedJaxpr, limits: Limits
) -> tuple[list[Array], list[int]]:
    """Returns the results for a batch, and its axis in each of them."""
    q, k, v = arrays
    if axes[1] is None and axes[2] is None:
        q = jnp.moveaxis(q, axes[0], 3)
        found = _bind(q.reshape(*q.shape[:2], -1, q.shape[4]), k, v, limits=limits)
        return [out.reshape(*q.shape[:4], -1) for out in found], [3, 3]
    pairs = list(zip(arrays, axes, strict=True))
    size = next(x.shape[axis] for x, axis in pairs if axis is not None)
    full = [batching.bdim_at_front(x, axis, size) for x, axis in pairs]
    found = _bind(*(x.reshape(-1, *x.shape[2:]) for x in full), limits=limits)
    return [out.reshape(size, -1, *out.shape[1:]) for out in found], [0, 0]


_attend.def_abstract_eval(_abstract)
_attend.def_impl(_evaluate)
mlir.register_lowering(_attend, _lower)
ad.primitive_jvps[_attend] = _differentiate
batching.primitive_batchers[_attend] = _batch
