"""The library's numbers at some views of the story, with which the page compares its own."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from ..studies.sentence import Sentence, Sentences
from ._page import mark, read
from ._story_fits import ATTENTION_STEPS, DRAWS, KEY_STEPS, SHARES, features

WORD_HEADS = ("pronoun to noun", "verb to subject", "previous token")
SENTENCE = Sentence.model_validate_json(read("story/sentence.json"))
LEVELS = (80, 90, 95, 99)

Marks = Iterator[dict[str, Any]]


def _mean_square(predicted: Any, y: np.ndarray) -> float:
    return float(np.mean((np.asarray(predicted) - y) ** 2))


def _estimate_and_error(model: Any, query: np.ndarray, x: np.ndarray, y: np.ndarray) -> Any:
    """Returns the numbers of a page for a model: its estimate at a query, and leave-one-out."""
    error = ak.LeaveOneOut()(model, jnp.asarray(x), jnp.asarray(y))
    return {"estimate": model(query, x, y)[0], "error": error}


def marks_of_means(x: np.ndarray, y: np.ndarray) -> Marks:
    """Average, window, kernel, softmax, votes, and errors with and without a point's own vote."""
    query = 0.85
    at, rows = jnp.array([[query]]), jnp.asarray(x)
    mean = ak.attend(
        at, rows, jnp.asarray(y)[:, None], kernel=ak.Gaussian(1.0), rule=ak.rules.Uniform()
    )
    yield mark({"estimate": mean[0, 0]}, step="average", query=query)
    window = np.asarray(ak.attention_weights(at, rows, kernel=ak.kernels.Boxcar(0.0613)))[0]
    numbers = {"estimate": window @ y, "weights": window, "count": np.sum(window > 0)}
    yield mark(numbers, step="window", query=query, width=0.0613)
    for lengthscale in (0.02, 0.06, 0.2):
        place = {"query": query, "lengthscale": lengthscale}
        model = ak.KernelRegression(ak.Gaussian(lengthscale))
        rule = ak.Softmax(lengthscale**2)
        weights = np.asarray(ak.attention_weights(at, rows, kernel=ak.Gaussian(lengthscale)))[0]
        softmax = ak.attention_weights(at, rows, kernel=ak.Gaussian(1.0), rule=rule)[0]
        estimate = model(at, rows, y)[0]
        yield mark({"weights": weights, "estimate": estimate}, step="kernel", **place)
        yield mark({"weights": softmax, "estimate": estimate}, step="softmax", **place)
        votes = ak.votes(at, rows, kernel=ak.Gaussian(lengthscale))
        numbers = {"effective": votes.effective_number[0], "share": votes.share[0]}
        yield mark({"votes": weights * y, "estimate": estimate, **numbers}, step="votes", **place)
        fitted = np.asarray(model(x, x, y))
        left = np.asarray(model(x, x, y, prior=ak.priors.ExcludeSelf()))
        numbers = {
            "own": fitted[30],
            "others": left[30],
            "self_error": _mean_square(fitted, y),
            "error": ak.LeaveOneOut()(model, rows, jnp.asarray(y)),
        }
        yield mark(numbers, step="itself", point=31, lengthscale=lengthscale)
        earlier = np.asarray(model(x, x, y, prior=ak.Causal() & ak.priors.ExcludeSelf()))
        numbers = {"predicted": earlier, "estimate": earlier[30]}
        yield mark(numbers, step="mask", seen=30, lengthscale=lengthscale)
        layered = ak.models.BiasReduced(model, iterations=5)
        numbers = {"estimate": layered(at, rows, y)[0], "first": estimate}
        yield mark(numbers, step="layers", layers=5, broad=lengthscale, query=query)


def marks_of_hold_out(x: np.ndarray, y: np.ndarray) -> Marks:
    """The expected error of hidden rows, and that of one row."""
    one = ak.LeaveOneOut()
    for share in SHARES:
        hidden = ak.HoldOut(max(1, round(float(share) * len(y)))).expected(permutations=DRAWS)
        for lengthscale in (0.03, 0.06):
            model = ak.KernelRegression(ak.Gaussian(lengthscale))
            rows = model, jnp.asarray(x), jnp.asarray(y)
            numbers: dict[str, Any] = {"error": hidden(*rows), "one": one(*rows)}
            yield mark(numbers, step="hidden", hidden=share, lengthscale=lengthscale)


def marks_of_words(study: Sentences) -> Marks:
    """The weights of three heads, written by hand, for two words."""
    for head in WORD_HEADS:
        weights = study.weigh(SENTENCE, head)
        for word in (2, 12):
            yield mark({"weights": weights[word]}, step="words", looks=head, word=word + 1)


def marks_of_lines(line: ak.Fit, x: np.ndarray, y: np.ndarray) -> Marks:
    """Weighted lines at the edges, and bands about them."""
    edges = np.array([np.min(x), 0.9, np.max(x)])
    smooth = float(line.model.kernel.lengthscale)
    for lengthscale in (0.03, 0.1):
        models = [ak.KernelRegression(ak.Gaussian(lengthscale), order=order) for order in (0, 1)]
        found = [model(edges[:, None], x, y) for model in models]
        errors = [ak.LeaveOneOut()(model, jnp.asarray(x), jnp.asarray(y)) for model in models]
        for i, edge in enumerate(edges):
            numbers = {"constant": found[0][i], "line": found[1][i], "errors": errors}
            yield mark(numbers, step="edges", edge=edge, lengthscale=lengthscale)
    for level in (LEVELS[0], LEVELS[2]):
        for corrected in (True, False):
            options = {"level": level / 100, "corrected": corrected, "noise": "constant"}
            band = ak.bands(line, edges, **options)
            for i, query in enumerate(edges):
                numbers = {"centre": band.centre[i], "low": band.lower[i], "high": band.upper[i]}
                place = {"query": query, "level": str(level), "smooth": smooth}
                correction = "yes" if corrected else "no"
                yield mark(numbers, step="bands", **place, corrected=correction)


def marks_of_plane(
    points: np.ndarray, y: np.ndarray, keys: dict[str, Any], lengthscales: np.ndarray
) -> Marks:
    """Two inputs, with a lengthscale for each, and with a metric while it is trained."""
    place = {"rich": 0.8, "compression": 15.0}
    query = np.array([[0.8, 15.0]])
    at = (query - keys["centre"]) / keys["scale"]
    for factor in (0.5, 1.0, 3.0):
        model = ak.KernelRegression(ak.Gaussian(factor * lengthscales))
        numbers = _estimate_and_error(model, query, points, y)
        widths = dict(zip(("along", "across"), factor * lengthscales, strict=True))
        yield mark(numbers, step="inputs", **place, **widths)
    for training in (0, len(KEY_STEPS) // 2, len(KEY_STEPS) - 1):
        metric = keys["metrics"][training]
        model = ak.KernelRegression(ak.Gaussian(ak.fixed(1.0), metric=metric))
        numbers = _estimate_and_error(model, at, keys["z"], y)
        yield mark(numbers, step="keys", **place, training=training)


def marks_of_heads(
    heads: dict[int, ak.MultiheadKernelRegression], points: np.ndarray, y: np.ndarray
) -> Marks:
    x, query = points[:, :1], np.array([[0.8]])
    for count, model in heads.items():
        numbers = _estimate_and_error(model, query, x, y)
        numbers["each"] = np.asarray(model.heads(query, x, y))[:count, 0]
        yield mark(numbers, step="heads", heads=str(count), rich=0.8)


def marks_of_attention(trained: dict[str, Any], points: np.ndarray, y: np.ndarray) -> Marks:
    """The trained attention and the kernel regression: at one query, and on the rows held out."""
    query, train, test = np.array([[0.8, 15.0]]), trained["train"], trained["test"]
    inputs, at = features(points, points), features(query, points)
    attention, plain = trained["models"]
    for epoch in (0, len(ATTENTION_STEPS) - 1):
        sides = [trained[side][epoch] for side in ("query", "key")]
        kernel = eqx.tree_at(
            lambda kernel: (kernel.query_proj.weight, kernel.key_proj.weight),
            attention.kernel,
            tuple(map(jnp.asarray, sides)),
        )
        model = dataclasses.replace(attention, kernel=kernel)
        rows = (inputs[train], y[train])
        numbers = {
            "weights": ak.attention_weights(jnp.asarray(at), inputs[train], kernel=kernel)[0],
            "estimate": model(at, *rows)[0],
            "kernel_estimate": plain(query, points[train], y[train])[0],
            "error": _mean_square(model(inputs[test], *rows), y[test]),
            "kernel_error": _mean_square(plain(points[test], points[train], y[train]), y[test]),
        }
        yield mark(numbers, step="attention", epoch=epoch, rich=0.8, compression=15.0)
