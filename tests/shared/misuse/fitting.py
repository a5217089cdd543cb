"""Valid calls of scores, objectives, fits and files of programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from .arguments import DATA, OPTIONS, Arguments, later, scored
from .kinds import uncached_programs
from .values import FIT, FOLDER, KEY, MODEL, N, X, Y, now

FITTING: dict[str, tuple[Any, Arguments]] = {
    "squared_error": (ak.squared_error, {"prediction": ("paired", Y), "y": ("paired", Y)}),
    "absolute_error": (ak.absolute_error, {"prediction": ("paired", Y), "y": ("paired", Y)}),
    "CheckLoss": (ak.CheckLoss, {"level": ("level", 0.8)}),
    "CheckLoss.__call__": (
        ak.CheckLoss(0.8),
        {"prediction": ("paired", Y), "y": ("paired", Y)},
    ),
    "log_score": (
        ak.log_score,
        {"prediction": ("object", (jnp.ones(N), jnp.ones(N))), "y": ("paired", jnp.asarray(Y))},
    ),
    "AICc": (scored(ak.AICc), {"weights": ("weights?", np.ones(N))}),
    "GCV": (scored(ak.GCV), {"weights": ("weights?", np.ones(N))}),
    "LeaveOneOut": (
        scored(ak.LeaveOneOut),
        {"weights": ("weights?", np.ones(N)), "score": ("function?", ak.squared_error)},
    ),
    "KFold": (
        scored(ak.KFold),
        {
            "folds": ("natural", 4),
            "weights": ("weights?", np.ones(N)),
            "score": ("function?", ak.squared_error),
        },
    ),
    "GroupKFold": (
        scored(ak.GroupKFold),
        {
            "groups": ("paired", np.arange(N) // 2),
            "folds": ("natural?", 4),
            "score": ("function?", ak.squared_error),
        },
    ),
    "BlockedKFold": (
        scored(ak.BlockedKFold),
        {
            "times": ("paired", np.arange(N)),
            "folds": ("natural?", 4),
            "gap": ("not negative", 1.0),
            "score": ("function?", ak.squared_error),
        },
    ),
    "HoldOut": (
        scored(ak.HoldOut),
        {
            "size": ("natural", 2),
            "at_most": ("natural?", 4),
            "score": ("function?", ak.squared_error),
        },
    ),
    "cache_programs": (uncached_programs, {"folder": ("path?", FOLDER / "programs")}),
    "Checkpoints": (
        ak.Checkpoints,
        {
            "path": ("path", FOLDER / "fit"),
            "of": ("names", "adam"),
            "report": ("function?", None),
        },
    ),
    "fit": (
        ak.fit,
        {
            "model": ("model", MODEL),
            **DATA,
            "objective": ("objective?", ak.LeaveOneOut()),
            "steps": ("natural?", 2),
            "key": ("key?", KEY),
            "starts": ("natural?", 1),
            "chunk": ("natural", 100),
            "weights": ("weights?", np.ones(N)),
            "na": ("choice", "error"),
            **OPTIONS,
        },
    ),
    "fit_many": (
        ak.fit_many,
        {
            "model": ("model", MODEL),
            "x": ("paired", X),
            "y": ("paired", Y),
            "objective": ("objective?", ak.LeaveOneOut()),
            "in_axes": ("object", (None, None, None)),
            "steps": ("natural?", 2),
            "key": ("key", jax.random.split(KEY, 2)),
            "starts": ("natural?", 1),
            "chunk": ("natural", 100),
            **OPTIONS,
        },
    ),
    "Fit.__call__": (later(FIT), {"x_new": ("points", X)}),
    "Fit.named": (
        lambda **given: now(FIT).named(**given),
        {"x_names": ("names", ["x"])},
    ),
    "choose": (
        ak.choose,
        {
            "models": ("object", [MODEL]),
            **DATA,
            "objective": ("objective", ak.LeaveOneOut()),
            "starts": ("natural?", 1),
        },
    ),
    "profile": (
        ak.profile,
        {
            "model": ("model", MODEL),
            **DATA,
            "lengthscales": ("positive", np.array([0.1, 0.2])),
            "objective": ("objective", ak.LeaveOneOut()),
        },
    ),
}
