"""Layers from rows to rows, each with short convolutions of its queries, keys and values."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

import attnkernel as ak

CONV_WIDTH = 2  # rows of a short convolution: the row itself and the one before
WINDOW = 16  # rows of a window
RIDGE = 1e-2  # of order 1, whose weights sum to 1


class Attention(eqx.Module):
    """Causal attention of one head: softmax, a window, or local lines."""

    attention: ak.MultiheadAttention
    convolutions: list[ak.nn.ShortConvolution]

    def __init__(self, size: int, qk_size: int, *, prior: ak.priors.Prior, order: int, key: Array):
        of_attention, of_convolutions = jax.random.split(key)
        self.attention = ak.MultiheadAttention(
            1,
            size,
            qk_size=qk_size,
            prior=prior,
            order=order,
            ridge=RIDGE if order else 0.0,
            method=ak.methods.Dense(),
            key=of_attention,
        )
        keys = jax.random.split(of_convolutions, 3)
        self.convolutions = [
            ak.nn.ShortConvolution(columns, CONV_WIDTH, silu=False, key=one)
            for columns, one in zip((qk_size, qk_size, size), keys, strict=True)
        ]

    def __call__(self, x: Float[Array, "rows size"]) -> Float[Array, "rows size"]:
        def convolve(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
            """Convolves queries, keys and values of shape (rows, 1, size)."""
            pairs = zip(self.convolutions, (q, k, v), strict=True)
            q, k, v = (convolution(part[:, 0])[:, None] for convolution, part in pairs)
            return q, k, v

        return self.attention(x, x, x, process_heads=convolve)


def _attention(prior: ak.priors.Prior, order: int) -> Callable[..., Any]:
    return lambda size, qk_size, key: Attention(size, qk_size, prior=prior, order=order, key=key)


def _recurrent(
    make_estimator: Callable[[], ak.recurrent.Estimator], has_rate: bool, has_decay: bool
) -> Callable[..., Any]:
    """A layer of one head, whose queries and keys have length 1.

    The estimator is made with the layer: an import makes no array.
    """
    options = {
        "max_rate": 1.0 if has_rate else None,
        "decay": "row" if has_decay else None,
        "qk_norm": True,
        "output_norm": False,
        "conv_width": CONV_WIDTH,
        "conv_silu": False,
    }

    def layer(size: int, qk_size: int, key: Array) -> ak.nn.RecurrentAttention:
        sizes = {"qk_size": qk_size, "vo_size": size, "estimator": make_estimator()}
        return ak.nn.RecurrentAttention(1, size, **sizes, **options, key=key)

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
