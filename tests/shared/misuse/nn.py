"""Valid calls of modules for Equinox and their caches."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import attnkernel as ak
from attnkernel import recurrent

from .arguments import (
    KERNEL,
    LENGTH,
    LONGER,
    PARTS,
    ROTARY_BASE,
    SEEDED,
    SIZES,
    Arguments,
    later,
    of_class,
)
from .values import MEMORY, MULTIHEAD, POINTS, SELF, SEQUENCE, TWICING, Later, N, now

CAPACITY: Arguments = {
    "capacity": ("natural", 8),
    "ring": ("flag", True),
    "sinks": ("whole from 0", 1),
    "spare": ("whole from 0", 1),
    "dtype": ("choice?", None),
}
SIZES_OF_CACHE: Arguments = {"qk_size": ("natural", 2), "vo_size": ("natural", 2)}
COUNTED: Arguments = {
    "count": ("whole from 0?", 2),
    "positions": ("codes?", np.arange(2)),
}
STEPPED: Arguments = {
    "x": ("points", SEQUENCE),
    "cache": ("object", Later(lambda: now(MULTIHEAD).cache(8))),
    "mask": ("flags?", np.tri(4, dtype=bool)),
    "prior": ("prior?", None),
    "positions": ("codes?", np.arange(4)),
    "count": ("whole from 0?", 3),
}
STEP = Later(lambda: now(MULTIHEAD).step)
LATENT = Later(lambda: ak.nn.LatentAttention(2, 4, 3, key=SEEDED[1]))
RECURRENT = Later(
    lambda: ak.nn.RecurrentAttention(2, 4, estimator=recurrent.LinearAttention(), key=SEEDED[1])
)
CONVOLUTION = Later(lambda: ak.nn.ShortConvolution(4, 2, key=SEEDED[1]))
ONES = jnp.ones((3, 1, 1))
CACHE = Later(lambda: ak.nn.KVCache(4, 1, 1, 1).append(ONES, ONES)[1])
STATE = {"in_proj_weight": np.tile(np.eye(4), (3, 1)), "out_proj.weight": np.eye(4)}

NN: dict[str, tuple[Any, Arguments]] = {
    **of_class(
        "MultiheadAttention",
        num_heads=("natural", 2),
        query_size=("natural", 4),
        key_size=("natural?", 4),
        value_size=("natural?", 4),
        output_size=("natural?", 4),
        **SIZES,
        use_query_bias=("flag", False),
        use_key_bias=("flag", False),
        use_value_bias=("flag", False),
        use_output_bias=("flag", False),
        dropout_p=("level", 0.5),
        dtype=("choice?", None),
        inference=("flag", False),
        num_kv_heads=("natural?", 2),
        kernel=KERNEL,
        prior=("prior?", None),
        rule=PARTS["rule"],
        method=PARTS["method"],
        ridge=("not negative", 0.0),
        rotary=("rotary?", ak.Rotary()),
        qk_norm=("flag", False),
        key=SEEDED,
    ),
    "MultiheadAttention of an order": (
        ak.MultiheadAttention,
        {
            "num_heads": ("natural", 2),
            "query_size": ("natural", 4),
            "order": ("whole from 0", 1),
            "key": SEEDED,
        },
    ),
    "MultiheadAttention.__call__": (
        later(MULTIHEAD),
        {
            "query": ("points", SEQUENCE),
            "key_": ("paired", SEQUENCE),
            "value": ("paired", SEQUENCE),
            "mask": ("flags?", np.tri(4, dtype=bool)),
            "prior": ("prior?", None),
            "positions": ("codes?", np.arange(4)),
            "key_positions": ("codes?", np.arange(4)),
            "process_heads": ("function?", None),
        },
    ),
    **of_class(
        "SelfAttention",
        size=("natural", 4),
        **SIZES,
        use_bias=("flag", False),
        **PARTS,
        key=SEEDED,
    ),
    "SelfAttention.__call__": (
        later(SELF),
        {"x": ("points", SEQUENCE), "prior": ("prior?", None)},
    ),
    "MultiheadAttention.step": (later(STEP), STEPPED),
    "nn.from_torch": (
        ak.nn.from_torch,
        {
            "weights": ("object", STATE),
            "num_heads": ("natural", 2),
            "prefix": ("names", ""),
            "add_zero_attn": ("flag?", False),
        },
    ),
    "nn.PersistentMemory": (
        ak.nn.PersistentMemory,
        {
            "attention": ("object", MULTIHEAD),
            "keys": ("paired", np.ones((2, 2, 2))),
            "values": ("paired", np.ones((2, 2, 2))),
        },
    ),
    "nn.PersistentMemory.__call__": (
        later(MEMORY),
        {
            "query": ("points", SEQUENCE),
            "key_": ("paired", SEQUENCE),
            "value": ("paired", SEQUENCE),
            "mask": ("flags?", np.tri(4, dtype=bool)),
            "prior": ("prior?", None),
        },
    ),
    "nn.BiasReducedAttention": (
        ak.nn.BiasReducedAttention,
        {"attention": ("object", MULTIHEAD), "iterations": ("natural", 2)},
    ),
    "nn.BiasReducedAttention.__call__": (
        later(TWICING),
        {
            "x": ("points", SEQUENCE),
            "mask": ("flags?", np.tri(4, dtype=bool)),
            "prior": ("prior?", None),
        },
    ),
    **of_class(
        "LatentAttention",
        num_heads=("natural", 2),
        query_size=("natural", 4),
        latent_size=("natural", 3),
        output_size=("natural?", 4),
        **SIZES,
        rotary_size=("whole from 0", 2),
        use_output_bias=("flag", False),
        dtype=("choice?", None),
        rotary=("rotary", ak.Rotary()),
        latent_norm=("flag", True),
        query_latent_size=("natural?", 4),
        prior=("prior?", None),
        rule=PARTS["rule"],
        method=PARTS["method"],
        key=SEEDED,
    ),
    "LatentAttention.__call__": (
        later(LATENT),
        {
            "x": ("points", SEQUENCE),
            "mask": ("flags?", np.tri(4, dtype=bool)),
            "prior": ("prior?", None),
            "positions": ("codes?", np.arange(4)),
        },
    ),
    **of_class(
        "RecurrentAttention",
        num_heads=("natural", 2),
        query_size=("natural", 4),
        output_size=("natural?", 4),
        **SIZES,
        use_query_bias=("flag", False),
        use_key_bias=("flag", False),
        use_value_bias=("flag", False),
        use_output_bias=("flag", False),
        dtype=("choice?", None),
        estimator=("estimator", recurrent.LinearAttention()),
        decay=("choice?", "row"),
        max_rate=("positive?", 1.0),
        qk_norm=("flag", True),
        kernel=("kernel?", ak.EluFeatures()),
        output_norm=("flag", True),
        output_gate=("flag", False),
        conv_width=("natural?", 4),
        conv_silu=("flag", True),
        key=SEEDED,
    ),
    **of_class(
        "ShortConvolution",
        channels=("natural", 4),
        width=("natural", 2),
        silu=("flag", True),
        dtype=("choice?", None),
        key=SEEDED,
    ),
    "nn.ShortConvolution.__call__": (
        later(CONVOLUTION),
        {"x": ("points", SEQUENCE), "mask": ("flags?", np.ones(4, bool))},
    ),
    "nn.ShortConvolution.step": (
        lambda **given: now(CONVOLUTION).step(**given),
        {
            "x": ("points", SEQUENCE),
            "recent": ("points", SEQUENCE[:1]),
            "mask": ("flags?", np.ones(4, bool)),
        },
    ),
    "RecurrentAttention.__call__": (
        later(RECURRENT),
        {"x": ("points", SEQUENCE), "mask": ("flags?", np.ones(4, bool))},
    ),
    **of_class("KVCache", **CAPACITY, heads=("natural", 2), **SIZES_OF_CACHE),
    "KVCache.append": (
        lambda **given: ak.nn.KVCache(4, 2, 4, 4).append(**given),
        {
            "keys": ("paired", jnp.ones((2, 2, 4))),
            "values": ("paired", jnp.ones((2, 2, 4))),
            **COUNTED,
        },
    ),
    "KVCache.keep": (
        lambda **given: now(CACHE).keep(**given),
        {
            "length": ("whole from 0", 1),
            "rows": ("codes", np.array([0, 1])),
            "count": ("whole from 0?", 2),
        },
    ),
    **of_class(
        "LatentCache",
        **CAPACITY,
        latent_size=("natural", 2),
        rotary_size=("whole from 0", 2),
    ),
    "LatentCache.append": (
        lambda **given: ak.nn.LatentCache(4, 3, 4).append(**given),
        {
            "latents": ("paired", jnp.ones((2, 3))),
            "rotated_keys": ("paired", jnp.ones((2, 4))),
            **COUNTED,
        },
    ),
    **of_class("RecurrentCache", state=("object", jnp.zeros(2))),
    **of_class("LinearAttention", normalised=("flag", False)),
    **of_class("RecursiveLeastSquares", ridge=LENGTH, intercept=("flag", False)),
    "regress": (
        recurrent.regress,
        {
            "q": ("paired", POINTS),
            "k": ("paired", POINTS),
            "v": ("paired", POINTS),
            "estimator": ("estimator", recurrent.LinearAttention()),
            "log_decay": ("paired?", -np.ones((N, 1))),
            "rate": ("paired?", np.ones(N)),
            "mask": ("flags?", np.ones(N, bool)),
            "state": ("object?", None),
            "method": ("choice", "chunked"),
        },
    ),
    **of_class("Rotary", base=("positive", 100.0), interleaved=("flag", False)),
    "Rotary of frequencies": (ak.Rotary, {"frequencies": ("points?", np.ones(2))}),
    "Rotary.__call__": (
        ak.Rotary(),
        {"x": ("points", SEQUENCE), "positions": ("codes", np.arange(4))},
    ),
    "nn.rotary_frequencies": (ak.nn.rotary_frequencies, {"size": ("natural", 4), **ROTARY_BASE}),
    "nn.ntk_frequencies": (
        ak.nn.ntk_frequencies,
        {"size": ("natural", 4), "factor": ("positive", 2.0), **ROTARY_BASE},
    ),
    "nn.llama3_frequencies": (
        ak.nn.llama3_frequencies,
        {**LONGER, **ROTARY_BASE, "low": ("positive", 1.0), "high": ("positive", 4.0)},
    ),
    "nn.yarn_frequencies": (
        ak.nn.yarn_frequencies,
        {**LONGER, **ROTARY_BASE, "fast": ("positive", 32.0), "slow": ("positive", 1.0)},
    ),
    "nn.axial_frequencies": (ak.nn.axial_frequencies, {"sizes": ("object", [4, 2]), **ROTARY_BASE}),
}
