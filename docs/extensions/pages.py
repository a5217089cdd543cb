r"""Pages as plain Markdown: what a code host shows of `docs/NAME.md`, from `docs/source/NAME.md`.

A source is Markdown of MyST, or a Jinja template, or a notebook of `experiments/notebooks/`. Its
links to files are relative to `docs/`, where its page is. In a page each cell is followed by what
it printed and drew, in fences named `output` and in pictures of `docs/outputs/`. The site is built
from the sources, with the outputs of the pages: `docs/write.py` alone executes cells.

Formulas are written $`...`$ and in fences named `math`. GitHub reads `\,`, `\\` and `\{` between
dollar signs as Markdown, and drops the backslash (github/markup#1746).
"""

import functools
import inspect
import posixpath
import re
from pathlib import Path

import jupytext
import names
import templates
from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
NOTEBOOKS = ROOT / "experiments" / "notebooks"
HEADER = "<!-- `python docs/write.py` writes this page from {} -->\n\n"

_LINES = re.MULTILINE | re.DOTALL
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?:---\n(.*?)^---\n)?(.*?)^```$", _LINES)
DIRECTIVE = re.compile(r"^```\{([\w-]+)\} ?([^\n]*)\n(.*?)^```$", _LINES)
# a cell of a page, and what follows it
EXECUTED = re.compile(
    r"^```python\n(.*?)^```$(?:\n\n</details>$)?"
    r"((?:\n\n```output\n.*?^```$|\n\n!\[[^\n]*\]\([./]*outputs/[^\n]*\)$)*)",
    _LINES,
)
PICTURE = re.compile(r"(!\[[^\n]*?\]\()(?!\w+:)")
CODE_OR_MATH = re.compile(r"^```.*?^```$|(`+)[^`].*?\1|\$\$(.+?)\$\$|\$([^$]+)\$", _LINES)
EMBEDDED = re.compile(r'<iframe [^>]*src="pages/(\w+)\.html"[^>]*title="([^"]*)"></iframe>')


@functools.cache
def sources() -> dict[str, Path]:
    """Returns the source of each page by the page's name, such as `notebooks/000_ten_minutes`."""
    folder = DOCS / "source"
    pages = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted([*folder.glob("*.md"), *folder.glob("api/*.md")])
    }
    return pages | {f"notebooks/{path.stem}": path for path in sorted(NOTEBOOKS.glob("*.py"))}


def read(name: str, pages: dict[str, str] | None = None) -> str:
    """Returns the source in MyST: a notebook converted, a template rendered, a definition of
    the package included."""
    path = sources()[name]
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        text = jupytext.writes(jupytext.reads(text, fmt="py:percent"), fmt="md:myst")
        text = re.sub(r"\A---\n.*?^---\n+|^\+\+\+[^\n]*\n\n?", "", text, flags=_LINES)
    if text.startswith("{#"):
        text = templates.render(text, pages)
    return DIRECTIVE.sub(_include, text)


def _include(found: re.Match) -> str:
    directive, file, options = found.groups()
    if directive != "literalinclude":
        return found.group()
    analyzer = ModuleAnalyzer.for_file((DOCS / file).resolve(), "")
    analyzer.analyze()
    _, first, last = analyzer.tags[re.search(":pyobject: (.*)", options).group(1)]
    lines = analyzer.code.splitlines()[first - 1 : last]
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(["```py", *(line[indent:] for line in lines), "```"])


def cells(source: str) -> list[str]:
    """Returns the code of each cell."""
    return [code for _, code in CELL.findall(source)]


def kept(name: str) -> list[tuple[str, str]]:
    """Returns the cells of the page as it is now, with the Markdown of what each gave."""
    path = DOCS / f"{name}.md"
    return EXECUTED.findall(path.read_text("utf-8")) if path.exists() else []


def with_outputs(source: str, of_cells: list[str]) -> str:
    """Returns the source with each cell as a block of Python, followed by its outputs."""
    remaining = iter(of_cells)

    def fill(found):
        options, code = found.groups()
        block = f"```python\n{code}```"
        if "hide-input" in (options or ""):
            block = f"<details><summary>Show the code</summary>\n\n{block}\n\n</details>"
        return block + next(remaining)

    return CELL.sub(fill, source)


def plain(name: str, source: str, of_cells: list[str]) -> str:
    """Returns the page of this name, from what `read` returns and these outputs of its cells."""
    text = with_outputs(source, of_cells)
    text = DIRECTIVE.sub(lambda found: _directive(name, *found.groups()), text)
    parts = re.split(r"(^```.*?^```$)", text, flags=_LINES)  # every second is a block of code
    parts[::2] = [_prose(name, part) for part in parts[::2]]
    text = with_math("".join(parts)).strip()
    return HEADER.format(sources()[name].relative_to(ROOT)) + text + "\n"


def _prose(name: str, text: str) -> str:
    """Returns text without what only Sphinx understands."""
    text = re.sub(r"^:::\{container\}.*?^:::$", "", text, flags=_LINES)  # thumbnails
    text = EMBEDDED.sub(_command_of_page, text)
    text = re.sub(r'<a href="pages/[^>]*>.* on its own\.</a>\s', "", text)
    text = re.sub(r'<a href="pages/[^>]*>(.*?)</a>', r"\1", text)
    text = re.sub(r"^\([\w-]+\)=\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\{(\w+)\}`([^`]*)`", lambda found: _role(name, *found.groups()), text)
    return re.sub(r"\n{3,}", "\n\n", text)


def with_math(text: str) -> str:
    """Returns the text with its formulas as a code host needs them."""

    def write(found):
        _, display, inline = found.groups()
        if display:
            return f"```math\n{display.strip()}\n```"
        return f"$`{' '.join(inline.split())}`$" if inline else found.group()

    return CODE_OR_MATH.sub(write, text)


def _command_of_page(found: re.Match) -> str:
    name, title = found.groups()
    if name == "explain":  # its command follows in the source
        return ""
    command = f"python -m experiments page configs/{name}.yaml"
    return f"{title}. This command writes the page:\n\n```sh\n{command}\n```"


def _directive(name: str, directive: str, argument: str, body: str) -> str:
    """Returns what stands in the page for a directive: a list of links to pages, or to the sources
    of public names."""
    if directive == "eval-rst":
        return "\n".join(map(_described, re.findall(r"^\.\. auto\w+:: (\S+)$", body, re.MULTILINE)))
    if directive != "toctree":
        return ""
    caption = re.search(":caption: (.*)", body)
    links = [_link(name, entry) for entry in body.splitlines() if entry in sources()]
    if caption:
        return f"**{caption.group(1)}**: {', '.join(links)}."
    return "\n".join(f"- {link}" for link in links)


def _described(public_name: str) -> str:
    """Returns a link to the source of a public name, with the first sentence of its docstring."""
    thing, _ = names.defined(public_name)
    name = public_name.replace("attnkernel", "ak", 1)
    if not callable(thing):
        return f"- `{name}`"
    paragraph = " ".join(inspect.getdoc(thing).partition("\n\n")[0].split())
    sentence = re.match(r".*?\.(?= |$)|.*", paragraph).group().rstrip(":")
    return f"- [`{name}`](../../{thing.__module__.replace('.', '/')}.py): {sentence}"


def _role(name: str, role: str, target: str) -> str:
    if role == "doc":
        return _link(name, posixpath.normpath(posixpath.join(posixpath.dirname(name), target)))
    if role == "ref":
        page, heading = labels()[target]
        return f"[{heading}]({page}.md#{anchor(heading)})"
    if role == "source":
        thing, part = names.defined(target)
        return f"[`{part}`](../{thing.__module__.replace('.', '/')}.py)"
    raise ExtensionError(f"{name}: the role {role} has no form in plain Markdown")


def _link(name: str, target: str) -> str:
    """Returns a link from one page to another."""
    path = sources()[target]
    heading = "^# # (.*)$" if path.suffix == ".py" else "^# (.*)$"
    title = re.search(heading, path.read_text("utf-8"), re.MULTILINE)
    return f"[{title.group(1)}]({posixpath.relpath(target, posixpath.dirname(name) or '.')}.md)"


@functools.cache
def labels() -> dict[str, tuple[str, str]]:
    """Returns the page and the heading that follow each label `(label)=`."""
    return {
        label: (name, heading)
        for name, path in sources().items()
        for label, heading in re.findall(r"^\(([\w-]+)\)=\n+#+ (.*)$", path.read_text(), re.M)
    }


def anchor(heading: str) -> str:
    """Returns the anchor that code hosts give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def fill_for_site(app, docname, source):
    """Replaces a source that Sphinx has read: its cells by blocks with the outputs of the page."""
    if docname not in sources():
        return
    made = sorted(Path(app.outdir).glob("pages/*.html"))
    text = read(docname, {path.name: templates.title(path) for path in made})
    for path in (DOCS / f"{docname}.md", *templates.dependencies()):
        app.env.note_dependency(str(path))
    executed = kept(docname)
    if [code for code, _ in executed] != cells(text):
        raise ExtensionError(f"{docname} has other cells than its page: run `python docs/write.py`")
    text = with_outputs(text, [output for _, output in executed])
    source[0] = PICTURE.sub(r"\1../", text)


def setup(app):
    app.connect("source-read", fill_for_site)
    return {"parallel_read_safe": True}
