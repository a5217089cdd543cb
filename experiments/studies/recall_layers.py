"""Layers from rows to rows, each with short convolutions of its queries, keys and values."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import attnkernel as ak

WIDTH = 2  # rows of a short convolution: the row itself and the one before
WINDOW = 16  # rows of a window
RIDGE = 1e-2  # of order 1, whose weights sum to 1


class ShortConvolution(eqx.Module):
    """A causal convolution of each channel with weights of its own."""

    weights: Float[Array, "width channels"]

    def __init__(self, channels: int, *, key: Array):
        bound = WIDTH**-0.5
        self.weights = jax.random.uniform(key, (WIDTH, channels), minval=-bound, maxval=bound)

    def __call__(self, x: Float[Array, "rows channels"]) -> Float[Array, "rows channels"]:
        padded = jnp.pad(x, ((WIDTH - 1, 0), (0, 0)))
        rows = x.shape[0]
        return sum(
            (padded[i : i + rows] * self.weights[None, WIDTH - 1 - i] for i in range(WIDTH)),
            jnp.zeros_like(x),
        )


class Convolutions(eqx.Module):
    """The short convolutions of the heads of queries, keys and values."""

    query: ShortConvolution
    key: ShortConvolution
    value: ShortConvolution

    def __init__(self, qk_size: int, vo_size: int, *, key: Array):
        keys = jax.random.split(key, 3)
        self.query, self.key, self.value = (
            ShortConvolution(size, key=one)
            for size, one in zip((qk_size, qk_size, vo_size), keys, strict=True)
        )

    def __call__(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Arrays of shape (rows, 1, size), of one head."""
        parts = zip((self.query, self.key, self.value), (q, k, v), strict=True)
        q, k, v = (convolve(part[:, 0])[:, None] for convolve, part in parts)
        return q, k, v


class Attention(eqx.Module):
    """Causal attention of one head: softmax, a window, or local lines."""

    attention: ak.MultiheadAttention
    convolutions: Convolutions

    def __init__(self, size: int, qk_size: int, *, prior: ak.Prior, order: int, key: Array):
        of_attention, of_convolutions = jax.random.split(key)
        self.attention = ak.MultiheadAttention(
            1,
            size,
            qk_size=qk_size,
            prior=prior,
            order=order,
            ridge=RIDGE if order else 0.0,
            method=ak.Dense(),
            key=of_attention,
        )
        self.convolutions = Convolutions(qk_size, size, key=of_convolutions)

    def __call__(self, x: Float[Array, "rows size"]) -> Float[Array, "rows size"]:
        return self.attention(x, x, x, process_heads=self.convolutions)


class Recurrent(eqx.Module):
    """A recurrent estimator of one head, whose queries and keys have length 1.

    The rate β and the decay α of a row are sigmoids of its projections.
    """

    query_proj: eqx.nn.Linear
    key_proj: eqx.nn.Linear
    value_proj: eqx.nn.Linear
    output_proj: eqx.nn.Linear
    rate_proj: eqx.nn.Linear | None
    decay_proj: eqx.nn.Linear | None
    convolutions: Convolutions
    estimator: ak.recurrent.Estimator

    def __init__(
        self,
        size: int,
        qk_size: int,
        *,
        estimator: ak.recurrent.Estimator,
        has_rate: bool,
        has_decay: bool,
        key: Array,
    ):
        keys = jax.random.split(key, 7)
        self.query_proj, self.key_proj, self.value_proj, self.output_proj = (
            eqx.nn.Linear(size, out, use_bias=False, key=one)
            for out, one in zip((qk_size, qk_size, size, size), keys[:4], strict=True)
        )
        self.rate_proj = eqx.nn.Linear(size, 1, key=keys[4]) if has_rate else None
        self.decay_proj = None
        if has_decay:  # from the start, nearly all is kept
            decay = eqx.nn.Linear(size, 1, key=keys[5])
            self.decay_proj = eqx.tree_at(lambda linear: linear.bias, decay, jnp.full(1, 4.0))
        self.convolutions = Convolutions(qk_size, size, key=keys[6])
        self.estimator = estimator

    def __call__(self, x: Float[Array, "rows size"]) -> Float[Array, "rows size"]:
        linears = (self.query_proj, self.key_proj, self.value_proj)
        q, k, v = self.convolutions(*(jax.vmap(linear)(x)[:, None] for linear in linears))
        q, k = (part / jnp.sqrt(1e-6 + jnp.sum(part**2, -1, keepdims=True)) for part in (q, k))
        rate, log_decay = None, None
        if self.rate_proj is not None:
            rate = jax.nn.sigmoid(jax.vmap(self.rate_proj)(x))[:, 0]
        if self.decay_proj is not None:
            log_decay = jax.nn.log_sigmoid(jax.vmap(self.decay_proj)(x))
        out, _ = ak.recurrent.regress(
            q[:, 0], k[:, 0], v[:, 0], estimator=self.estimator, rate=rate, log_decay=log_decay
        )
        return jax.vmap(self.output_proj)(out)


def _attention(prior: ak.Prior, order: int) -> Callable[..., Any]:
    return lambda size, qk_size, key: Attention(size, qk_size, prior=prior, order=order, key=key)


def _recurrent(
    make: Callable[[], ak.recurrent.Estimator], has_rate: bool, has_decay: bool
) -> Callable[..., Any]:
    def layer(size: int, qk_size: int, key: Array) -> Recurrent:
        gates = {"has_rate": has_rate, "has_decay": has_decay}
        return Recurrent(size, qk_size, estimator=make(), **gates, key=key)

    return layer


LAYERS: dict[str, Callable[..., Any]] = {
    "softmax": _attention(ak.Causal(), 0),
    "window": _attention(ak.Window(WINDOW - 1, 0), 0),
    "order 1": _attention(ak.Causal(), 1),
    "linear": _recurrent(ak.recurrent.LinearAttention, False, False),
    "decay": _recurrent(ak.recurrent.LinearAttention, False, True),
    "delta": _recurrent(ak.recurrent.DeltaRule, True, False),
    "gated delta": _recurrent(ak.recurrent.DeltaRule, True, True),
    "Mesa": _recurrent(lambda: ak.recurrent.RecursiveLeastSquares(1.0), True, True),
}
