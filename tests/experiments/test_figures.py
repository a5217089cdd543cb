"""Figures of studies are legible: axes labelled, lines told apart without colour, light and dark.

`run_study` checks the figures of every study that another file runs, too.
"""

import matplotlib as mpl
import pytest

import attnkernel as ak

STUDIES = {
    ("data", "light"): [],
    ("data", "dark"): [],
    ("lengthscales", "dark"): [],
    ("holdout", "dark"): ["data.n=20", "training.steps=5"],
    ("heads", "dark"): ["data.n=20", "training.steps=5"],
}
SLOW = {("holdout", "dark"), ("heads", "dark")}


@pytest.mark.parametrize(
    ("name", "style"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] if case in SLOW else [], id=" ".join(case))
        for case in STUDIES
    ],
)
def test_figures_of_studies(name, style, run_study):
    assert run_study(name, *STUDIES[name, style], style=style).figures


def test_colours_stand_out_from_light_and_dark(contrast_ratio):
    for style in (ak.plot.STYLE, ak.plot.DARK):
        with mpl.rc_context(style):
            assert contrast_ratio(ak.plot.ink(), ak.plot.paper()) > 12
            for color in (ak.plot.GREY, ak.plot.BLUE, ak.plot.ORANGE, ak.plot.GREEN):
                assert contrast_ratio(color, ak.plot.paper()) > 3
            for color in (ak.plot.PURPLE, ak.plot.SKY):  # lighter: lines, never text
                assert contrast_ratio(color, ak.plot.paper()) > 2
