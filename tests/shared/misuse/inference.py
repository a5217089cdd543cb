"""Valid calls of scores, objectives, fits and inference."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from .arguments import OPTIONS, Arguments, later, scored, usual
from .kinds import uncached_programs
from .values import ADDITIVE_FIT, FIT, FOLDER, KEY, MODEL, N, X, Y, now

ERRORS: Arguments = {"prediction": ("paired", Y), "y": ("paired", Y)}
INFERENCE: dict[str, tuple[Any, Arguments]] = {
    "squared_error": (ak.squared_error, ERRORS),
    "absolute_error": (ak.losses.absolute_error, ERRORS),
    "CheckLoss": (ak.losses.CheckLoss, {"level": ("level", 0.8)}),
    "CheckLoss.__call__": (ak.losses.CheckLoss(0.8), ERRORS),
    "log_score": (
        ak.objectives.log_score,
        {"prediction": ("object", (jnp.ones(N), jnp.ones(N))), "y": ("paired", jnp.asarray(Y))},
    ),
    "AICc": (scored(ak.AICc), usual("weights")),
    "GCV": (scored(ak.GCV), usual("weights")),
    "LeaveOneOut": (scored(ak.LeaveOneOut), usual("weights score")),
    "KFold": (scored(ak.KFold), usual("weights score", folds=("natural", 4))),
    "GroupKFold": (
        scored(ak.objectives.GroupKFold),
        usual("folds score", groups=("paired", np.arange(N) // 2)),
    ),
    "BlockedKFold": (
        scored(ak.objectives.BlockedKFold),
        usual("folds score", times=("paired", np.arange(N)), gap=("not negative", 1.0)),
    ),
    "HoldOut": (
        scored(ak.HoldOut),
        usual("score", size=("natural", 2), at_most=("natural?", 4)),
    ),
    "cache_programs": (uncached_programs, {"folder": ("path?", FOLDER / "programs")}),
    "Checkpoints": (
        ak.fitting.Checkpoints,
        {
            "path": ("path", FOLDER / "fit"),
            "of": ("names", "adam"),
            "report": ("function?", None),
        },
    ),
    "fit": (
        ak.fit,
        usual(
            "model x y steps starts chunk weights",
            objective=("objective?", ak.LeaveOneOut()),
            key=("key?", KEY),
            na=("choice", "error"),
            **OPTIONS,
        ),
    ),
    "fit_many": (
        ak.fit_many,
        usual(
            "model x y steps starts chunk",
            objective=("objective?", ak.LeaveOneOut()),
            in_axes=("object", (None, None, None)),
            key=("key", jax.random.split(KEY, 2)),
            **OPTIONS,
        ),
    ),
    "Fit.__call__": (later(FIT), usual("x_new")),
    "Fit.named": (lambda **given: now(FIT).named(**given), {"x_names": ("names", ["x"])}),
    "choose": (ak.choose, usual("x y objective starts", models=("object", [MODEL]))),
    "profile": (
        ak.profile,
        usual("model x y objective", lengthscales=("positive", np.array([0.1, 0.2]))),
    ),
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
