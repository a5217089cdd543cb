"""A zoo: kernels of the distance on data, and what attention makes of positions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import attnkernel as ak

from ..kernels import BUILT_IN
from ..study import load
from ._page import Page, require_drawable

TOKENS, SIZE = 24, 8
DISTANCES = np.linspace(0.0, 2.0, 9)


def zoo(study: Any) -> Page:
    keys = study.keys()
    data = load(study.data, keys.next())
    require_drawable(data)
    x = jax.random.normal(keys.next(), (TOKENS, SIZE))
    with jax.enable_x64(True):
        return _make_page(study, data, np.asarray(x, float))


def attentions(table: Array, window: int, slope: float) -> dict[str, dict[str, Any]]:
    """Kernel and prior of each kind of causal attention."""
    causal, dot = ak.Causal(), ak.DotProduct()
    return {
        "softmax": {"kernel": dot, "prior": causal},
        "linear": {"kernel": ak.EluFeatures(), "prior": causal},
        "window": {"kernel": dot, "prior": ak.Window(window, 0)},
        "alibi": {"kernel": dot, "prior": causal * ak.Alibi(slope)},
        "t5": {"kernel": dot, "prior": causal * ak.RelativeBias(table, bidirectional=False)},
    }


def _make_page(study: Any, data: ak.data.Dataset, tokens: np.ndarray) -> Page:
    """Makes the page that compares kernels by their fits to `data`, and kinds of attention between
    `tokens`, shape (tokens, size).
    """
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
        marks += [
            {
                "at": {"kernel": name, "lengthscale": best[name], "query": query},
                "numbers": {"prediction": prediction, "shape": jnp.exp(shape[0])},
            }
            for query, prediction in zip(queries, predictions, strict=True)
        ]
    table = 1.5 * jnp.cos(0.25 * jnp.arange(32.0))  # such as training may find
    for window, slope in ((study.window, study.slope), (2, 1.0)):
        for name, parts in attentions(table, window, slope).items():
            weights = np.asarray(ak.attention_weights(jnp.asarray(tokens), tokens, **parts))
            marks += [
                {
                    "at": {"attention": name, "window": window, "slope": slope, "token": row + 1},
                    "numbers": {"row": weights[row, : row + 1]},
                }
                for row in (0, TOKENS // 2, TOKENS - 1)
            ]
    back = jnp.arange(TOKENS)
    bias = ak.RelativeBias(table, bidirectional=False)
    return Page(
        name="zoo",
        title="A zoo of kernels",
        lead="Kernels of regression on one data set, and kinds of attention on random tokens: "
        "the same sum, with other weights.",
        content={
            "begin": {
                "kernel": "gaussian",
                "lengthscale": best["gaussian"],
                "query": float(np.quantile(x, 0.6)),
                "attention": "softmax",
                "window": study.window,
                "slope": study.slope,
                "token": TOKENS,
            },
            "marks": marks,
            "best": best,
            "bounds": [min(bounds), max(bounds) / 5],
            "x": x[:, 0],
            "y": y,
            "truth": None if data.mean is None else data.mean,
            "names": {"x": data.x_names[0], "y": data.y_name},
            "distances": DISTANCES,
            "tokens": tokens,
            "t5": bias.pairwise(jnp.full(1, TOKENS - 1), TOKENS - 1 - back)[0],
            "dim": study.dim,
        },
    )
