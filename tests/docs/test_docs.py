"""What is written about the package: its code runs, its links lead somewhere, its site is whole."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from PIL import Image

from experiments import runner
from experiments.__main__ import _COMMANDS, _parser, main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
BUILD = "-m sphinx -q -W --keep-going -n docs docs/_build/html"


def module(path):
    """A module of the documentation, which is no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def tokens(path):
    for token in MarkdownIt().enable("table").parse(path.read_text()):
        yield token
        yield from token.children or ()


def text_of(path):
    return "\n".join(token.content for token in tokens(path) if token.type != "fence")


def test_the_code_of_the_readme_runs(tmp_path):
    """All blocks in order in one namespace, each at its own lines of the page."""
    blocks = [t for t in tokens(ROOT / "README.md") if t.type == "fence" and t.info == "python"]
    assert len(blocks) >= 3
    script = ""
    for block in blocks:
        script += "\n" * (block.map[0] + 1 - script.count("\n")) + block.content
    (tmp_path / "README.md").write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "error", "README.md"],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_code_of_the_documentation_is_run_by_its_build():
    """A block that is to be Python is a cell; the build runs each, and an error or a warning in
    one fails it (`test_the_site`)."""
    cells = 0
    for path in DOCS.rglob("*.md"):
        for token in tokens(path):
            assert token.type != "fence" or token.info not in ("python", "py", ""), path
            cells += token.type == "fence" and token.info.startswith("{code-cell}")
    assert cells > 30


def commands():
    """Each `python -m experiments ...` that is written, of kept runs too."""
    written = [
        (path.name, line.strip())
        for path in [*(ROOT / page for page in PAGES), *DOCS.glob("*.md")]
        for token in tokens(path)
        if token.type in ("fence", "code_inline")
        for line in token.content.replace("\n  ", " ").splitlines()
    ]
    for path in DOCS.glob("summaries/*.json"):
        written.append((path.name, json.loads(path.read_text())["command"]))
    for page, line in written:
        _, found, rest = line.partition("python -m experiments ")
        if found and "{{" not in line:
            yield page, rest


def test_commands_can_be_run():
    tried = 0
    for page, command in commands():
        words = shlex.split(re.sub(r"\[[^]]*\]", "", command.replace("...", " ")), comments=True)
        if len(words) == 1:  # the name of a command, in a sentence
            assert words[0] in _COMMANDS, (page, command)
            continue
        options, rest = _parser().parse_known_args(words)
        assert not [word for word in rest if word.startswith("-")], (page, command)
        if options.command == "run" and not re.search(r"\b[A-Z]{2,}\b", command):
            runner.load(ROOT / options.config, [*options.overrides, *rest])
            tried += 1
    assert tried > 10


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page):
    for token in tokens(ROOT / page):
        target = urlsplit(str(token.attrs.get("href") or token.attrs.get("src") or ""))
        if target.scheme or not (target.path or target.fragment):
            continue
        path = ROOT / (unquote(target.path) or page)
        assert path.exists(), f"{page} leads to {target.path}, which is not there"
        if target.fragment:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings]
            assert target.fragment in slugs, f"{page}: {path.name} has no heading {target.fragment}"


def test_tests_that_are_named_are_there():
    names = set()
    for path in DOCS.glob("*.md"):
        names |= set(re.findall(r"tests/(\w+\.py)(?:::(\w+))?", text_of(path)))
    assert len(names) > 20
    for file, name in names:
        assert f"def {name}" in (ROOT / "tests" / file).read_text(), (file, name)


def test_every_public_name_is_in_the_reference_once():
    listed = [
        name
        for path in DOCS.glob("api/*.md")
        for name in re.findall(r"^\.\. auto\w+:: (\S+)$", path.read_text(), re.MULTILINE)
    ]
    public = module(DOCS / "extensions" / "names.py").public()
    assert "attnkernel.attend" in public
    assert sorted(listed) == sorted(public)


class Elements(HTMLParser):
    """Of a page: what it loads, where it links to, and what can be linked to."""

    def __init__(self, page):
        super().__init__()
        self.loads, self.links, self.anchors = set(), set(), set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "author"):
            self.loads.add(given.get("href", ""))
        self.loads |= {given[name] for name in ("src", "srcset", "data", "poster") if name in given}
        self.loads |= set(re.findall(r"url\(['\"]?([^'\")]+)", given.get("style", "")))


def test_the_site(tmp_path):
    """It builds without a warning, loads nothing from elsewhere, and its links lead somewhere."""
    assert f"python {BUILD}" in (ROOT / "CONTRIBUTING.md").read_text()
    site = tmp_path / "html"
    done = subprocess.run(
        [sys.executable, *BUILD.replace("docs/_build/html", str(site)).split()],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for path in (ROOT / "experiments" / "notebooks").glob("*.py"):  # it ran, to its last figure
        text = (site / "notebooks" / f"{path.stem}.html").read_text()
        assert "<img" in text.split('class="cell docutils')[-1], path
    pages = {path: Elements(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 40
    for path, page in pages.items():
        for target in page.loads:
            parts = urlsplit(target)
            if parts.scheme != "data":
                assert not parts.scheme + parts.netloc, f"{path} loads {target}"
                assert (path.parent / unquote(parts.path)).exists(), f"{path} loads {target}"
        for target in page.links:
            parts = urlsplit(target)
            if parts.scheme or not (parts.path or parts.fragment):
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            assert to.exists(), f"{path} links to {target}"
            if parts.fragment and to in pages:
                assert unquote(parts.fragment) in pages[to].anchors, f"{path} links to {target}"
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(\s*|@import\s+)['\"]?(https?:)?//", path.read_text()), path


def test_a_run_is_kept_without_the_paths_of_its_machine(tmp_path, monkeypatch):
    keep = module(DOCS / "keep.py")
    monkeypatch.setattr(keep, "DOCS", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    out = tmp_path / "run"
    config = str(ROOT / "configs" / "data.yaml")
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
    (figure,) = (tmp_path / "docs" / "gallery" / "data").glob("*.png")
    assert figure.stat().st_size <= keep.MOST
    with Image.open(figure) as image:
        assert image.mode == "P"
    status = {"state": "failed", "reason": "it was"}
    (out / "status.json").write_text(json.dumps(status))
    with pytest.raises(SystemExit, match="is not a finished run"):
        keep.keep(out, None)
