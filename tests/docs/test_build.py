"""The site: built once, without a warning, nothing loaded from elsewhere, no broken link. And each
page shows what its cells print and draw now."""

import os
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from paths import DOCS
from PIL import Image

PAGES = sorted(
    path.relative_to(DOCS).with_suffix("").as_posix()
    for path in (*DOCS.glob("*.md"), *DOCS.glob("api/*.md"), *DOCS.glob("notebooks/*.md"))
    if "\n```python\n" in path.read_text("utf-8")
)


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


@pytest.mark.docs
@pytest.mark.slow
def test_documentation_builds(site):
    pages = {path: Elements(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 40
    assert_nothing_is_loaded_from_elsewhere(pages, site)
    assert_links_lead_somewhere(pages)
    for name in PAGES:  # with their outputs
        of_site, of_host = (site / f"{name}.html").read_text(), (DOCS / f"{name}.md").read_text()
        assert of_site.count("highlight-output") == of_host.count("\n```output\n"), name
        assert of_site.count("<img ") >= len(re.findall(r"^!\[", of_host, re.MULTILINE)), name


@pytest.fixture(scope="module")
def run(load):
    """Executes the cells of a page, and writes its outputs into a folder."""
    write = load(DOCS / "write.py")

    def run(name, folder):
        source = write.pages.read(name)
        executed = write.start(pool, source, str(folder)).result()
        return write.pages.kept(name), write.as_markdown(name, source, executed, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPROC", "1")  # one thread: the arrays of pages are small
        # Some pages train: all took 506 CPU seconds as other tests compile, 387 so.
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
        level = "--xla_backend_optimization_level=1"
        patch.setenv("XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} {level}")
        pool = write.cells.processes(1)
    with pool:
        yield run


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_page_shows_what_its_cells_give(name, run, tmp_path):
    """After a change of the package: `python docs/write.py PAGE`."""
    kept, outputs = run(name, tmp_path)
    for (code, shown), output in zip(kept, outputs, strict=True):
        assert_alike(shown, output, code)
    for path in (tmp_path / "outputs" / name).glob("*.png"):
        shown, drawn = (
            np.asarray(Image.open(picture).convert("L").resize((40, 30)), float)
            for picture in (DOCS / path.relative_to(tmp_path), path)
        )
        assert np.abs(shown - drawn).mean() < 8, path.name


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def assert_alike(shown, output, code):
    """Equal words and equal numbers, but for rounding on other processors, and for seconds and
    versions."""
    shown, output = (re.sub(r"[\d.]+ s\b|\d+\.\d+\.\d+", "some", text) for text in (shown, output))
    # without spaces, of which arrays have more or fewer with the digits of their numbers
    words = [re.sub(r"\s", "", NUMBER.sub("#", text)) for text in (shown, output)]
    assert words[0] == words[1], code
    for number, other in zip(NUMBER.findall(shown), NUMBER.findall(output), strict=True):
        digits, _, exponent = number.partition("e")
        decimals = len(digits.partition(".")[2])
        last_digit = 10.0 ** (int(exponent or 0) - decimals) if decimals else 0.0
        tolerance = 0.05 * abs(float(number)) + last_digit + 1e-5
        assert abs(float(number) - float(other)) <= tolerance, (code, shown, output)
