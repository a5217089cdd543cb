"""Valid calls of kernels."""

from typing import Any

import numpy as np

import attnkernel as ak
from attnkernel import kernels

from .arguments import KERNEL, LENGTH, RADIAL, Arguments, of_class, usual

BANDWIDTH = ("not negative", 0.1)
KERNELS: dict[str, tuple[Any, Arguments]] = {
    **{name: (getattr(ak.kernels, name), usual("lengthscale metric")) for name in RADIAL},
    **of_class("RationalQuadratic", "lengthscale metric", alpha=LENGTH),
    **of_class("Periodic", "lengthscale", period=LENGTH),
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
}
