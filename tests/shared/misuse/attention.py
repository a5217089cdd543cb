"""Valid calls of kernels, priors, rules, methods and attention."""

from typing import Any

import numpy as np

import attnkernel as ak
from attnkernel import kernels, priors

from .arguments import KERNEL, LENGTH, RADIAL, Arguments, of_class, usual
from .values import POINTS, STACK

BANDWIDTH = ("not negative", 0.1)
PACKED: Arguments = {
    "queries": ("codes", np.array([2, 1])),
    "keys": ("codes?", np.array([1, 2])),
    "num_queries": ("natural?", 4),
    "num_keys": ("natural?", 4),
}
ROWS: Arguments = {"queries": ("codes", np.array([0, 1])), "keys": ("codes?", np.array([0, 1]))}
ARRAYS: Arguments = {"q": ("points", POINTS), "k": ("paired", POINTS), "v": ("paired", POINTS)}
ATTENTION: dict[str, tuple[Any, Arguments]] = {
    **{name: (getattr(ak.kernels, name), usual("lengthscale metric")) for name in RADIAL},
    **of_class("RationalQuadratic", "lengthscale metric", alpha=LENGTH),
    **of_class("Periodic", "lengthscale", period=LENGTH, train_period=("flag", False)),
    **of_class("AitchisonAitken", bandwidth=BANDWIDTH, categories=("natural", 3)),
    **of_class("LiRacine", bandwidth=BANDWIDTH),
    **of_class("LiRacineOrdered", bandwidth=BANDWIDTH),
    **of_class("WangVanRyzin", bandwidth=BANDWIDTH),
    **of_class("DotProduct", "precision", scale=("real?", 1.0)),
    **of_class("Polynomial", degree=("natural", 2), offset=("real", 1.0), scale=("real?", 1.0)),
    **of_class("AdditiveScore", weight=("points", np.ones(2))),
    **of_class("Bilinear", matrix=("points", np.eye(2))),
    **of_class("CosineSimilarity", scale=("real", 1.0)),
    **of_class("NearestNeighbours", "kernel", fraction=("level?", 0.5)),
    "NearestNeighbours of a number": (
        ak.NearestNeighbours,
        usual("kernel", neighbours=("natural?", 3)),
    ),
    **of_class("OnColumns", "kernel", columns=("whole from 0", 0)),
    **of_class("Product", first=KERNEL, second=KERNEL),
    **of_class("Rescaled", "kernel", factor=LENGTH),
    **of_class(
        "Projected",
        "kernel",
        query_proj=("function", lambda q: q),
        key_proj=("function", lambda k: k),
    ),
    **of_class("SoftCapped", "kernel", cap=("positive", 50.0)),
    **of_class(
        "RandomFeatures",
        "key",
        count=("natural", 4),
        dim=("natural", 2),
        positive=("flag", True),
        orthogonal=("flag", True),
    ),
    "convert_lengthscale": (
        kernels.convert_lengthscale,
        usual("lengthscale", source=("choice", "standard"), target=("choice", "standard")),
    ),
    **of_class("Alibi", slope=("real?", 0.5)),
    "Alibi of heads": (ak.Alibi, {"heads": ("natural?", 2)}),
    "alibi_slopes": (priors.alibi_slopes, {"heads": ("natural", 2)}),
    **of_class("Kerple", rate=LENGTH, scale=LENGTH),
    **of_class(
        "RelativeBias",
        table=("points", np.zeros(8)),
        max_distance=("natural", 128),
        bidirectional=("flag", True),
    ),
    "RelativeBias of a number": (ak.priors.RelativeBias, {"table": ("natural", 8)}),
    **of_class("BiasTable", bias=("points", np.zeros((2, 2)))),
    **of_class("Forget", log_gates=("points", -np.ones(2))),
    **of_class("KeyWeights", log_weights=("points", np.zeros(2))),
    **of_class("HeldOut", held_out=("flags", np.array([True, False]))),
    **of_class("MaskArray", allowed=("flags", np.eye(2, dtype=bool))),
    **of_class("Segments", **ROWS),
    "Segments.from_lengths": (priors.Segments.from_lengths, PACKED),
    "Segments.from_offsets": (
        priors.Segments.from_offsets,
        PACKED
        | {"queries": ("codes", np.array([0, 2, 3])), "keys": ("codes?", np.array([0, 2, 3]))},
    ),
    **of_class("AtPositions", prior=("prior", ak.Causal()), **ROWS),
    **of_class("Causal", offset=("whole", 0)),
    **of_class("Window", left=("whole from 0", 1), right=("whole from 0", 1)),
    **of_class("Prefix", length=("whole from 0", 1)),
    **of_class("Lengths", queries=("whole from 0?", 1), keys=("whole from 0?", 1)),
    **of_class("MaskFunction", function=("function", lambda i, j: j <= i)),
    **of_class("ScoreFunction", function=("function", lambda s, i, j, h: s), heads=("natural?", 2)),
    "priors.Product": (
        priors.Product,
        {"first": ("prior", ak.Causal()), "second": ("prior", ak.Causal())},
    ),
    **of_class("And", first=("mask", ak.Causal()), second=("mask", ak.Causal())),
    **of_class("Or", first=("mask", ak.Causal()), second=("mask", ak.Causal())),
    **of_class("Not", mask=("mask", ak.Causal())),
    **of_class("PerHead", stack=("kernel", STACK), axes=("natural", 1)),
    "fixed": (ak.fixed, {"value": ("real", 0.3)}),
    **of_class("Softmax", temperature=LENGTH, sink_mass=("positive", 0.1)),
    "Softmax of a logarithm": (ak.Softmax, {"log_sink_mass": ("real?", 0.1)}),
    **of_class("Entmax", alpha=("positive", 1.5), temperature=LENGTH),
    **of_class("Dense", "precision"),
    **of_class("Blockwise", "precision", block_q=("natural?", 8), block_k=("natural?", 8)),
    **of_class("Fourier", tol=("level", 1e-6)),
    **of_class("Fused", "dtype", platform=("choice?", None), interpret=("flag", False)),
    **of_class("Linear", features=("object?", None)),
    **of_class(
        "Sharded",
        mesh=("object?", None),
        axis=("choice", "devices"),
        ring=("flag", False),
        inner=("method", ak.methods.Blockwise()),
    ),
    "attend": (
        ak.attend,
        ARRAYS | usual("kernel prior rule method", return_log_mass=("flag", False)),
    ),
    "softmax_state": (
        ak.attention.softmax_state,
        ARRAYS | usual("kernel prior rule method", exact_maximum=("flag", False)),
    ),
    "attention_weights": (
        ak.attention_weights,
        usual("kernel prior rule", q=("points", POINTS), k=("points", POINTS)),
    ),
    "select_method": (ak.select_method, ARRAYS | usual("kernel prior rule order")),
}
