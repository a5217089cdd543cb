"""Valid calls of saved files, data, plots and scikit-learn."""

from typing import Any

import numpy as np

import attnkernel as ak
import attnkernel.plot
import attnkernel.sklearn

from .arguments import AXES, SEEDED, SKLEARN, Arguments, estimated
from .values import BAND, CSV, DISCONTINUITY, FIT, FOLDER, SAVED, X, Y

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
    "data.heteroskedastic": (ak.data.heteroskedastic, {"key": SEEDED, "n": ("natural", 8)}),
    "data.heteroskedastic_mean": (ak.data.heteroskedastic_mean, {"x": ("points", X)}),
    "data.heteroskedastic_sd": (ak.data.heteroskedastic_sd, {"x": ("points", X)}),
    "plot.criterion": (
        ak.plot.criterion,
        {
            "result": ("fit", FIT),
            "lengthscales": ("positive?", np.array([0.1, 0.2])),
            "objective": ("objective?", None),
            "convention": ("choice", "standard"),
            **AXES,
        },
    ),
    "plot.band": (ak.plot.band, {"bands": ("bands", BAND), **AXES, "label": ("names?", "a")}),
    "plot.data": (ak.plot.data, {"dataset": ("dataset", ak.data.load("cps71")), **AXES}),
    "plot.discontinuity": (
        ak.plot.discontinuity,
        {"result": ("object", DISCONTINUITY), "bins": ("natural", 4), **AXES},
    ),
    "plot.effective_count": (ak.plot.effective_count, {"result": ("fit", FIT), **AXES}),
    "plot.fit": (
        ak.plot.fit,
        {
            "result": ("fit", FIT),
            "band": ("bands?", BAND),
            **AXES,
            "label": ("names", "fit"),
        },
    ),
    "plot.grid": (ak.plot.grid, {"x": ("points", X), "points": ("natural", 5)}),
    "plot.literal": (ak.plot.literal, {"text": ("names", "a")}),
    "plot.partial": (
        ak.plot.partial,
        {
            "result": ("fit", FIT),
            "column": ("whole from 0", 0),
            "at": ("names", {}),
            "band": ("flag", True),
            "level": ("level", 0.95),
            **AXES,
        },
    ),
    "plot.points": (
        ak.plot.points,
        {"x": ("paired", X), "y": ("paired", Y), **AXES, "label": ("names", "a")},
    ),
    "plot.residuals": (ak.plot.residuals, {"result": ("fit", FIT), **AXES}),
    "plot.interact": (
        ak.plot.interact,
        {"draw": ("function", lambda query: None), "query": ("names", (0.0, -1.0, 1.0))},
    ),
    "plot.weights": (
        ak.plot.weights,
        {"result": ("fit", FIT), "queries": ("points", np.array([0.2])), **AXES},
    ),
    "sklearn.KernelRegressor": (estimated(attnkernel.sklearn.KernelRegressor, Y), SKLEARN),
    "sklearn.KernelClassifier": (estimated(attnkernel.sklearn.KernelClassifier, X > 0.5), SKLEARN),
}
