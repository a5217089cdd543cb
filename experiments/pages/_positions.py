"""Kinds of causal attention: what a kernel of contents and a prior of positions make of tokens."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import attnkernel as ak

from ._page import Page, mark

TOKENS, SIZE = 24, 8


def positions(study: Any) -> Page:
    keys = study.keys()
    keys.next()  # of the data
    x = jax.random.normal(keys.next(), (TOKENS, SIZE))
    with jax.enable_x64(True):
        return _make_page(study, np.asarray(x, float))


def attentions(table: Array, window: int, slope: float) -> dict[str, dict[str, Any]]:
    """Kernel and prior of each kind of causal attention."""
    causal, dot = ak.Causal(), ak.DotProduct()
    return {
        "softmax": {"kernel": dot, "prior": causal},
        "linear": {"kernel": ak.kernels.EluFeatures(), "prior": causal},
        "window": {"kernel": dot, "prior": ak.Window(window, 0)},
        "alibi": {"kernel": dot, "prior": causal * ak.Alibi(slope)},
        "t5": {"kernel": dot, "prior": causal * ak.priors.RelativeBias(table, bidirectional=False)},
    }


def _make_page(study: Any, tokens: np.ndarray) -> Page:
    """Makes the page that compares kinds of attention between `tokens`, shape (tokens, size)."""
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
        title="Attention over positions",
        lead="Kinds of causal attention on random tokens: the same sum, with other weights.",
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
