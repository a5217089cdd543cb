"""Interactive pages: one self-contained HTML file of a config, without network or server.

A page computes its numbers itself, as its controls move. At some places of the controls (`marks`)
it carries those of the library, compares when it is opened, and says how far they are apart.
"""

import html
import re
import string
from collections.abc import Callable
from typing import Any

import jax

from ..config import FieldError, Source, config_error
from ..runs import settings
from ..studies import Study
from ._page import Page, fill, read
from ._story import STAGES as STAGES, make_story as make_story
from ._study_pages import cache, positions, retrieval, temperature_page, zoo

# by study; one idea a page. The file of the first has the name of the config, that of another also
# the name of its page
PAGES: dict[str, tuple[Callable[[Any], Page], ...]] = {
    "cache": (cache,),
    "holdout": (temperature_page,),
    "lengthscales": (temperature_page,),
    "leave_one_out": (temperature_page,),
    "retrieval_rule": (retrieval,),
    "temperature": (temperature_page,),
    "zoo": (zoo, positions),
}


def make(study: Study, source: Source, command: list[str]) -> dict[str, str]:
    """The pages of a study, as HTML, by what is added to the name of the file: "" for the first,
    then "_NAME". `command`: what made them, for their last line.

    **Raises:** `ConfigError`: this study has no page, or its data cannot be drawn in one.
    """
    name = str(source.values["study"])
    try:
        if name not in PAGES:
            raise FieldError(("study",), f"{name} has no page; these have: {', '.join(PAGES)}")
        with settings(study), jax.enable_x64(True):
            pages = [make_page(study) for make_page in PAGES[name]]
    except FieldError as error:
        raise config_error(source, [error.issue]) from None

    return {
        f"_{page.name}" if place else "": _html(page, command) for place, page in enumerate(pages)
    }


def _html(page: Page, command: list[str]) -> str:
    """The HTML of a page; `command`: what made it."""
    parts = re.split("<!-- (?:above|below) the numbers -->\n", read(f"{page.name}.html"))
    words, equation, text = parts
    title, lead = string.Template(words).substitute(page.words).strip().split("\n", 1)
    return fill(
        "shell.html",
        page.content,
        command,
        title=html.escape(title),
        lead=html.escape(lead.replace("\n", " ")),
        equation=equation,
        text=text,
        style=read("style.css"),
        common=read("common.js"),
        script=read(f"{page.name}.js"),
    )
