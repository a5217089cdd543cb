"""Valid calls of inference."""

from typing import Any

import numpy as np

import attnkernel as ak

from .arguments import Arguments, usual
from .values import ADDITIVE_FIT, FIT, KEY, N, X, Y, now

INFERENCE: dict[str, tuple[Any, Arguments]] = {
    "bands": (
        ak.bands,
        usual(
            "fit x_new level noise clusters corrected",
            kind=("choice", "pointwise"),
            derivative=("natural?", 1),
            draws=("natural", 20),
            key=("key?", KEY),
        ),
    ),
    "bands, simultaneous": (
        lambda **given: ak.bands(now(FIT), X, kind="simultaneous", draws=20, **given),
        usual("key"),
    ),
    "bands of a curve": (
        lambda **given: ak.bands(now(ADDITIVE_FIT), X, corrected=False, noise="constant", **given),
        {"component": ("whole from 0?", 0)},
    ),
    "econometrics.average_derivative": (
        ak.econometrics.average_derivative,
        usual(
            "fit level noise clusters",
            undersmoothed=("flag", True),
            row_weights=("weights?", np.ones(N)),
        ),
    ),
    "conformal": (
        ak.conformal,
        usual(
            "fit x_new",
            level=("level", 0.5),
            kind=("choice", "leave-one-out"),
            local=("flag", False),
            key=("key?", KEY),
        ),
    ),
    "conformal, split": (
        lambda **given: ak.conformal(now(FIT), X, kind="split", level=0.5, **given),
        usual("key"),
    ),
    "econometrics.discontinuity": (
        ak.econometrics.discontinuity,
        usual(
            "x y order level weights",
            cutoff=("real", 0.5),
            treatment=("paired?", Y),
            kernel=("choice", ak.kernels.Triangular),
            lengthscale=("positive?", 0.6),
            bias_lengthscale=("positive?", 0.8),
        ),
    ),
    "degrees_of_freedom": (ak.degrees_of_freedom, usual("fit")),
    "effective_count": (ak.inference.effective_count, usual("fit x_new")),
    "noise_variance": (ak.noise_variance, usual("fit x_new")),
    "quantiles": (ak.quantiles, usual("fit x_new", levels=("level", 0.5))),
    "summarise": (ak.summarise, usual("fit", names=("names", ["x"]))),
    "econometrics.relevance_test": (
        ak.econometrics.relevance_test,
        usual("fit column draws key", reselect=("flag", False)),
    ),
    "econometrics.specification_test": (
        ak.econometrics.specification_test,
        usual("x y draws key", design=("paired?", X), kernel=("kernel?", ak.Gaussian(0.3))),
    ),
}
