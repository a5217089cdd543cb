"""A zoo of kernels of the distance, on one data set."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from ..config import BUILT_IN
from ..studies import load
from ._page import Page, mark, require_drawable

DISTANCES = np.linspace(0.0, 2.0, 9)


def zoo(study: Any) -> Page:
    data = load(study.data, study.keys().next())
    require_drawable(data)
    with jax.enable_x64(True):
        return _make_page(data)


def _make_page(data: ak.data.Dataset) -> Page:
    """Makes the page that compares kernels by their fits to `data`."""
    x, y = np.asarray(data.x, float), np.asarray(data.y, float)
    queries = np.quantile(x, [0.1, 0.62])
    best, bounds, marks = {}, [], []
    for name, kernel in BUILT_IN.items():
        model = ak.KernelRegression(kernel(1.0))
        lower, upper = (float(side.lengthscale) for side in kernel(1.0).search_box(jnp.asarray(x)))
        tried = np.geomspace(lower, upper, 201)
        # the lengthscale alone: the rational quadratic keeps its α = 1
        error = ak.profile(model, x, y, tried, objective=ak.LeaveOneOut())
        best[name] = float(tried[np.nanargmin(error)])
        bounds += [lower, upper]
        shape = kernel(1.0).pairwise(jnp.zeros((1, 1)), jnp.asarray(DISTANCES)[:, None])
        predictions = ak.KernelRegression(kernel(best[name]))(queries, x, y)
        place = {"kernel": name, "lengthscale": best[name]}
        for query, prediction in zip(queries, predictions, strict=True):
            numbers = {"prediction": prediction, "shape": jnp.exp(shape[0])}
            marks.append(mark(numbers, **place, query=query))
    return Page(
        name="zoo",
        title="A zoo of kernels",
        lead="Kernels of regression on one data set: the same mean, with other weights.",
        content={
            "begin": {
                "kernel": "gaussian",
                "lengthscale": best["gaussian"],
                "query": float(np.quantile(x, 0.6)),
            },
            "marks": marks,
            "best": best,
            "bounds": [min(bounds), max(bounds) / 5],
            "x": x[:, 0],
            "y": y,
            "truth": None if data.mean is None else data.mean,
            "names": {"x": data.x_names[0], "y": data.y_name},
            "distances": DISTANCES,
        },
    )
