"""Layers, caches, and the full pass that equals decoding with each cache."""

import functools

import equinox as eqx
import jax
import numpy as np
from attention_modules import built, rows_of

import attnkernel as ak
from attnkernel import recurrent

SIZE = 4
ROTARY = {"rotary": ak.Rotary(base=50.0)}
ELU = {"kernel": ak.kernels.EluFeatures()}
SCORE = ak.priors.ScoreFunction(lambda s, i, j, h: s * (1 + h) - 0.3 * (i - j), heads=2)
DELTA = {"decay": "row", "max_rate": 1.5, "qk_norm": True, "output_gate": True, "conv_width": 3}
attention = functools.partial(built, ak.MultiheadAttention)
regression = functools.partial(built, ak.nn.RecurrentAttention, 2, SIZE)


def slopes(heads):
    return {"prior": ak.PerHead(eqx.filter_vmap(ak.Alibi)(ak.priors.alibi_slopes(heads)))}


def with_memory():
    memory = map(jax.device_put, rows_of((3, 2, 2), (3, 2, 2)))
    return ak.nn.PersistentMemory(attention(2, SIZE, **ROTARY), *memory)


def bias_reduced():
    return ak.nn.BiasReducedAttention(attention(2, SIZE, num_kv_heads=1, **ROTARY), iterations=3)


def entmax():
    kernel = ak.kernels.SoftCapped(ak.DotProduct(), 3.0)
    return attention(4, SIZE, rule=ak.Entmax(1.5), kernel=kernel)


def random_features():
    features = eqx.filter_jit(ak.kernels.RandomFeatures)(11, 2, key=jax.random.PRNGKey(1))
    options = {"kernel": ak.Gaussian(0.9), "method": ak.methods.Linear(features)}
    return attention(2, SIZE, num_kv_heads=1, **options, **ROTARY)


def retention():
    estimator = recurrent.LinearAttention(normalised=True)
    return regression(estimator=estimator, decay="head", **ELU)


def mesa():
    return regression(estimator=recurrent.RecursiveLeastSquares(0.5), max_rate=1.0, decay="row")


LAYERS = {
    "plain": lambda: attention(4, SIZE),
    "multi-head": lambda: attention(4, SIZE, num_kv_heads=2, qk_size=2, qk_norm=True, **ROTARY),
    "alibi": lambda: attention(4, SIZE, **slopes(4)),
    "gaussian, window": lambda: attention(4, SIZE, kernel=ak.Gaussian(0.8), prior=ak.Window(2, 0)),
    "entmax, capped": entmax,
    "memory": with_memory,
    "bias reduced": bias_reduced,
    "latent": lambda: built(ak.nn.LatentAttention, 2, SIZE, 3, 5, rotary_size=2, **slopes(2)),
    "score function": lambda: attention(2, SIZE, prior=ak.PerHead(SCORE)),
    "linear": lambda: attention(2, SIZE, method=ak.methods.Linear(), **ROTARY, **ELU),
    "random features": random_features,
    "gated delta rule": lambda: regression(
        3, estimator=recurrent.DeltaRule(), use_output_bias=True, **DELTA
    ),
    "retention": retention,
    "mesa": mesa,
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
    with jax.enable_x64(True):
        return LAYERS[name]()


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
