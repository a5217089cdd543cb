r"""Softmaxes of products in half precision, by cuDNN on GPUs and by splash attention on TPUs.

A Gaussian is one: with points u in lengthscales from a common centre,

$$ -\tfrac12 \|u_q - u_k\|^2 = -\tfrac12 \|u_q\|^2 + (u_q, 1) \cdot (u_k, -\tfrac12 \|u_k\|^2) $$

The first term depends on the query alone, and is added to the log-mass. The bias of a key, its last
term or the log of 0 for a hidden key, is held as a sum of three half-precision numbers, which keeps
its digits.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..kernels import Gaussian
from ..kernels._features import in_units
from ..priors._base import key_mask_of

HALF_DTYPES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
MAX_HEAD_COLUMNS = 128  # those that cuDNN takes on every GPU
BIAS_COLUMNS = 3  # half-precision numbers whose sum is one of single precision
BIAS_UNIT = 128.0  # biases are stored in this unit: float16 ends at 65504

Sums = tuple[Float[Array, " queries"], Float[Array, "queries width"]]


class _Features(NamedTuple):
    """Points whose products are the scores, less the term of each query."""

    q: Float[Array, "queries head"]
    k: Float[Array, "keys head"]
    v: Float[Array, "keys head"]
    query_term: Float[Array, " queries"]
    hidden_bias: float


def centre_of(points: Float[Array, "points dim"]) -> Float[Array, "1 dim"]:
    """The mean of the points, as a constant."""
    return jax.lax.stop_gradient(jnp.mean(points, axis=0, keepdims=True))


def _padded_features(
    q: Array, k: Array, v: Array, parts: Any, dtype: Any, multiple: int
) -> _Features:
    """Returns queries and keys whose inner products are the scores, and the values, in `dtype`.

    A term of the score that depends on the query alone is returned separately. `parts`: the
    kernel, prior and rule. `multiple`: divides all padded sizes. Keys of padding are hidden.
    """
    kernel, prior, rule = parts
    if isinstance(kernel, Gaussian):
        centre = centre_of(k)
        q, k = in_units(kernel, q - centre, k - centre, rule.temperature)
        query_term, bias = (-0.5 * jnp.sum(points**2, axis=1) for points in (q, k))
    else:
        q, k = in_units(kernel, q, k, rule.temperature)
        query_term, bias = jnp.zeros(len(q), q.dtype), jnp.zeros(len(k), k.dtype)
    allowed = key_mask_of(prior).allowed
    allowed = jnp.ones(len(k), bool) if allowed is None else allowed
    allowed, bias = (jnp.pad(x, (0, -len(k) % multiple)) for x in (allowed, bias))
    # so low that its weight is 0, and so high that differences of two do not overflow
    hidden = -(2.0**15) if dtype == jnp.float16 else -(2.0**34)
    bias = jnp.maximum(bias / BIAS_UNIT, hidden)
    bias_columns = []
    for i in range(BIAS_COLUMNS):
        rounded = bias.astype(dtype).astype(bias.dtype)
        bias = bias - rounded
        bias_columns.append(jnp.where(allowed, rounded, 0.0 if i else hidden)[:, None])
    head = -(-max(q.shape[1] + BIAS_COLUMNS, v.shape[1]) // multiple) * multiple

    def padded(rows: Array, *more: Array) -> Array:
        rows = jnp.pad(rows, ((0, -len(rows) % multiple), (0, 0)))
        rows = jnp.concatenate([rows, *more], axis=1)
        return jnp.pad(rows, ((0, 0), (0, head - rows.shape[1]))).astype(dtype)

    units = jnp.full((len(q) + -len(q) % multiple, BIAS_COLUMNS), BIAS_UNIT, q.dtype)
    return _Features(
        padded(q, units), padded(k, *bias_columns), padded(v), query_term, hidden * BIAS_UNIT
    )


def sums_by_cudnn(q: Array, k: Array, v: Array, parts: Any, dtype: Any) -> Sums:
    """Returns L = log Z and Σ exp(s − L) (v, 1) of each query, with the gradients of cuDNN.

    `parts`: the kernel, prior and rule. `dtype`: of the products, bfloat16 or float16.
    """
    features = _padded_features(q, k, v, parts, dtype, 8)
    call = functools.partial(_attend_by_cudnn, causal=key_mask_of(parts[1]).is_causal)
    out, log_mass = call(features.q, features.k, features.v)
    # cuDNN has no gradient of the log-mass: it is the mean slope of the scores at constant weights
    fixed_q, fixed_k = map(jax.lax.stop_gradient, (features.q, features.k))
    mean_key, _ = call(fixed_q, fixed_k, features.k)
    slope = jnp.sum(features.q.astype(q.dtype) * mean_key.astype(q.dtype), axis=1)
    log_mass = jax.lax.stop_gradient(log_mass.astype(q.dtype))
    return _unpadded_sums(features, log_mass + slope - jax.lax.stop_gradient(slope), out, v)


def sums_by_splash(
    q: Array, k: Array, v: Array, parts: Any, dtype: Any, *, interpret: bool
) -> Sums:
    """Returns L = log Z and Σ exp(s − L) (v, 1) of each query on TPUs, without derivatives.

    `parts`: the kernel, prior and rule. `dtype`: of the products. `interpret`: whether Pallas
    interprets the kernel, which runs on any device.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import (  # noqa: PLC0415  of TPUs alone
        splash_attention_kernel as splash,
        splash_attention_mask as masks,
    )

    features = _padded_features(q, k, v, parts, dtype, 128)
    shape = len(features.q), len(features.k)
    mask = masks.CausalMask(shape) if key_mask_of(parts[1]).is_causal else masks.FullMask(shape)
    program = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask]), save_residuals=True, interpret=interpret
    )
    out, (log_mass,) = program(features.q[None], features.k[None], features.v[None])
    return _unpadded_sums(features, log_mass[0].astype(q.dtype), out[0], v)


def _unpadded_sums(features: _Features, log_mass: Array, out: Array, v: Array) -> Sums:
    """Returns L = log Z and Σ exp(s − L) (v, 1) without padding; 0 where all keys are hidden.

    `log_mass`, `out`: what the accelerator returns for the padded features: the log-sum-exp and
    the weighted mean of the values.
    """
    queries = len(features.query_term)
    some = log_mass[:queries] > 0.5 * features.hidden_bias
    total = jnp.where(some[:, None], out[:queries, : v.shape[1]].astype(v.dtype), 0.0)
    shift = jnp.where(some, log_mass[:queries] + features.query_term, 0.0)
    return shift, jnp.concatenate([total, some.astype(v.dtype)[:, None]], axis=1)


def _attend_by_cudnn(q: Array, k: Array, v: Array, *, causal: bool) -> tuple[Array, Array]:
    """Returns softmax(q kᵀ) v and the log-sum-exp of each row of q kᵀ, by cuDNN's attention."""
    # under `vmap`, batched all or none: JAX's rule for cuDNN assumes it until 0.10
    never = jnp.any(jnp.stack([jnp.isnan(x[0, 0]) for x in (q, k, v)])) & False
    q, k, v = (jnp.where(never, 0, x) for x in (q, k, v))
    out, log_mass = jax.nn.dot_product_attention(
        q[:, None, :],
        k[:, None, :],
        v[:, None, :],
        scale=1.0,
        is_causal=causal,
        implementation="cudnn",
        return_residual=True,
    )
    return out[:, 0], log_mass[:, 0]
