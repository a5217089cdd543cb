"""Jinja templates in Markdown, whose numbers come from kept runs.

A page of `docs/` that begins with `{#` is a template; `docs/readme.py` renders README.md by the
same environment. A template reads

    runs       by config name, what `docs/keep.py` kept of a finished run
    configs    by name, each file of `configs/`: its description, its fields, its figures
    notebooks  the names of the notebooks
    faults     the results of `tests/faults/catch.py`, by package and by name
    pages      by file name, the titles of the interactive pages that the build of the site makes,
               or what their configs are about

A name that does not exist is an error.
"""

import contextlib
import functools
import io
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import jinja2
import yaml
from sphinx.errors import ExtensionError

from experiments.__main__ import main
from experiments.pages import PAGES

DOCS = Path(__file__).parents[1]
CONFIGS = DOCS.parent / "configs"
NOTEBOOKS = DOCS.parent / "experiments" / "notebooks"


@functools.cache
def runs() -> dict[str, dict]:
    """Returns each kept run by the name of its config: summary, config and machine."""
    return {
        path.stem: json.loads(path.read_text()) for path in sorted(DOCS.glob("summaries/*.json"))
    }


@functools.cache
def configs() -> dict[str, dict]:
    """Returns each config by name: its description, its fields, its figures."""
    return {path.stem: _config(path) for path in sorted(CONFIGS.glob("*.yaml"))}


def _config(path: Path) -> dict:
    text = path.read_text()
    description = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        description.append(line.removeprefix("#").strip())
    figures = sorted((DOCS / "gallery" / path.stem).glob("*.png"))
    return {
        "description": " ".join(description),
        "fields": yaml.safe_load(text),
        "figures": [figure.relative_to(DOCS).as_posix() for figure in figures],
    }


def significant(number: float, digits: int = 3) -> str:
    """The number to `digits` significant digits, without an exponent below a million."""
    text = f"{number:.{digits}g}"
    return text if "e" not in text else f"{float(text):.0f}" if 1 <= number < 1e6 else text


def fixed(number: float, decimals: int = 0) -> str:
    """The number with `decimals` digits after the point."""
    return f"{number:.{decimals}f}"


def thousands(number: float) -> str:
    """The number, rounded, with a narrow space between groups of three digits."""
    return f"{number:,.0f}".replace(",", "\u202f")


def listed(numbers: Iterable[float], decimals: int) -> str:
    """The numbers, separated by commas."""
    return ", ".join(fixed(number, decimals) for number in numbers)


def span(numbers: Iterable[float], decimals: int) -> str:
    """The smallest and the largest number: "0.95 to 0.97"."""
    numbers = list(numbers)
    return f"{fixed(min(numbers), decimals)} to {fixed(max(numbers), decimals)}"


def cell(text: str) -> str:
    """The first sentence of the text, for a cell of a table."""
    return re.match(r".*?([.?](?= |$)|$)", text).group().replace("|", r"\|")


def column(rows: Iterable[dict], *keys: str) -> list:
    """The value under the nested keys, for each row."""
    return [functools.reduce(lambda value, key: value[key], keys, row) for row in rows]


def over(numerators: Iterable[float], denominators: Iterable[float]) -> list[float]:
    """Quotients of two lists, element by element."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


FILTERS = {
    "sig": significant,
    "fixed": fixed,
    "thousands": thousands,
    "listed": listed,
    "span": span,
    "cell": cell,
    "column": column,
    "over": over,
}


def render(template: str, pages: dict[str, str] | None = None) -> str:
    """Renders a template in Markdown; templates that it imports are in `docs/templates/`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(DOCS / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= FILTERS
    return environment.from_string(template).render(
        runs=runs(),
        configs=configs(),
        faults=json.loads((DOCS / "faults.json").read_text()),
        notebooks=sorted((path.stem for path in NOTEBOOKS.glob("*.py")), key=_number),
        pages=_described() if pages is None else pages,
    )


def _described() -> dict[str, str]:
    """Returns the first sentence about each config that has an interactive page."""
    return {
        f"{name}.html": cell(config["description"])
        for name, config in configs().items()
        if config["fields"]["study"] in PAGES
    }


def _number(notebook: str) -> int:
    """The number that the name of a notebook begins with."""
    return int(notebook.partition("_")[0])


def dependencies() -> list[Path]:
    """Returns the files that templates read."""
    return [DOCS / "faults.json", *DOCS.glob("summaries/*.json"), *CONFIGS.glob("*.yaml")]


def title(page: Path) -> str:
    """Returns the title of an interactive page."""
    found = re.search("<title>(.*?)</title>", page.read_text(), re.DOTALL)
    return found.group(1).strip() if found else page.stem


def write_pages(app):
    """Writes `pages/NAME.html` for each config that has one, and the story that links to them."""
    folder = Path(app.outdir) / "pages"
    shutil.rmtree(folder, ignore_errors=True)  # pages of configs that are gone
    for name, config in configs().items():
        if config["fields"]["study"] in PAGES:
            out = folder / f"{name}.html"
            _make("page", str(CONFIGS / f"{name}.yaml"), "--out", str(out))
    _make("explain", "--out", str(folder / "explain.html"))  # last: it links to the others


def _make(*command: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        if main(list(command)):
            raise ExtensionError(f"{' '.join(command)}: {said.getvalue()}")


def setup(app):
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
