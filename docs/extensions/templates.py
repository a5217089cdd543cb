"""Pages whose numbers come from files: those that begin with `{# numbers from ... #}` are Jinja.

They see `runs`, what `docs/keep.py` kept of finished runs, `configs`, all of `configs/`, and the
names of `notebooks` and the titles of interactive `pages`, which are made here. What is not there
is an error.
"""

import json
import re
import shutil
from pathlib import Path

import jinja2
import yaml
from sphinx.errors import ExtensionError

from experiments.__main__ import main
from experiments.pages import PAGES

DOCS = Path(__file__).parents[1]
CONFIGS = DOCS.parent / "configs"


def runs() -> dict[str, dict]:
    """By the name of its config, of each run that was kept: summary, config and machine."""
    return {
        path.stem: json.loads(path.read_text()) for path in sorted(DOCS.glob("summaries/*.json"))
    }


def configs() -> dict[str, dict]:
    """By name, of each config: what its first line of comment says, its fields, its figures."""
    return {path.stem: _config(path) for path in sorted(CONFIGS.glob("*.yaml"))}


def _config(path: Path) -> dict:
    text = path.read_text()
    says = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        says.append(line.removeprefix("#").strip())
    figures = sorted((DOCS / "gallery" / path.stem).glob("*.png"))
    return {
        "says": " ".join(says),
        "fields": yaml.safe_load(text),
        "figures": [figure.relative_to(DOCS).as_posix() for figure in figures],
    }


def significant(number: float, digits: int = 3) -> str:
    """The number with so many digits that count, and no exponent below a million."""
    text = f"{number:.{digits}g}"
    return text if "e" not in text else f"{float(text):.0f}" if 1 <= number < 1e6 else text


def render(app, docname, source):
    if source[0].startswith("{#"):
        for path in (*DOCS.glob("summaries/*.json"), *CONFIGS.glob("*.yaml")):
            app.env.note_dependency(str(path))
        environment = jinja2.Environment(
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters["sig"] = significant
        source[0] = environment.from_string(source[0]).render(
            runs=runs(),
            configs=configs(),
            notebooks=sorted(path.stem for path in DOCS.glob("notebooks/*.py")),
            pages={
                path.name: _title(path) for path in sorted(Path(app.outdir).glob("pages/*.html"))
            },
        )


def _title(page: Path) -> str:
    found = re.search("<title>(.*?)</title>", page.read_text(), re.DOTALL)
    return found.group(1).strip() if found else page.stem


def write_pages(app):
    """Of each config that has one `pages/NAME.html`, as `python -m experiments page` does."""
    folder = Path(app.outdir) / "pages"
    shutil.rmtree(folder, ignore_errors=True)  # those of configs that are no more
    for name, config in configs().items():
        if config["fields"]["study"] in PAGES:
            out = folder / f"{name}.html"
            if main(["page", str(CONFIGS / f"{name}.yaml"), "--out", str(out)]):
                raise ExtensionError(f"no page was made of {name}")


def setup(app):
    app.connect("source-read", render)
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
