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
from .values import MULTIHEAD, POINTS, SELF, SEQUENCE, N

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
    **of_class(
        "KVCache",
        capacity=("natural", 4),
        heads=("natural", 2),
        qk_size=("natural", 2),
        vo_size=("natural", 2),
        ring=("flag", False),
        dtype=("choice?", None),
    ),
    "KVCache.append": (
        lambda **given: ak.KVCache(4, 2, 4, 4).append(**given),
        {
            "keys": ("paired", jnp.ones((2, 2, 4))),
            "values": ("paired", jnp.ones((2, 2, 4))),
        },
    ),
    **of_class(
        "RecurrentCache",
        heads=("natural", 2),
        features=("natural", 2),
        vo_size=("natural", 2),
        dtype=("choice?", None),
    ),
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
