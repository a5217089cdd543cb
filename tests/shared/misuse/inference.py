"""Valid calls of inference."""

from typing import Any

import numpy as np

import attnkernel as ak

from .arguments import DATA, SEEDED, Arguments
from .values import ADDITIVE_FIT, FIT, KEY, N, X, Y, now

INFERENCE: dict[str, tuple[Any, Arguments]] = {
    "bands": (
        ak.bands,
        {
            "fit": ("fit", FIT),
            "x_new": ("points", X),
            "level": ("level", 0.95),
            "kind": ("choice", "pointwise"),
            "derivative": ("natural?", 1),
            "noise": ("choice?", "rows"),
            "clusters": ("paired?", np.arange(N) // 2),
            "corrected": ("flag", True),
            "draws": ("natural", 20),
            "key": ("key?", KEY),
        },
    ),
    "bands, simultaneous": (
        lambda **given: ak.bands(now(FIT), X, kind="simultaneous", draws=20, **given),
        {"key": ("key", KEY)},
    ),
    "bands of a curve": (
        lambda **given: ak.bands(now(ADDITIVE_FIT), X, corrected=False, noise="constant", **given),
        {"component": ("whole from 0?", 0)},
    ),
    "inference.average_derivative": (
        ak.inference.average_derivative,
        {
            "fit": ("fit", FIT),
            "level": ("level", 0.95),
            "noise": ("choice?", "rows"),
            "clusters": ("paired?", np.arange(N) // 2),
            "undersmoothed": ("flag", True),
            "row_weights": ("weights?", np.ones(N)),
        },
    ),
    "conformal": (
        ak.conformal,
        {
            "fit": ("fit", FIT),
            "x_new": ("points", X),
            "level": ("level", 0.5),
            "kind": ("choice", "leave-one-out"),
            "local": ("flag", False),
            "key": ("key?", KEY),
        },
    ),
    "conformal, split": (
        lambda **given: ak.conformal(now(FIT), X, kind="split", level=0.5, **given),
        {"key": ("key", KEY)},
    ),
    "inference.discontinuity": (
        ak.inference.discontinuity,
        {
            **DATA,
            "cutoff": ("real", 0.5),
            "treatment": ("paired?", Y),
            "order": ("whole from 0", 0),
            "kernel": ("choice", ak.Triangular),
            "lengthscale": ("positive?", 0.6),
            "bias_lengthscale": ("positive?", 0.8),
            "level": ("level", 0.95),
            "weights": ("weights?", np.ones(N)),
        },
    ),
    "degrees_of_freedom": (ak.degrees_of_freedom, {"fit": ("fit", FIT)}),
    "effective_count": (ak.effective_count, {"fit": ("fit", FIT), "x_new": ("points", X)}),
    "noise_variance": (ak.noise_variance, {"fit": ("fit", FIT), "x_new": ("points", X)}),
    "quantiles": (
        ak.quantiles,
        {"fit": ("fit", FIT), "x_new": ("points", X), "levels": ("level", 0.5)},
    ),
    "summarise": (ak.summarise, {"fit": ("fit", FIT), "names": ("names", ["x"])}),
    "inference.relevance_test": (
        ak.inference.relevance_test,
        {
            "fit": ("fit", FIT),
            "column": ("whole from 0", 0),
            "reselect": ("flag", False),
            "draws": ("natural", 2),
            "key": SEEDED,
        },
    ),
    "inference.specification_test": (
        ak.inference.specification_test,
        {
            "x": ("paired", X),
            "y": ("paired", Y),
            "design": ("paired?", X),
            "kernel": ("kernel?", ak.Gaussian(0.3)),
            "draws": ("natural", 2),
            "key": SEEDED,
        },
    ),
}
