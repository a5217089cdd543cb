"""Fixtures of the tests of experiments: runs of studies, legible figures, blank figures."""

import contextlib
import functools
import io
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from paths import CONFIGS

from experiments.__main__ import main
from experiments.runs.directory import Run
from experiments.runs.runner import load
from experiments.sweeps import sweep

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def save_blank(self, path, **_):
    """In place of `Figure.savefig`: an empty file."""
    Path(path).write_bytes(b"")


@pytest.fixture(scope="module")
def blank_figures():
    """Figures are saved as empty files: for tests that read no picture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save_blank)
        yield


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, request):
    """The current directory: empty, but for what the module of the test lists as FILES."""
    monkeypatch.chdir(tmp_path)
    for name, text in getattr(request.module, "FILES", {}).items():
        Path(name).write_text(text)
    return tmp_path


class StudyRun(NamedTuple):
    """A run of a study: its `summary.json`, its directory and its figures by name."""

    summary: dict[str, Any]
    directory: Path
    figures: dict[str, Figure]

    @property
    def output(self) -> str:
        """What the run printed."""
        return (self.directory / "output.log").read_text("utf-8")

    def arrays(self, figure: str) -> dict[str, np.ndarray]:
        """The arrays that a figure shows."""
        with np.load(self.directory / "figures" / f"{figure}.npz") as arrays:
            return dict(arrays)


@pytest.fixture(scope="session")
def run_study(tmp_path_factory):
    """Runs a shipped config with overrides, and checks that each of its figures is legible.

    `pictures`: whether figures are written, and not as empty files.
    """

    def run(name, *overrides, style="light", pictures=False):
        directory = tmp_path_factory.mktemp(name) / "run"
        command = ["run", str(CONFIGS / f"{name}.yaml"), "--quiet", "--out", str(directory)]
        figures, keep = {}, Run.figure

        def figure(self, title, figure, **arrays):
            figures[title] = figure
            keep(self, title, figure, **arrays)
            figure.draw_without_rendering()  # labels of ticks are known once they are drawn

        with pytest.MonkeyPatch.context() as patch:
            if not pictures:
                patch.setattr(Figure, "savefig", save_blank)
            patch.setattr(Run, "figure", figure)
            assert main([*command, *overrides, f"style={style}"]) == 0
        for title, drawn in figures.items():
            assert_legible(drawn, style, f"{name}, {title}")
        summary = json.loads((directory / "summary.json").read_text())
        return StudyRun(summary, directory, figures)

    return run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The directory of the run of a config, which is made once."""

    @functools.cache
    def run(text, *overrides):
        folder = tmp_path_factory.mktemp("finished")
        (folder / "c.yaml").write_text(text)
        out = ["--out", str(folder / "run"), "--quiet"]
        assert main(["run", str(folder / "c.yaml"), *overrides, *out]) == 0
        return folder / "run"

    return run


@pytest.fixture
def member_processes_in_process(monkeypatch):
    """The processes that a sweep starts for its members run in this one, one after the other."""
    lock = threading.Lock()

    def run(command, **_):
        assert command[:3] == [sys.executable, "-m", "experiments"]
        out, err = io.StringIO(), io.StringIO()
        with lock, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(command[3:])
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    monkeypatch.setattr(sweep, "subprocess", SimpleNamespace(run=run))


# --- configs ---


@pytest.fixture
def error_of(capsys):
    """What a wrong command prints, with exit code 2 and nothing else."""

    def read_error(*command):
        capsys.readouterr()
        assert main([*map(str, command)]) == 2
        out, err = capsys.readouterr()
        assert (out, "Traceback" in err) == ("", False)
        return err

    return read_error


@pytest.fixture
def resolved():
    """A config in the current directory as it is after reading it, with overrides."""

    def resolve(text, *overrides):
        Path("config.yaml").write_text(text, encoding="utf-8")
        return load(Path("config.yaml"), list(overrides))

    return resolve


@pytest.fixture
def errors_of(error_of):
    """The lines that `show` prints for a wrong config."""

    def read_errors(content, *overrides):
        data = content if isinstance(content, bytes) else content.encode()
        Path("config.yaml").write_bytes(data)
        return error_of("show", "config.yaml", *overrides).splitlines()

    return read_errors


# --- legible figures ---


def luminance(color):
    """Relative luminance (WCAG 2: guidelines for accessibility of web content)."""
    parts = np.asarray(to_rgb(color))
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast_ratio(first, second):
    """The contrast ratio of WCAG 2, from 1 to 21."""
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(name="contrast_ratio")
def contrast_ratio_fixture():
    return contrast_ratio


def is_labelled(ax, axis):
    """Whether the numbers along an axis have a label, there or at the edge of the grid."""
    side = getattr(ax, f"{axis}axis")
    texts = [tick.label1.get_text() for tick in side.get_major_ticks() if tick.label1.get_visible()]
    words = [re.sub(r"\\[a-z]+", "", text) for text in texts]  # \\mathdefault is no word
    if all(any(letter.isalpha() for letter in text) for text in words if text):
        return True  # no ticks, or ticks that are words
    place = ax.get_subplotspec()
    spans = {"x": "colspan", "y": "rowspan"}
    same_column_or_row = [
        one
        for one in ax.figure.axes
        if place is not None
        and (other := one.get_subplotspec()) is not None
        and other.get_gridspec() is place.get_gridspec()
        and set(getattr(other, spans[axis])) & set(getattr(place, spans[axis]))
    ]
    return any(getattr(one, f"get_{axis}label")() for one in [ax, *same_column_or_row])


def assert_legible(figure, style, name):
    """Axes are labelled; lines stand out from the background and differ without colour."""
    assert (luminance(figure.get_facecolor()) > 0.9) == (style == "light")
    for ax in figure.axes:
        where = f"{name}, {ax.get_title()!r}"
        assert not ax.has_data() or (is_labelled(ax, "x") and is_labelled(ax, "y")), where
        # one line of each label: a line may be drawn in several panels
        by_label = {line.get_label(): line for line in ax.lines}
        lines_of_look = {}
        for label, line in by_label.items():
            if label.startswith("_"):
                continue
            face = line.get_markerfacecolor()
            hollow = face == "none" or to_rgb(face) == to_rgb(ax.get_facecolor())
            look = (line.get_linestyle(), line.get_marker(), hollow, line.get_linewidth())
            lines_of_look.setdefault(look, []).append(line)
            assert contrast_ratio(line.get_color(), ax.get_facecolor()) > 1.9, where
        for alike in lines_of_look.values():
            # L* from 0 to 100, the grey in a print without colour
            lights = np.array([max(luminance(line.get_color()), 0.0089) for line in alike])
            greys = np.sort(116.0 * np.cbrt(lights) - 16.0)
            labels = [line.get_label() for line in alike]
            assert min(np.diff(greys), default=100.0) > 12, f"{where}: {labels} are one grey"


# --- pages in a browser ---


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on the path; on Debian: apt install chromium")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_file(browser):
    """Opens an HTML file; fails on any message of its console and on anything that it loads."""
    messages, contexts = [], []

    def opened(path, view="", size=(1200, 900), **options):
        viewport = dict(zip(("width", "height"), size, strict=True))
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()

        def own(url):
            return url.partition("#")[0] == path.as_uri()

        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: own(request.url) or messages.append(request.url))
        page.goto(path.as_uri() + view)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not messages


@pytest.fixture(scope="session")
def story_file(site):
    """The page of the story."""
    return site / "pages" / "explain.html"


@pytest.fixture
def open_story(open_file, story_file):
    """Opens the story; `view`: the part of the address after #."""
    return lambda view="", **options: open_file(story_file, f"#{view}" if view else "", **options)
