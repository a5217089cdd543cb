"""Valid calls of modules for Equinox and their caches."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import attnkernel as ak
from attnkernel import recurrent

from .arguments import LENGTH, Arguments, later, of_class, usual
from .values import KEY, MEMORY, MULTIHEAD, POINTS, SELF, SEQUENCE, TWICING, Later, N, now

MADE = "num_heads query_size qk_size vo_size output_size use_output_bias dtype key"
CAPACITY = "capacity ring sinks spare dtype"
PAIR: Arguments = {"positions": ("codes?", np.arange(2))}
SEQUENCE_IN: Arguments = {"x": ("points", SEQUENCE)}
STEPPED = SEQUENCE_IN | usual(
    "mask prior positions",
    cache=("object", Later(lambda: now(MULTIHEAD).cache(8))),
    count=("whole from 0?", 3),
)
UNMASKED: Arguments = SEQUENCE_IN | {"mask": ("flags?", np.ones(4, bool))}
STEP = Later(lambda: now(MULTIHEAD).step)
LATENT = Later(lambda: ak.nn.LatentAttention(2, 4, 3, key=KEY))
RECURRENT = Later(
    lambda: ak.nn.RecurrentAttention(2, 4, estimator=recurrent.LinearAttention(), key=KEY)
)
CONVOLUTION = Later(lambda: ak.nn.ShortConvolution(4, 2, key=KEY))
ONES = jnp.ones((3, 1, 1))
CACHE = Later(lambda: ak.nn.KVCache(4, 1, 1, 1).append(ONES, ONES)[1])
STATE = {"in_proj_weight": np.tile(np.eye(4), (3, 1)), "out_proj.weight": np.eye(4)}

NN: dict[str, tuple[Any, Arguments]] = {
    **of_class(
        "MultiheadAttention",
        f"{MADE} use_query_bias use_key_bias use_value_bias kernel prior rule method",
        key_size=("natural?", 4),
        value_size=("natural?", 4),
        dropout_p=("level", 0.5),
        inference=("flag", False),
        num_kv_heads=("natural?", 2),
        ridge=("not negative", 0.0),
        rotary=("rotary?", ak.Rotary()),
        qk_norm=("flag", False),
    ),
    "MultiheadAttention of an order": (
        ak.MultiheadAttention,
        usual("num_heads query_size key", order=("whole from 0", 1)),
    ),
    "MultiheadAttention.__call__": (
        later(MULTIHEAD),
        usual(
            "query key_ value mask prior positions",
            key_positions=("codes?", np.arange(4)),
            process_heads=("function?", None),
        ),
    ),
    **of_class(
        "SelfAttention",
        "size qk_size vo_size kernel prior rule method key",
        use_bias=("flag", False),
    ),
    "SelfAttention.__call__": (later(SELF), SEQUENCE_IN | usual("prior")),
    "MultiheadAttention.step": (later(STEP), STEPPED),
    "nn.from_torch": (
        ak.nn.from_torch,
        usual(
            "num_heads",
            weights=("object", STATE),
            prefix=("names", ""),
            add_zero_attn=("flag?", False),
        ),
    ),
    "nn.PersistentMemory": (
        ak.nn.PersistentMemory,
        {
            "attention": ("object", MULTIHEAD),
            "keys": ("paired", np.ones((2, 2, 2))),
            "values": ("paired", np.ones((2, 2, 2))),
        },
    ),
    "nn.PersistentMemory.__call__": (later(MEMORY), usual("query key_ value mask prior")),
    "nn.BiasReducedAttention": (
        ak.nn.BiasReducedAttention,
        usual("iterations", attention=("object", MULTIHEAD)),
    ),
    "nn.BiasReducedAttention.__call__": (later(TWICING), SEQUENCE_IN | usual("mask prior")),
    **of_class(
        "LatentAttention",
        f"{MADE} prior rule method",
        latent_size=("natural", 3),
        rotary_size=("whole from 0", 2),
        rotary=("rotary", ak.Rotary()),
        latent_norm=("flag", True),
        query_latent_size=("natural?", 4),
    ),
    "LatentAttention.__call__": (later(LATENT), SEQUENCE_IN | usual("mask prior positions")),
    **of_class(
        "RecurrentAttention",
        f"{MADE} use_query_bias use_key_bias use_value_bias",
        estimator=("estimator", recurrent.LinearAttention()),
        decay=("choice?", "row"),
        max_rate=("positive?", 1.0),
        qk_norm=("flag", True),
        kernel=("kernel?", ak.kernels.EluFeatures()),
        output_norm=("flag", True),
        output_gate=("flag", False),
        conv_width=("natural?", 4),
        conv_silu=("flag", True),
    ),
    **of_class(
        "ShortConvolution",
        "dtype key",
        channels=("natural", 4),
        width=("natural", 2),
        silu=("flag", True),
    ),
    "nn.ShortConvolution.__call__": (later(CONVOLUTION), UNMASKED),
    "nn.ShortConvolution.step": (
        lambda **given: now(CONVOLUTION).step(**given),
        UNMASKED | {"recent": ("points", SEQUENCE[:1])},
    ),
    "RecurrentAttention.__call__": (later(RECURRENT), UNMASKED),
    **of_class(
        "KVCache",
        CAPACITY,
        heads=("natural", 2),
        qk_size=("natural", 2),
        vo_size=("whole from 0", 2),
    ),
    "KVCache.append": (
        lambda **given: ak.nn.KVCache(4, 2, 4, 4).append(**given),
        usual("count", keys=("paired", jnp.ones((2, 2, 4))), values=("paired", jnp.ones((2, 2, 4))))
        | PAIR,
    ),
    "KVCache.keep": (
        lambda **given: now(CACHE).keep(**given),
        usual("count", length=("whole from 0", 1), rows=("codes", np.array([0, 1]))),
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
    **of_class("Rotary", "base", interleaved=("flag", False)),
    "Rotary of frequencies": (ak.Rotary, {"frequencies": ("points?", np.ones(2))}),
    "Rotary.__call__": (ak.Rotary(), SEQUENCE_IN | {"positions": ("codes", np.arange(4))}),
    "nn.rotary_frequencies": (ak.nn.rotary_frequencies, usual("size base")),
    "nn.ntk_frequencies": (ak.nn.ntk_frequencies, usual("size factor base")),
    "nn.llama3_frequencies": (
        ak.nn.llama3_frequencies,
        usual("size factor length base", low=("positive", 1.0), high=("positive", 4.0)),
    ),
    "nn.yarn_frequencies": (
        ak.nn.yarn_frequencies,
        usual("size factor length base", fast=("positive", 32.0), slow=("positive", 1.0)),
    ),
    "nn.axial_frequencies": (ak.nn.axial_frequencies, usual("base", sizes=("object", [4, 2]))),
}
