"""Valid calls of priors, rules and methods."""

from typing import Any

import numpy as np

import attnkernel as ak
from attnkernel import priors

from .arguments import LENGTH, Arguments, of_class
from .values import STACK

PACKED: Arguments = {
    "queries": ("codes", np.array([2, 1])),
    "keys": ("codes?", np.array([1, 2])),
    "num_queries": ("natural?", 4),
    "num_keys": ("natural?", 4),
}
ROWS: Arguments = {"queries": ("codes", np.array([0, 1])), "keys": ("codes?", np.array([0, 1]))}
PRIORS: dict[str, tuple[Any, Arguments]] = {
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
}
