"""Valid calls of models and densities."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import attnkernel as ak
from attnkernel.inference import normal_reference, plug_in

from .arguments import KERNEL, Arguments, later, of_class, usual
from .values import (
    ADDITIVE,
    CONDITIONAL,
    DENSITY,
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
    X,
    Y,
    now,
)

LABELLED = usual("x_new x y prior weights")
BINARY = LABELLED | {"y": ("paired", X)}
DEVIANCE: Arguments = {"prediction": ("paired", X), "y": ("paired", X)}
MODELS: dict[str, tuple[Any, Arguments]] = {
    **of_class("KernelRegression", "kernel order rule method on_empty"),
    "KernelRegression.__call__": (MODEL, LABELLED),
    "KernelRegression.local_fit": (MODEL.local_fit, LABELLED),
    "Rows.read": (ak.models.Rows.read, usual("x y weights")),
    **of_class("LocalLikelihood", "kernel order rule on_empty", family=("family", ak.Binomial())),
    "LocalLikelihood.__call__": (LIKELIHOOD, BINARY),
    "LocalLikelihood.local_fit": (LIKELIHOOD.local_fit, BINARY),
    "LocalLikelihood.deviance": (LIKELIHOOD.deviance, DEVIANCE),
    **of_class(
        "LocalQuantile", "kernel rule on_empty", level=("level", 0.8), order=("whole from 0", 1)
    ),
    "LocalQuantile.__call__": (QUANTILE, LABELLED),
    "LocalQuantile.local_fit": (QUANTILE.local_fit, LABELLED),
    "LocalQuantile.deviance": (QUANTILE.deviance, DEVIANCE),
    **of_class("Bisquare", cutoff=("positive?", 4.0)),
    **of_class("Huber", cutoff=("positive?", 1.5)),
    **of_class("RobustRegression", "model iterations", loss=("loss", ak.Huber())),
    "RobustRegression.__call__": (ROBUST, LABELLED),
    "RobustRegression.robustness_weights": (ROBUST.robustness_weights, usual("x y weights")),
    "RobustRegression.deviance": (ROBUST.deviance, DEVIANCE),
    **of_class(
        "AdditiveRegression", kernels=("object", [ak.Gaussian(0.2)]), order=("whole from 0", 1)
    ),
    "AdditiveRegression.__call__": (ADDITIVE, LABELLED),
    "AdditiveRegression.components": (ADDITIVE.components, usual("x_new x y weights")),
    **of_class("PartiallyLinear", "model", linear=("whole from 0", 0)),
    "PartiallyLinear.__call__": (
        PARTIALLY_LINEAR,
        LABELLED | {"x_new": ("points", POINTS), "x": ("paired", POINTS)},
    ),
    "PartiallyLinear.coefficients": (
        PARTIALLY_LINEAR.coefficients,
        usual("y weights", x=("paired", POINTS), noise=("choice", "rows")),
    ),
    **of_class("BiasReduced", "model iterations"),
    "BiasReduced.__call__": (REDUCED, LABELLED),
    "models.Derivative": (ak.models.Derivative, usual("model", derivative=("natural", 1))),
    "models.Derivative.__call__": (ak.models.Derivative(MODEL, 1), LABELLED),
    **of_class("MeanVarianceRegression", mean=("model", MODEL), variance=("model", MODEL)),
    "MeanVarianceRegression.__call__": (ak.MeanVarianceRegression(MODEL, MODEL), LABELLED),
    **of_class(
        "MultiheadKernelRegression",
        "rule method on_empty",
        kernel=("kernel", PER_HEAD),
        coefficients=("paired?", np.ones(2)),
    ),
    "MultiheadKernelRegression.__call__": (later(HEADS_OF_REGRESSION), LABELLED),
    **of_class(
        "LearnedKernelRegression",
        "qk_size vo_size on_empty key",
        dim=("natural", 1),
        out=("natural", 1),
        num_heads=("natural", 1),
        embedding=("function?", None),
    ),
    "LearnedKernelRegression.__call__": (later(LEARNED), LABELLED),
    "density": (
        ak.density,
        usual("x_new kernel weights method", x=("points", X), log=("flag", False)),
    ),
    **of_class("KernelDensity", "kernel method", support=("object?", None)),
    "KernelDensity.__call__": (later(DENSITY), usual("x_new weights", x=("points", X))),
    **of_class("ConditionalDensity", "kernel method", label_kernel=KERNEL),
    "ConditionalDensity.__call__": (
        later(CONDITIONAL),
        usual("prior", x_new=("points", POINTS), x=("points", POINTS)),
    ),
    "ConditionalDensity.mode": (
        lambda **given: now(CONDITIONAL).mode(**given),
        usual("x_new weights", x=("points", POINTS)),
    ),
    "objectives.UnbiasedCV": (
        lambda **given: ak.objectives.UnbiasedCV(**given)(now(DENSITY), jnp.asarray(X)[:, None], Y),
        usual("weights"),
    ),
    "normal_reference": (normal_reference, {"x": ("points", X), "robust": ("flag", True)}),
    "inference.sheather_jones": (
        ak.inference.sheather_jones,
        {"x": ("points", X), "kind": ("choice", "ste")},
    ),
    "plug_in": (plug_in, usual("x y")),
}
