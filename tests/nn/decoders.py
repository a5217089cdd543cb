"""Layers, caches, and the full pass that equals decoding with each cache."""

import functools

import equinox as eqx
import jax
import numpy as np
from attention_modules import built

import attnkernel as ak
from attnkernel import recurrent

SIZE = 4
ROTARY = {"rotary": ak.Rotary(base=50.0)}


def slopes(heads):
    return ak.PerHead(eqx.filter_vmap(ak.Alibi)(ak.priors.alibi_slopes(heads)))


DELTA = {"decay": "row", "max_rate": 1.5, "qk_norm": True, "output_gate": True, "conv_width": 3}


def with_memory(heads, size, *, key):
    attention = ak.MultiheadAttention(heads, size, **ROTARY, key=key)
    arrays = jax.random.normal(key, (2, 3, heads, size // heads))
    return ak.nn.PersistentMemory(attention, *arrays)


def bias_reduced(heads, size, *, key, **options):
    attention = ak.MultiheadAttention(heads, size, **options, key=key)
    return ak.nn.BiasReducedAttention(attention, iterations=3)


LAYERS = {
    "plain": (ak.MultiheadAttention, (4, SIZE), {}),
    "multi-head": (
        ak.MultiheadAttention,
        (4, SIZE),
        {"num_kv_heads": 2, "qk_size": 2, "qk_norm": True, **ROTARY},
    ),
    "alibi": (ak.MultiheadAttention, (4, SIZE), {"prior": slopes(4)}),
    "gaussian, window": (
        ak.MultiheadAttention,
        (4, SIZE),
        {"kernel": ak.Gaussian(0.8), "prior": ak.Window(2, 0)},
    ),
    "entmax, capped": (
        ak.MultiheadAttention,
        (4, SIZE),
        {"rule": ak.Entmax(1.5), "kernel": ak.kernels.SoftCapped(ak.DotProduct(), 3.0)},
    ),
    "memory": (with_memory, (2, SIZE), {}),
    "bias reduced": (bias_reduced, (2, SIZE), {"num_kv_heads": 1, **ROTARY}),
    "latent": (ak.nn.LatentAttention, (2, SIZE, 3, 5), {"rotary_size": 2, "prior": slopes(2)}),
    "linear": (
        ak.MultiheadAttention,
        (2, SIZE),
        {"kernel": ak.kernels.EluFeatures(), "method": ak.methods.Linear(), **ROTARY},
    ),
    "gated delta rule": (
        ak.nn.RecurrentAttention,
        (2, SIZE, 3),
        {"estimator": recurrent.DeltaRule(), "use_output_bias": True, **DELTA},
    ),
    "retention": (
        ak.nn.RecurrentAttention,
        (2, SIZE),
        {
            "estimator": recurrent.LinearAttention(normalised=True),
            "decay": "head",
            "kernel": ak.kernels.EluFeatures(),
        },
    ),
    "mesa": (
        ak.nn.RecurrentAttention,
        (2, SIZE),
        {"estimator": recurrent.RecursiveLeastSquares(0.5), "max_rate": 1.0, "decay": "row"},
    ),
}
CACHES = {
    "full": {"capacity": 22},
    "ring": {"capacity": 4, "ring": True},
    "sinks": {"capacity": 7, "ring": True, "sinks": 2, "spare": 1},
    "spare": {"capacity": 11, "ring": True, "sinks": 1, "spare": 5},
}


@functools.cache
def layer_of(name):
    """The layer of a name, in float64."""
    kind, sizes, options = LAYERS[name]
    with jax.enable_x64(True):
        return built(kind, *sizes, **options)


def empty(layer, cache):
    if cache is not None:
        return layer.cache(**CACHES[cache])
    return layer.cache() if isinstance(layer, ak.nn.RecurrentAttention) else layer.recurrent_cache()


def seen(cache):
    """The prior of the full pass that equals decoding with a cache."""
    if cache in (None, "full"):
        return ak.Causal()
    options = CACHES[cache]
    sinks, spare = options.get("sinks", 0), options.get("spare", 0)
    first = ak.Causal() & ak.priors.Lengths(keys=sinks)
    return ak.Window(options["capacity"] - sinks - spare - 1, 0) | first


def full_pass(layer, x, prior):
    if isinstance(layer, ak.nn.RecurrentAttention):
        return layer(x)
    takes_three = isinstance(layer, ak.MultiheadAttention | ak.nn.PersistentMemory)
    arrays = (x, x, x) if takes_three else (x,)
    return layer(*arrays, prior=prior)


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
