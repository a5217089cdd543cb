"""Valid calls of saved files, data, plots and scikit-learn."""

from typing import Any

import numpy as np

import attnkernel as ak
import attnkernel.plot
import attnkernel.sklearn

from .arguments import SKLEARN, Arguments, estimated, usual
from .values import BAND, CSV, DISCONTINUITY, FOLDER, SAVED, X, Y

FILES: dict[str, tuple[Any, Arguments]] = {
    "save": (
        ak.save,
        {
            "path": ("path", FOLDER / "attnkernel-misuse.ak"),
            "model": ("function", ak.Gaussian(1.0)),
        },
    ),
    "load": (ak.load, {"path": ("path", SAVED), "classes": ("names", ())}),
    "data.load": (
        ak.data.load,
        {
            "name": ("choice", "faithful"),
            "x": ("names", "eruptions"),
            "y": ("choice?", "waiting"),
        },
    ),
    "data.read_csv": (
        ak.data.read_csv,
        {
            "path": ("path", CSV),
            "x": ("names", "eruptions"),
            "y": ("choice", "waiting"),
            "names": ("names", None),
            "categories": ("names", ()),
            "find_categories": ("flag", False),
            "dates": ("names", ()),
            "delimiter": ("choice", ","),
            "decimal": ("choice", "."),
            "missing": ("choice", "error"),
        },
    ),
    "data.heteroskedastic": (ak.data.heteroskedastic, usual("key", n=("natural", 8))),
    "data.heteroskedastic_mean": (ak.data.heteroskedastic_mean, {"x": ("points", X)}),
    "data.heteroskedastic_sd": (ak.data.heteroskedastic_sd, {"x": ("points", X)}),
    "plot.criterion": (
        ak.plot.criterion,
        usual(
            "result ax",
            lengthscales=("positive?", np.array([0.1, 0.2])),
            objective=("objective?", None),
            convention=("choice", "standard"),
        ),
    ),
    "plot.band": (ak.plot.band, usual("ax", bands=("bands", BAND), label=("names?", "a"))),
    "plot.data": (ak.plot.data, usual("ax", dataset=("dataset", ak.data.load("cps71")))),
    "plot.discontinuity": (
        ak.plot.discontinuity,
        usual("ax", result=("object", DISCONTINUITY), bins=("natural", 4)),
    ),
    "plot.effective_count": (ak.plot.effective_count, usual("result ax")),
    "plot.fit": (
        ak.plot.fit,
        usual("result ax", band=("bands?", BAND), label=("names", "fit")),
    ),
    "plot.grid": (ak.plot.grid, {"x": ("points", X), "points": ("natural", 5)}),
    "plot.literal": (ak.plot.literal, {"text": ("names", "a")}),
    "plot.partial": (
        ak.plot.partial,
        usual("result column level ax", at=("names", {}), band=("flag", True)),
    ),
    "plot.points": (ak.plot.points, usual("x y ax", label=("names", "a"))),
    "plot.residuals": (ak.plot.residuals, usual("result ax")),
    "plot.interact": (
        ak.plot.interact,
        {"draw": ("function", lambda query: None), "query": ("names", (0.0, -1.0, 1.0))},
    ),
    "plot.weights": (
        ak.plot.weights,
        usual("result ax", queries=("points", np.array([0.2]))),
    ),
    "sklearn.KernelRegressor": (estimated(attnkernel.sklearn.KernelRegressor, Y), SKLEARN),
    "sklearn.KernelClassifier": (estimated(attnkernel.sklearn.KernelClassifier, X > 0.5), SKLEARN),
}
