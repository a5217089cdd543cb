"""Parts of a page."""

import html
import json
import shlex
import string
from importlib import resources
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float

import attnkernel as ak

from ..config import FieldError
from ..runs import plain

MOST_ROWS = 2000
"""A page looks at all pairs of rows each time that a control moves."""


class Page(NamedTuple):
    """Its words, and what its script reads."""

    name: str
    """Of its files: NAME.js, and NAME.html with the equation and the text below the numbers."""
    title: str
    lead: str
    content: dict[str, Any]
    """`begin`, where the controls stand; `marks`, {at, numbers} each; what else it draws."""


def require_drawable(data: ak.data.Dataset) -> None:
    """**Raises:** `FieldError`, where the data have several inputs, or too many rows."""
    rows, columns = data.x.shape
    if columns != 1:
        raise FieldError(("data",), f"a page draws one input, these are {columns}; name one column")
    if rows > MOST_ROWS:
        raise FieldError(
            ("data",), f"a page takes up to {MOST_ROWS} rows, these are {rows}; take a sample"
        )


def entropy(weights: Float[Array, "*batch keys"]) -> Float[Array, "*batch"]:
    r"""$-\sum_i w_i \log w_i$, nats."""
    return -jnp.sum(xlogy(weights, weights), axis=-1)


def mark(numbers: dict[str, Any], **at: Any) -> dict[str, Any]:
    """The numbers of the library at a place of the controls."""
    return {"at": at, "numbers": numbers}


def read(file: str) -> str:
    """The text of a file of this folder."""
    return (resources.files("experiments.pages") / file).read_text(encoding="utf-8")


def fill(template: str, content: dict[str, Any], command: list[str], **parts: str) -> str:
    """The HTML of a template, with the content that its script reads, what made it, and parts."""
    text = json.dumps(plain(content), separators=(",", ":"), allow_nan=False)
    return string.Template(read(template)).substitute(
        content=text.replace("<", "\\u003c"),  # no name of a column ends the script
        command=html.escape(shlex.join(command)),
        version=ak.__version__,
        **parts,
    )
