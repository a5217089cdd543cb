"""The pages of studies: a cache, kinds of attention, a retrieval rule, kernels of distance, and the
lengthscale or the temperature."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import attnkernel as ak
from attnkernel.rules import entropy

from ..config import BUILT_IN, FieldError, Model
from ..studies.retrieval_rule import optimum
from ..studies.zoo import attentions
from ._page import Page, drawable_data, mark

WORDS = ["The", "bank", "is", "steep", ",", "so", "it", "is", "dangerous", "to", "stand"]
SUBJECT = 1  # bank
LOUD = 12.0
TOKENS, SIZE = 24, 8  # of the page of positions
DISTANCES = np.linspace(0.0, 2.0, 9)


def cache(study: Any) -> Page:
    """The page that decodes a sentence with each kind of cache, token by token."""
    random = np.asarray(jax.random.normal(study.keys().next(), (2, len(WORDS), len(WORDS))))
    angles = 2.0 * np.pi * np.arange(len(WORDS)) / len(WORDS)
    values = np.round(np.stack([np.cos(angles), np.sin(angles)], axis=1), 3)  # on a circle
    ring, found, marks = 4, patterns(random), []
    for pattern, (q, k) in found.items():
        for kind, parts in {
            "full": {"kernel": ak.DotProduct(), "prior": ak.Causal()},
            "ring": {"kernel": ak.DotProduct(), "prior": ak.Window(ring - 1, 0)},
            "sum": {
                "kernel": ak.kernels.EluFeatures(),
                "prior": ak.Causal(),
                "method": ak.methods.Linear(),
            },
        }.items():
            out = ak.attend(jnp.asarray(q), jnp.asarray(k), jnp.asarray(values), **parts)
            marks += [
                mark({"output": out[token - 1]}, pattern=pattern, cache=kind, token=token)
                for token in range(1, len(WORDS) + 1)
            ]
    return Page(
        name="cache",
        content={
            "begin": {"pattern": "subject", "cache": "full", "token": 7},
            "marks": marks,
            "words": WORDS,
            "subject": SUBJECT,
            "ring": ring,
            "values": values,
            "patterns": {name: {"q": q, "k": k} for name, (q, k) in found.items()},
        },
    )


def patterns(random: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Queries and keys of each pattern, both of as many columns as there are words."""
    zero, places = np.zeros_like(random[0]), np.eye(len(WORDS))
    loud, before = LOUD * np.ones_like(zero), LOUD * np.roll(places, -1, axis=1)
    before[0] = 0.0  # the first has none before it
    return {
        "broadcast": (zero, places),
        "subject": (np.eye(len(WORDS))[[SUBJECT] * len(WORDS)] * loud, places),
        "previous": (before, places),
        "random": (2.0 * random[0], random[1]),
    }


def positions(study: Any) -> Page:
    """The page that compares kinds of causal attention between random tokens: kernels of contents,
    and priors of positions.
    """
    keys = study.keys()
    keys.next()  # of the data
    tokens = np.asarray(jax.random.normal(keys.next(), (TOKENS, SIZE)))
    marks = []
    table = 1.5 * jnp.cos(0.25 * jnp.arange(32.0))  # such as training may find
    for window, slope in ((study.window, study.slope), (2, 1.0)):
        place = {"window": window, "slope": slope}
        for name, parts in attentions(table, **place).items():
            weights = np.asarray(ak.attention_weights(jnp.asarray(tokens), tokens, **parts))
            marks += [
                mark({"row": weights[row, : row + 1]}, attention=name, **place, token=row + 1)
                for row in (0, TOKENS // 2, TOKENS - 1)
            ]
    back = jnp.arange(TOKENS)
    bias = ak.priors.RelativeBias(table, bidirectional=False)
    return Page(
        name="positions",
        content={
            "begin": {
                "attention": "softmax",
                "window": study.window,
                "slope": study.slope,
                "token": TOKENS,
            },
            "marks": marks,
            "tokens": tokens,
            "t5": bias.pairwise(jnp.full(1, TOKENS - 1), TOKENS - 1 - back)[0],
            "dim": study.dim,
        },
    )


def retrieval(study: Any) -> Page:
    """The page on which readers change the temperature and the prior of a softmax."""
    scores, prior = np.asarray(study.scores, float), np.asarray(study.prior, float)
    marks = []
    for temperature in np.geomspace(study.lowest, study.highest, 6):
        for strength in (0.0, 0.5, 1.0):
            log_prior = jax.nn.log_softmax(strength * jnp.log(prior))
            numbers = optimum(ak.Softmax(temperature), jnp.asarray(scores), log_prior)
            numbers["entropy"] = entropy(numbers["weights"])
            marks.append(mark(numbers, temperature=temperature, strength=strength))
    begin = {"temperature": 1.0, "strength": 0.0}
    return Page(
        name="retrieval",
        words={"keys": len(scores)},
        content={
            "begin": begin | {f"score{i}": score for i, score in enumerate(scores)},
            "marks": marks,
            "prior": prior,
            "range": [study.lowest, study.highest],
        },
    )


def _drawn(data: ak.data.Dataset) -> dict[str, Any]:
    """Returns the data of one input as a page draws them."""
    names = {"x": data.x_names[0], "y": data.y_name}
    return {"x": data.x[:, 0], "y": data.y, "truth": data.mean, "names": names}


def zoo(study: Any) -> Page:
    """The page that compares kernels of the distance by their fits to one data set."""
    data = drawable_data(study)
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
        content={
            "begin": {
                "kernel": "gaussian",
                "lengthscale": best["gaussian"],
                "query": float(np.quantile(x, 0.6)),
            },
            "marks": marks,
            "best": best,
            "bounds": [min(bounds), max(bounds) / 5],
            **_drawn(data),
            "distances": DISTANCES,
        },
    )


def temperature_page(study: Any) -> Page:
    """The page on which readers move the lengthscale and the query. A study of temperatures has a
    dial of τ, the square of our lengthscale.
    """
    data = drawable_data(study)
    # the study has temperatures, which are squares of lengthscales, or a model
    settings: Model = getattr(study, "model", Model())
    settings.require_slope()
    if settings.kernel not in BUILT_IN:
        raise FieldError(("model", "kernel"), f"a page knows these alone: {', '.join(BUILT_IN)}")
    if settings.on_empty != "nan":
        raise FieldError(("model", "on_empty"), "a page leaves empty what is empty: take nan")
    # lengthscales of the convention of the config over ours
    factor = float(ak.kernels.convert_lengthscale(1.0, target=settings.convention))
    x, y = (np.asarray(part, float) for part in (data.x, data.y))
    begin = settings.make()
    lower, upper = (
        float(side.lengthscale) for side in settings.kernel_at().search_box(jnp.asarray(x))
    )
    fit = ak.fit(begin, x, y, objective=ak.LeaveOneOut())
    best = float(fit.model.kernel.lengthscale)
    dial_name = "temperature" if hasattr(study, "temperature") else "lengthscale"
    if dial_name == "temperature":
        lower, upper = np.sqrt([study.lowest, study.highest])

    def shown(lengthscale: Any) -> Any:
        """What the dial shows."""
        return lengthscale**2 if dial_name == "temperature" else lengthscale * factor

    lengthscales = np.geomspace(lower, upper, 161)
    queries = np.quantile(x, [0.0, 0.31, 1.0])

    marks = []
    for lengthscale in (lower, best, upper, *np.geomspace(lower, upper, 7)[1:-1]):
        kernel = ak.kernels.rescaled(fit.model.kernel, lengthscale / best)
        model = eqx.tree_at(lambda model: model.kernel, fit.model, kernel)
        parts = {"kernel": model.kernel, "rule": model.rule}
        weights = ak.attention_weights(queries[:, None], x, **parts)
        predictions, entropies = model(queries, x, y), entropy(weights)
        error = ak.LeaveOneOut()(model, jnp.asarray(x), jnp.asarray(y))
        for query, prediction, nats in zip(queries, predictions, entropies, strict=True):
            numbers = {"prediction": prediction, "entropy": nats, "leave_one_out": error}
            marks.append(mark(numbers, **{dial_name: shown(lengthscale)}, query=query))
    curve = ak.profile(fit.model, x, y, lengthscales, objective=ak.LeaveOneOut())
    name = settings.kernel.replace("_", " ").capitalize()
    return Page(
        name="dial",
        words={"name": study.name, "rows": len(x), "kernel": name, "dial": dial_name},
        content={
            "begin": {dial_name: shown(best), "query": float(np.quantile(x, 0.6))},
            "marks": marks,
            **_drawn(data),
            "kernel": settings.kernel,
            "alpha": getattr(fit.model.kernel, "alpha", None),
            "sink": settings.sink_mass,
            "factor": factor,
            "dial": dial_name,
            "bounds": [shown(lower), shown(upper)],
            "best": shown(best),
            "curve": {"x": shown(lengthscales), "y": curve},
        },
    )
