"""Parts of a page."""

import html
import json
import shlex
import string
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

import jax

import attnkernel as ak

from .. import PACKAGE
from ..config import FieldError
from ..runs import plain
from ..studies import load

MOST_ROWS = 2000  # a page looks at all pairs of rows each time that a control moves


class Page(NamedTuple):
    """Its words, and what its script reads."""

    # of its files: NAME.js, and NAME.html with title, lead, equation, and text below the numbers
    name: str
    # `begin`, where the controls stand; `marks`, {at, numbers} each; what else it draws
    content: dict[str, Any]
    words: Mapping[str, Any] = {}  # of the title and the lead, by their places in NAME.html


def drawable_data(study: Any) -> ak.data.Dataset:
    """The data of a study, drawn in its precision.

    **Raises:** `FieldError` if they have several inputs, or too many rows.
    """
    with jax.enable_x64(study.precision == "float64"):
        data = load(study.data, study.keys().next())
    rows, columns = data.x.shape
    if columns != 1:
        raise FieldError(("data",), f"a page draws one input, these are {columns}; name one column")
    if rows > MOST_ROWS:
        raise FieldError(
            ("data",), f"a page takes up to {MOST_ROWS} rows, these are {rows}; take a sample"
        )
    return data


def mark(numbers: dict[str, Any], **at: Any) -> dict[str, Any]:
    """The numbers of the library at a place of the controls."""
    return {"at": at, "numbers": numbers}


def read(file: str) -> str:
    """The text of a file of this folder."""
    return (resources.files(f"{PACKAGE}.pages") / file).read_text(encoding="utf-8")


def fill(template: str, content: dict[str, Any], command: list[str], **parts: str) -> str:
    """The HTML of a template, with the content that its script reads, what made it, and parts."""
    text = json.dumps(plain(content), separators=(",", ":"), allow_nan=False)
    return string.Template(read(template)).substitute(
        content=text.replace("<", "\\u003c"),  # no name of a column ends the script
        command=html.escape(shlex.join(command)),
        version=ak.__version__,
        **parts,
    )
