"""Valid calls of kernels."""

from typing import Any

import numpy as np

import attnkernel as ak
from attnkernel import kernels

from .arguments import KERNEL, LENGTH, METRIC, PRECISION, RADIAL, SEEDED, Arguments, of_class

KERNELS: dict[str, tuple[Any, Arguments]] = {
    **{name: (getattr(ak, name), {"lengthscale": LENGTH, "metric": METRIC}) for name in RADIAL},
    **of_class("RationalQuadratic", lengthscale=LENGTH, alpha=LENGTH, metric=METRIC),
    **of_class("Periodic", lengthscale=LENGTH, period=LENGTH),
    **of_class("AitchisonAitken", bandwidth=("not negative", 0.1), categories=("natural", 3)),
    **of_class("LiRacine", bandwidth=("not negative", 0.1)),
    **of_class("LiRacineOrdered", bandwidth=("not negative", 0.1)),
    **of_class("WangVanRyzin", bandwidth=("not negative", 0.1)),
    **of_class("DotProduct", scale=("real?", 1.0), precision=PRECISION),
    **of_class("Polynomial", degree=("natural", 2), offset=("real", 1.0), scale=("real?", 1.0)),
    **of_class("Additive", weight=("points", np.ones(2))),
    **of_class("Bilinear", matrix=("points", np.eye(2))),
    **of_class("CosineSimilarity", scale=("real", 1.0)),
    **of_class("NearestNeighbours", kernel=KERNEL, fraction=("level?", 0.5)),
    "NearestNeighbours of a number": (
        ak.NearestNeighbours,
        {"kernel": KERNEL, "neighbours": ("natural?", 3)},
    ),
    **of_class("On", kernel=KERNEL, columns=("whole from 0", 0)),
    **of_class("Product", first=KERNEL, second=KERNEL),
    **of_class("Rescaled", kernel=KERNEL, factor=LENGTH),
    **of_class(
        "Projected",
        kernel=KERNEL,
        query_proj=("function", lambda q: q),
        key_proj=("function", lambda k: k),
    ),
    **of_class("SoftCapped", kernel=KERNEL, cap=("positive", 50.0)),
    **of_class(
        "RandomFeatures",
        count=("natural", 4),
        dim=("natural", 2),
        positive=("flag", True),
        orthogonal=("flag", True),
        key=SEEDED,
    ),
    "convert_lengthscale": (
        kernels.convert_lengthscale,
        {"lengthscale": LENGTH, "source": ("choice", "standard"), "target": ("choice", "standard")},
    ),
}
