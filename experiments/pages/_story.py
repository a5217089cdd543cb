"""The story: from an average to a transformer on one data set, with the library's numbers, as one
HTML file.
"""

import html
import json
import re
import string
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import attnkernel as ak

from .. import PACKAGE
from ..runs.monitor import Tick
from ..studies.sentence import LOOKS, Sentences
from . import _story_fits as fits, _story_marks as marks
from ._page import fill, read

MOST_LAYERS = 12
TITLE = "From an average to attention"


STAGES = 10  # of what a story computes


def story(tick: Tick) -> dict[str, Any]:
    """What the page of the story reads: rows, what was fitted or trained, and the library's marks.

    `tick` is told which of the `STAGES` are done.

    The data are `ethanol`: 88 runs of an engine, NOx in the exhaust against the mixture E and the
    compression ratio C. The mean over E alone has a steep edge at both ends, and C explains much of
    what is left, so that one data set shows every step.
    """
    data = ak.data.load("ethanol", x=("E", "C"))
    points, y = (np.asarray(part, float) for part in (data.x, data.y))
    x = points[:, :1]
    mean = ak.fit(ak.KernelRegression(ak.Gaussian(0.1)), x, y)
    line = ak.fit(ak.KernelRegression(ak.Gaussian(0.1), order=1), x, y, objective=ak.AICc())
    tick(1, "curves")
    keys, heads = fits.train_keys(points, y), fits.fit_heads(x, y)
    tick(2, "keys and heads")
    trained = fits.train_attention(points, y)
    plane = ak.fit(ak.KernelRegression(ak.Gaussian(jnp.array([0.1, 5.0]))), points, y)
    best_plane = np.asarray(plane.model.kernel.lengthscale)
    tick(3, "attention")
    sentence = Sentences(study="sentence", sentences=[marks.SENTENCE])
    parts: tuple[Any, ...] = (
        (marks.marks_of_means, x, y),
        (marks.marks_of_hold_out, x, y),
        (marks.marks_of_lines, line, x, y),
        (marks.marks_of_plane, points, y, keys, best_plane),
        (marks.marks_of_heads, heads, points, y),
        (marks.marks_of_attention, trained, points, y),
        (marks.marks_of_words, sentence),
    )
    compared = []
    for stage, (marks_of, *given) in enumerate(parts, 4):
        compared += marks_of(*given)
        tick(stage, "numbers to compare with")
    begin = json.loads(read("story/begin.json")) | {
        "edge": float(np.min(x)),
        "smooth": float(line.model.kernel.lengthscale),
        "along": float(best_plane[0]),
        "across": float(best_plane[1]),
        "training": len(fits.KEY_STEPS) - 1,
        "epoch": len(fits.ATTENTION_STEPS) - 1,
    }
    return {
        "begin": begin,
        "marks": compared,
        "rows": {"x": x[:, 0], "c": points[:, 1], "y": y},
        "names": {"x": "mixture E", "c": "compression C", "y": "NOx (µg/J)"},
        "best": float(mean.model.kernel.lengthscale),
        "quantiles": {str(level): float(norm.ppf(0.5 + level / 200)) for level in marks.LEVELS},
        "shares": fits.SHARES,
        "ranks": fits.drawn_ranks(len(y)),
        "words": {
            **marks.SENTENCE.model_dump(),
            "looks": {name: LOOKS.get(name) for name in marks.WORD_HEADS},
            "contrast": sentence.contrast,
            "decay": sentence.decay,
        },
        "keys": {name: keys[name] for name in ("centre", "scale", "steps", "metrics")},
        "heads": {
            str(count): {
                "lengthscales": fits.HEAD_LENGTHSCALES[:count],
                "coefficients": np.asarray(model.coefficients)[:count],
            }
            for count, model in heads.items()
        },
        "attention": {name: value for name, value in trained.items() if name != "models"},
        "most_layers": MOST_LAYERS,
    }


def make_story(
    command: list[str], pages: Sequence[str] = (), tick: Tick = lambda done, state: None
) -> str:
    """The page of the story as HTML.

    `command`: what made it, for its last line; `pages`: names of interactive pages in the same
    folder, to which it links.
    """
    files = (resources.files(f"{PACKAGE}.pages") / "story").iterdir()
    names = sorted(file.name for file in files if file.name.endswith(".js"))  # in their order
    scripts = ["common.js", *(f"story/{name}" for name in names)]
    with jax.enable_x64(True):
        content = story(tick) | {"pages": list(pages)}
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
    step = string.Template(read("story/step.html").rstrip("\n"))
    return step.substitute(
        name=name,
        title=html.escape(title),
        prose=prose,
        answer=answer,
        links="\n".join(
            f'<p class="lab" data-page="{page}" hidden>To try more: <a>{text}</a>.</p>'
            for page, text in re.findall(r"@(\w+) (.*)", links)
        ),
    )
