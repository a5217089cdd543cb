"""What a page is made of."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float


class Page(NamedTuple):
    """Its words, and what its script reads."""

    name: str
    """Of its files: NAME.js, and NAME.html with the equation and the text below the numbers."""
    title: str
    lead: str
    content: dict[str, Any]
    """`begin`, where the controls stand; `marks`, {at, numbers} each; what else it draws."""


def entropy(weights: Float[Array, "*batch keys"]) -> Float[Array, "*batch"]:
    r"""$-\sum_i w_i \log w_i$, nats."""
    return -jnp.sum(xlogy(weights, weights), axis=-1)
