"""Documentation without its build: pages are written from their sources and are plain Markdown,
commands can be run, links and references lead somewhere, every public name is in the reference,
notebooks are in the format of jupytext; README.md is what its template renders, is short, and its
code prints what it says; every example in a docstring of the package runs, and prints what it
says. In a block with `>>>` the printed values are compared, `...` standing for any text; a block
without `>>>` must run."""

import ast
import dis
import doctest
import inspect
import json
import operator
import re
import shlex
import textwrap
from collections import Counter
from urllib.parse import unquote, urlsplit

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest
from markdown_it import MarkdownIt
from marks import slow
from paths import CONFIGS, DOCS, ROOT

import attnkernel as ak
from experiments.__main__ import COMMANDS, main, make_parser
from experiments.config import loading as config_source
from experiments.runs import runner

SOURCE = DOCS / "source"
WRITTEN = sorted([*DOCS.glob("*.md"), *DOCS.glob("api/*.md"), *DOCS.glob("notebooks/*.md")])
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *WRITTEN]


def tokens(path):
    for token in MarkdownIt().enable("table").parse(path.read_text("utf-8")):
        yield token
        yield from token.children or ()


def test_python_code_of_pages_is_executed():
    """A block of Python is a cell, which `docs/write.py` executes; an error or a warning fails."""
    cells = 0
    for path in {*SOURCE.rglob("*.md")} - {*SOURCE.glob("notebooks/*")}:
        for token in tokens(path):
            assert token.type != "fence" or token.info not in ("python", "py", ""), path
            cells += token.type == "fence" and token.info.startswith("{code-cell}")
    assert cells > 30


def commands():
    """Each `python -m experiments ...` that is written, in kept runs too."""
    written = [
        (path.name, line.strip())
        for path in PAGES
        for token in tokens(path)
        if token.type in ("fence", "code_inline")
        for line in re.sub(r" \\?\n  |\n  ", " ", token.content).splitlines()
    ]
    for path in DOCS.glob("summaries/*.json"):
        written.append((path.name, json.loads(path.read_text())["command"]))
    for page, line in written:
        _, found, rest = line.partition("python -m experiments ")
        if found:
            yield page, rest


@pytest.mark.parametrize("sees_data", [False, slow(True)], ids=["without data", "with data"])
def test_commands_can_be_run(sees_data):
    tried = 0
    parser = make_parser()
    for command, page in {command: page for page, command in commands()}.items():
        words = shlex.split(re.sub(r"\[[^]]*\]", "", command.replace("...", " ")), comments=True)
        if len(words) == 1:  # a command's name in a sentence
            assert words[0] in COMMANDS, (page, command)
            continue
        options, rest = parser.parse_known_args(words)
        assert not [word for word in rest if word.startswith("-")], (page, command)
        if options.command == "run" and not re.search(r"\b[A-Z]{2,}\b", command):
            overrides = [*options.overrides, *rest]
            study = runner.study_of(config_source.read(ROOT / options.config, overrides))
            if sees_data:
                with runner.settings(study):
                    study.check()
            tried += 1
    assert tried > 10


def anchors(path):
    """The anchors that code hosts give the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_links_of_pages_lead_somewhere():
    for page in PAGES:
        for token in tokens(page):
            target = urlsplit(str(token.attrs.get("href") or token.attrs.get("src") or ""))
            if target.scheme or not (target.path or target.fragment):
                continue
            path = page.parent / unquote(target.path) if target.path else page
            assert path.exists(), f"{page} leads to {target.path}, which is not there"
            if target.fragment:
                assert target.fragment in anchors(path), f"{page}: no heading {target.fragment}"


def test_pages_are_plain_markdown():
    """Outside of code, no directive, role, label or template mark, and no HTML but `details`."""
    for page in PAGES:
        for token in tokens(page):
            if token.type == "fence":
                assert not token.info.startswith("{"), (page, token.info)
            elif token.type in ("text", "html_block", "html_inline"):
                assert not re.search(r"\{[\w:-]+\}$|\{[{%#]|^:::|^\(.*\)=$|\$\w", token.content), (
                    page
                )
                html = re.sub(r"</?(details|summary)>|<!--.*?-->", "", token.content)
                assert token.type == "text" or not re.search("<[a-z]", html), (page, html)


def test_pages_are_written_from_their_sources(load):
    """After a change of a source, a template, a config or a kept run: `python docs/write.py`."""
    write = load(DOCS / "write.py")
    assert README.read_text("utf-8") == write.readme()
    assert sorted(DOCS / f"{name}.md" for name in write.pages.sources()) == WRITTEN
    pictures = {path.resolve() for path in DOCS.glob("outputs/**/*.png")}
    for path in WRITTEN:
        name = path.relative_to(DOCS).with_suffix("").as_posix()
        source, kept = write.pages.read(name), write.pages.kept(name)
        assert [code for code, _ in kept] == write.pages.cells(source), name
        page = write.pages.plain(name, source, [output for _, output in kept])
        assert path.read_text("utf-8") == page, name
        for token in tokens(path):
            pictures.discard((path.parent / str(token.attrs.get("src", ""))).resolve())
    assert not pictures


def test_references_to_tests_exist():
    """`tests/FOLDER/FILE.py::NAME`, as pages name them."""
    names = set()
    for path in PAGES:
        text = "\n".join(token.content for token in tokens(path) if token.type != "fence")
        names |= set(re.findall(r"tests/([\w/]+\.py)(?:::(\w+))?", text))
    assert names
    for file, name in names:
        path = ROOT / "tests" / file
        assert path.exists(), file
        assert not name or f"def {name}(" in path.read_text(), (file, name)


def test_every_config_is_in_a_group_of_the_gallery(load):
    templates = load(DOCS / "extensions" / "templates.py")
    text = templates.render((SOURCE / "gallery.md").read_text("utf-8"))
    assert "## Other configs" not in text
    assert sorted(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == sorted(templates.configs())


def test_every_public_name_is_in_the_reference_once(load):
    listed = [
        name
        for path in SOURCE.glob("api/*.md")
        for name in re.findall(r"^\.\. auto\w+:: (\S+)$", path.read_text(), re.MULTILINE)
    ]
    public = load(DOCS / "extensions" / "names.py").public()
    assert "attnkernel.attend" in public
    assert sorted(listed) == sorted(public)


NOTEBOOKS = sorted((ROOT / "experiments" / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_the_format_of_jupytext(path):
    import jupytext  # noqa: PLC0415  2 seconds

    text = path.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    assert jupytext.writes(notebook, fmt="py:percent").rstrip("\n") == text.rstrip("\n")
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    first, *others = notebook.cells
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    headings = [cell.source for cell in others if cell.cell_type == "markdown"]
    assert not any(re.match(r"# ", source) for source in headings)
    assert "ak.plot.interact(draw, " in notebook.cells[-1].source


def names_defined_by(code):
    """The names that a cell defines for all cells: not those of its functions and handlers."""
    steps = list(dis.get_instructions(compile(code, "a cell", "exec")))
    stored, deleted = (
        {step.argval for step in steps if step.opname == f"{how}_NAME"}
        for how in ("STORE", "DELETE")
    )
    return {name for name in stored - deleted if not name.startswith("_")}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_two_cells_of_a_notebook_define_the_same_name(path):
    """Else marimo, which runs cells in the order of what they need, refuses the notebook."""
    import jupytext  # noqa: PLC0415

    cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    counts = Counter(name for code in cells for name in names_defined_by(code))
    assert [name for name, count in counts.items() if count > 1] == []
    assert not any("import *" in code or code.startswith(("%", "!")) for code in cells)


PAGE = (SOURCE / "sequence_layers.md").read_text("utf-8")


@pytest.mark.slow
def test_each_line_of_the_table_runs():
    cells = re.findall(r"^```\{code-cell\}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| ([^|`]+) \|.*\| `([^`]+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 14

    @jax.jit
    def run_lines():
        names = {}
        exec(cells[0], names)
        return names["v"], {layer: eval(line, names) for layer, line in rows}

    with jax.numpy_rank_promotion("allow"):  # as users have it
        v, found = jax.tree.map(np.asarray, run_lines())
    for layer, out in found.items():
        assert out.shape == v.shape, layer
        assert np.isfinite(out).all(), layer
    layers = list(found)
    for i, layer in enumerate(layers):  # no two lines are the same layer
        for other in layers[:i]:
            assert np.abs(found[layer] - found[other]).max() > 1e-3, (layer, other)


def test_run_is_kept_without_the_paths_of_its_machine(load, tmp_path, monkeypatch):
    keep = load(DOCS / "keep.py")
    monkeypatch.setattr(keep, "DOCS", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    out = tmp_path / "run"
    config = str(CONFIGS / "data.yaml")
    assert main(["run", config, "seed=3", "--out", str(out), "--quiet"]) == 0
    meta = json.loads((out / "meta.json").read_text())
    meta["command"] = ["main", "run", config, "seed=3", "--out", str(out), "--quiet"]
    (out / "meta.json").write_text(json.dumps(meta))
    keep.keep(out, "an abacus")
    text = (tmp_path / "docs" / "summaries" / "data.json").read_text()
    kept = json.loads(text)
    assert kept["command"] == "python -m experiments run configs/data.yaml seed=3"
    assert kept["device"] == "an abacus"
    assert kept["summary"] == json.loads((out / "summary.json").read_text())
    assert str(tmp_path) not in text
    assert str(ROOT) not in text
    (out / "status.json").write_text(json.dumps({"state": "failed", "reason": "it was"}))
    with pytest.raises(SystemExit, match="not a finished run"):
        keep.keep(out, None)


README = ROOT / "README.md"


def test_readme_is_short_and_begins_with_code():
    text = README.read_text("utf-8")
    assert len(text.splitlines()) <= 120
    (code,) = (t for t in MarkdownIt().parse(text) if (t.type, t.info) == ("fence", "python"))
    assert code.map[1] <= 40
    assert code.content.rstrip().endswith("plt.show()")


def test_readme_has_two_commands():
    """`.ci/run` finds them by these words."""
    lines = README.read_text("utf-8").splitlines()
    commands = [line for line in lines if line.startswith("python3 -m venv ")]
    assert len(commands) == 2
    assert "-m experiments run configs/" in commands[0]
    assert commands[1].endswith("-m pytest -q -n 2")


NAMES = {"ak": ak, "eqx": eqx, "jax": jax, "jnp": jnp, "np": np, "optax": optax, "plt": plt}
FENCED = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef


def has_example(text):
    return ">>>" in text or "```python" in text


def docstrings_with_examples():
    """Yields the path, the qualified name and the docstring of everything that has an example."""
    for path in sorted((ROOT / "attnkernel").rglob("*.py")):
        module = path.relative_to(ROOT / "attnkernel").as_posix()
        stack = [(ast.parse(path.read_text("utf-8")), "")]
        while stack:
            node, name = stack.pop()
            text = ast.get_docstring(node) or ""
            if has_example(text):
                yield pytest.param(text, id=f"{module}:{name}".rstrip(":"))
            for child in node.body:
                if isinstance(child, DOCUMENTED):
                    stack.append((child, f"{name}.{child.name}".lstrip(".")))


def run(text):
    """Runs the examples of a docstring one after the other, with the same names; returns how many
    blocks and printed lines there are."""
    names = NAMES.copy()
    blocks = [block for _, block in FENCED.findall(text) if ">>>" not in block]
    for block in blocks:
        exec(textwrap.dedent(block), names)
    without_fences = re.sub(r"^ *```.*$", "", text, flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(without_fences, names, "example", None, None)
    report = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
    lines = runner.run(test, out=report.append).attempted
    assert not report, "".join(report)
    return len(blocks) + lines


@pytest.mark.slow
@pytest.mark.parametrize("text", list(docstrings_with_examples()))
def test_example_runs(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    assert run(text) > 0
    plt.close("all")


def test_every_public_class_and_function_has_an_example(load):
    public = load(ROOT / "docs" / "extensions" / "names.py").public()
    parts = {name: operator.attrgetter(name.partition(".")[2])(ak) for name in public}
    documented = {
        name: part.__doc__ or ""
        for name, part in parts.items()
        if inspect.isfunction(part) or (inspect.isclass(part) and not issubclass(part, Exception))
    }
    assert "attnkernel.kernels.Radial" in documented
    assert [name for name, text in documented.items() if not has_example(text)] == []
