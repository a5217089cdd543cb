"""The lengthscale, or the temperature, and the query, on one-dimensional data."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from ..config import BUILT_IN, FieldError, Model
from ..studies import entropy
from ._page import Page, drawable_data, mark


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
        title=f"{study.name}: attention as kernel regression",
        lead=f"One query, {len(x)} keys, their labels as values. {name} kernel; move its "
        f"{dial_name} and the query, by the controls, the arrow keys, or in the figures.",
        content={
            "begin": {dial_name: shown(best), "query": float(np.quantile(x, 0.6))},
            "marks": marks,
            "x": x[:, 0],
            "y": y,
            "truth": None if data.mean is None else data.mean,
            "names": {"x": data.x_names[0], "y": data.y_name},
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
