"""The page of the story: its text, its scripts in order, and what they read, as one HTML file."""

import html
import re
import string
from collections.abc import Sequence

import jax

from ._page import fill, read
from ._story import story

TITLE = "From an average to attention"
SCRIPTS = (
    "state",
    "estimates",
    "figure",
    "controls",
    "means",
    "votes",
    "holding_out",
    "lines",
    "plane",
    "heads",
    "attention",
    "page",
)

STEP = string.Template("""<section class="step" id="$name" aria-labelledby="$name-title">
<h2 id="$name-title">$title</h2>
<div class="prose">
$prose
</div>
<div class="work">
<div class="figures"></div>
<p class="sentence"></p>
<form class="controls" aria-label="Controls: $title" onsubmit="return false"></form>
</div>
<p class="answer">$answer</p>
$links
</section>""")


def make_story(command: list[str], pages: Sequence[str] = ()) -> str:
    """The page of the story as HTML.

    `command`: what made it, for its last line; `pages`: names of interactive pages in the same
    folder, to which it links.
    """
    scripts = ["common.js", *(f"story/{name}.js" for name in SCRIPTS)]
    with jax.enable_x64(True):
        content = story() | {"pages": list(pages)}
    return fill(
        "story.html",
        content,
        command,
        title=TITLE,
        steps="\n".join(map(_section, read("story/steps.txt").split("\n\n"))),
        style=read("style.css") + read("story.css"),
        script="\n".join(map(read, scripts)),
    )


def _section(block: str) -> str:
    """A step from its text: `name | question`, paragraphs, `> answer`, `@page title` of links."""
    found = re.fullmatch(r"(\w+) \| (.*?)\n(.*?)\n> (.*?)((?:\n@.*)*)\n*", block, re.DOTALL)
    if found is None:
        raise ValueError(
            f"expected 'name | question', paragraphs and '> answer' in steps.txt; got {block!r}"
        )
    name, title, prose, answer, links = found.groups()
    return STEP.substitute(
        name=name,
        title=html.escape(title),
        prose=prose,
        answer=answer,
        links="\n".join(
            f'<p class="lab" data-page="{page}" hidden>To try more: <a>{text}</a>.</p>'
            for page, text in re.findall(r"@(\w+) (.*)", links)
        ),
    )
