"""Valid calls of models."""

from typing import Any

import numpy as np

import attnkernel as ak

from .arguments import DATA, KERNEL, OF_MODEL, PARTS, SEEDED, SIZES, Arguments, later, of_class
from .values import (
    ADDITIVE,
    HEADS_OF_REGRESSION,
    LEARNED,
    LIKELIHOOD,
    MODEL,
    PARTIALLY_LINEAR,
    PER_HEAD,
    POINTS,
    QUANTILE,
    REDUCED,
    ROBUST,
    N,
    X,
    Y,
)

MODELS: dict[str, tuple[Any, Arguments]] = {
    **of_class(
        "KernelRegression",
        kernel=KERNEL,
        order=("whole from 0", 0),
        rule=PARTS["rule"],
        method=PARTS["method"],
        on_empty=("choice", "nan"),
    ),
    "KernelRegression.__call__": (MODEL, OF_MODEL),
    "KernelRegression.local_fit": (MODEL.local_fit, OF_MODEL),
    "KernelRegression.fitted_and_leverage": (
        MODEL.fitted_and_leverage,
        {**DATA, "weights": ("weights?", np.ones(N))},
    ),
    "KernelRegression.prediction_variance": (
        MODEL.prediction_variance,
        {
            "x_new": ("points", X),
            "x": ("paired", X),
            "variance": ("paired", np.ones(N)),
            "weights": ("weights?", np.ones(N)),
        },
    ),
    **of_class(
        "LocalLikelihood",
        kernel=KERNEL,
        family=("family", ak.Binomial()),
        order=("whole from 0", 0),
        rule=PARTS["rule"],
        on_empty=("choice", "nan"),
    ),
    "LocalLikelihood.__call__": (LIKELIHOOD, OF_MODEL | {"y": ("paired", X)}),
    "LocalLikelihood.local_fit": (LIKELIHOOD.local_fit, OF_MODEL | {"y": ("paired", X)}),
    "LocalLikelihood.deviance": (
        LIKELIHOOD.deviance,
        {"prediction": ("paired", X), "y": ("paired", X)},
    ),
    **of_class(
        "LocalQuantile",
        kernel=KERNEL,
        level=("level", 0.8),
        order=("whole from 0", 1),
        rule=PARTS["rule"],
        on_empty=("choice", "nan"),
    ),
    "LocalQuantile.__call__": (QUANTILE, OF_MODEL),
    "LocalQuantile.local_fit": (QUANTILE.local_fit, OF_MODEL),
    "LocalQuantile.deviance": (
        QUANTILE.deviance,
        {"prediction": ("paired", X), "y": ("paired", X)},
    ),
    **of_class("Bisquare", cutoff=("positive?", 4.0)),
    **of_class("Huber", cutoff=("positive?", 1.5)),
    **of_class(
        "RobustRegression",
        model=("model", MODEL),
        loss=("loss", ak.Huber()),
        iterations=("natural", 2),
    ),
    "RobustRegression.__call__": (ROBUST, OF_MODEL),
    "RobustRegression.robustness_weights": (
        ROBUST.robustness_weights,
        {"x": ("paired", X), "y": ("paired", Y), "weights": ("weights?", np.ones(N))},
    ),
    "RobustRegression.deviance": (
        ROBUST.deviance,
        {"prediction": ("paired", X), "y": ("paired", X)},
    ),
    **of_class(
        "AdditiveRegression", kernels=("object", [ak.Gaussian(0.2)]), order=("whole from 0", 1)
    ),
    "AdditiveRegression.__call__": (ADDITIVE, OF_MODEL),
    "AdditiveRegression.components": (
        ADDITIVE.components,
        {
            "x_new": ("points", X),
            "x": ("paired", X),
            "y": ("paired", Y),
            "weights": ("weights?", np.ones(N)),
        },
    ),
    **of_class("PartiallyLinear", model=("model", MODEL), linear=("whole from 0", 0)),
    "PartiallyLinear.__call__": (
        PARTIALLY_LINEAR,
        OF_MODEL | {"x_new": ("points", POINTS), "x": ("paired", POINTS)},
    ),
    "PartiallyLinear.coefficients": (
        PARTIALLY_LINEAR.coefficients,
        {
            "x": ("paired", POINTS),
            "y": ("paired", Y),
            "noise": ("choice", "rows"),
            "weights": ("weights?", np.ones(N)),
        },
    ),
    **of_class("BiasReduced", model=("model", MODEL), iterations=("natural", 2)),
    "BiasReduced.__call__": (REDUCED, OF_MODEL),
    "models.Derivative": (
        ak.models.Derivative,
        {"model": ("model", MODEL), "derivative": ("natural", 1)},
    ),
    "models.Derivative.__call__": (ak.models.Derivative(MODEL, 1), OF_MODEL),
    **of_class("MeanVarianceRegression", mean=("model", MODEL), variance=("model", MODEL)),
    "MeanVarianceRegression.__call__": (ak.MeanVarianceRegression(MODEL, MODEL), OF_MODEL),
    **of_class(
        "MultiheadKernelRegression",
        kernel=("kernel", PER_HEAD),
        coefficients=("paired?", np.ones(2)),
        rule=PARTS["rule"],
        method=PARTS["method"],
        on_empty=("choice", "nan"),
    ),
    "MultiheadKernelRegression.__call__": (
        later(HEADS_OF_REGRESSION),
        OF_MODEL,
    ),
    **of_class(
        "LearnedKernelRegression",
        dim=("natural", 1),
        out=("natural", 1),
        num_heads=("natural", 1),
        **SIZES,
        embedding=("function?", None),
        on_empty=("choice", "nan"),
        key=SEEDED,
    ),
    "LearnedKernelRegression.__call__": (
        later(LEARNED),
        OF_MODEL,
    ),
}
