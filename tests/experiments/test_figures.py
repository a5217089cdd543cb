"""Laws of figures: axes labelled, lines told apart without colour, legible on light and dark."""

import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb

import attnkernel as ak
from experiments.__main__ import main
from experiments.results import Run

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = {
    "data": [],
    "lengthscales": [],
    "holdout": ["training.steps=5"],
    "heads": ["training.steps=5"],
    "cps71": ["starts=1", "grid=20"],
    "boundary": ["n=2000", "lengthscales=[0.04, 0.08]"],
    "derivation": [],
    "temperature": ["steps=5", "draws=5", "points=11"],
    "retrieval_rule": ["trials=1", "points=11"],
    "sentence": [],
    "cache": ["lengths=[16, 32]", "repeats=2", "compared=20", "window=8", "size=8"],
    "zoo": ["lengths=[16, 32]", "repeats=1", "counts=[4, 8]", "window_of_cost=4", "dim=4"],
    "seeds": ["seeds=4", "training.steps=5"],
}


def luminance(color):
    """Relative luminance, by the guidelines for accessibility of web content."""
    parts = np.asarray(to_rgb(color))
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def lightness(color):
    """L* of a colour, from 0 to 100: what greyscale keeps of it."""
    return 116.0 * np.cbrt(max(luminance(color), 0.0089)) - 16.0


def contrast(first, second):
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.fixture
def figures(monkeypatch):
    """Figures of a study, as it hands them over."""
    found = {}
    kept = Run.figure

    def figure(self, name, figure, **arrays):
        found[name] = figure
        kept(self, name, figure, **arrays)

    monkeypatch.setattr(Run, "figure", figure)
    return found


def labelled(ax, axis):
    """Whether numbers along an axis are said to be something, there or at the edge of the grid."""
    side = getattr(ax, f"{axis}axis")
    texts = [tick.label1.get_text() for tick in side.get_major_ticks() if tick.label1.get_visible()]
    words = [re.sub(r"\\[a-z]+", "", text) for text in texts]  # \\mathdefault is none
    if all(any(letter.isalpha() for letter in text) for text in words if text):
        return True  # no ticks, or words that speak for themselves
    place = ax.get_subplotspec()
    spans = {"x": "colspan", "y": "rowspan"}
    near = [
        one
        for one in ax.figure.axes
        if place is not None
        and (other := one.get_subplotspec()) is not None
        and other.get_gridspec() is place.get_gridspec()
        and set(getattr(other, spans[axis])) & set(getattr(place, spans[axis]))
    ]
    return any(getattr(one, f"get_{axis}label")() for one in [ax, *near])


@pytest.mark.parametrize(("name", "style"), [*zip(SMALL, ["light", "dark"] * 7, strict=False)])
def test_figures_of_studies(name, style, figures, tmp_path):
    config = str(CONFIGS / f"{name}.yaml")
    words = [config, *SMALL[name], f"style={style}", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["run", *words]) == 0
    assert figures
    for title, figure in figures.items():
        assert (luminance(figure.get_facecolor()) > 0.9) == (style == "light")
        for ax in figure.axes:
            where = f"{name}, {title}, {ax.get_title()!r}"
            assert not ax.has_data() or (labelled(ax, "x") and labelled(ax, "y")), where
            # one of each label: the same thing may be drawn twice
            labels = {line.get_label(): line for line in ax.lines}
            lines = [line for label, line in labels.items() if not label.startswith("_")]
            looks = {}
            for line in lines:
                face = line.get_markerfacecolor()
                hollow = face == "none" or to_rgb(face) == to_rgb(ax.get_facecolor())
                look = (line.get_linestyle(), line.get_marker(), hollow, line.get_linewidth())
                looks.setdefault(look, []).append(line)
                assert contrast(line.get_color(), ax.get_facecolor()) > 1.9, where
            for alike in looks.values():
                greys = sorted(lightness(line.get_color()) for line in alike)
                names = [line.get_label() for line in alike]
                assert min(np.diff(greys), default=100.0) > 12, f"{where}: {names} are one grey"


def test_colours_stand_out_from_light_and_dark():
    for style in (ak.plot.STYLE, ak.plot.DARK):
        with mpl.rc_context(style):
            assert contrast(ak.plot.ink(), ak.plot.paper()) > 12
            for color in (ak.plot.GREY, ak.plot.BLUE, ak.plot.ORANGE, ak.plot.GREEN):
                assert contrast(color, ak.plot.paper()) > 3
            for color in (ak.plot.PURPLE, ak.plot.SKY):  # lighter: lines, never text
                assert contrast(color, ak.plot.paper()) > 2
