"""The built documentation: no warning, all notebooks executed, nothing loaded from elsewhere, no
broken link. It is built once."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from paths import ROOT

BUILD = "-m sphinx -q -W --keep-going -n docs docs/_build/html"
NOTEBOOKS = sorted((ROOT / "experiments" / "notebooks").glob("*.py"))


class Elements(HTMLParser):
    """The files that a page loads, the targets of its links, and its anchors."""

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


def assert_nothing_is_loaded_from_elsewhere(pages, site):
    for path, page in pages.items():
        for target in page.loads:
            parts = urlsplit(target)
            if parts.scheme != "data":
                assert not parts.scheme + parts.netloc, f"{path} loads {target}"
                assert (path.parent / unquote(parts.path)).exists(), f"{path} loads {target}"
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(\s*|@import\s+)['\"]?(https?:)?//", path.read_text()), path


def assert_links_lead_somewhere(pages):
    for path, page in pages.items():
        for target in page.links:
            parts = urlsplit(target)
            if parts.scheme or not (parts.path or parts.fragment):
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            assert to.exists(), f"{path} links to {target}"
            if parts.fragment and to in pages:
                assert unquote(parts.fragment) in pages[to].anchors, f"{path} links to {target}"


def assert_notebook_was_executed(page):
    """It printed numbers, and its last cell drew a figure."""
    text = page.read_text()
    printed = re.findall(r'class="output stream.*?<pre>(.*?)</pre>', text, re.DOTALL)
    assert re.search(r"\d\.\d", re.sub("<.*?>", "", "".join(printed))), page
    assert "<img" in text.split('class="cell docutils')[-1], page


@pytest.mark.docs
@pytest.mark.slow
def test_documentation_builds(tmp_path):
    assert f"python {BUILD}" in (ROOT / "CONTRIBUTING.md").read_text()
    site = tmp_path / "html"
    done = subprocess.run(
        [sys.executable, *BUILD.replace("docs/_build/html", str(site)).split()],
        cwd=ROOT,
        # one thread: the arrays of pages are small
        env=os.environ | {"PYTHONPATH": str(ROOT), "NPROC": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for path in NOTEBOOKS:
        assert_notebook_was_executed(site / "notebooks" / f"{path.stem}.html")
    pages = {path: Elements(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 40
    assert_nothing_is_loaded_from_elsewhere(pages, site)
    assert_links_lead_somewhere(pages)
