"""Temperature and prior: softmax as the maximum of an objective on the simplex."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from ..studies.retrieval_rule import weigh
from ._page import Page, entropy, mark


def retrieval(study: Any) -> Page:
    with jax.enable_x64(True):
        return _make_page(study)


def _make_page(study: Any) -> Page:
    """Makes the page on which readers change the temperature and the prior of a softmax."""
    scores, prior = np.asarray(study.scores, float), np.asarray(study.prior, float)
    marks = []
    for temperature in np.geomspace(study.lowest, study.highest, 6):
        for strength in (0.0, 0.5, 1.0):
            rule = ak.Softmax(temperature)
            log_prior = strength * jnp.log(prior)
            log_prior = log_prior - jax.nn.logsumexp(log_prior)
            a = weigh(rule, jnp.asarray(scores), log_prior)
            objective = rule.objective(a, jnp.asarray(scores), log_prior)
            numbers = {"weights": a, "match": a @ scores, "term": objective - a @ scores}
            numbers |= {"objective": objective, "entropy": entropy(a)}
            marks.append(mark(numbers, temperature=temperature, strength=strength))
    begin = {"temperature": 1.0, "strength": 0.0}
    return Page(
        name="retrieval",
        title="Softmax as a retrieval rule",
        lead=f"{len(scores)} keys with scores s and prior weights r. The softmax trades the match "
        "with the scores against the distance from the prior, at the price τ.",
        content={
            "begin": begin | {f"score{i}": score for i, score in enumerate(scores)},
            "marks": marks,
            "prior": prior,
            "range": [study.lowest, study.highest],
        },
    )
