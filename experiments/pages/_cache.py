"""Token by token: what a cache holds, and what each new query reads from it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from ._page import Page, mark

WORDS = ["The", "bank", "is", "steep", ",", "so", "it", "is", "dangerous", "to", "stand"]
SUBJECT = 1  # bank
LOUD = 12.0


def cache(study: Any) -> Page:
    x = jax.random.normal(study.keys().next(), (2, len(WORDS), len(WORDS)))
    with jax.enable_x64(True):
        return _make_page(np.asarray(x, float))


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


def _make_page(random: np.ndarray) -> Page:
    """Makes the page that decodes a sentence with each kind of cache, token by token. `random`:
    queries and keys of one pattern, shape (2, tokens, size).
    """
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
        title="A cache of keys and values, token by token",
        lead="Each token brings a query, a key and a value. Its query reads all that the cache "
        "holds; then the next token comes. The outputs are those of one causal pass over all.",
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
