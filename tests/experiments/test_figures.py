"""Figures of studies are legible: axes labelled, lines told apart without colour, light and dark.

`run_study` checks the figures of every study that another file runs, too.
"""

import matplotlib as mpl
import pytest
from marks import slow

import attnkernel as ak
from experiments.benchmarks.selection import BenchSelection
from experiments.reports.figures import smoothing_verdicts

STUDIES = {
    ("data", "light"): [],
    ("data", "dark"): [],
    ("lengthscales", "dark"): [],
    ("holdout", "dark"): ["data.n=20", "training.steps=5"],
    ("heads", "dark"): ["data.n=20", "training.steps=5"],
}


@pytest.mark.parametrize(
    ("name", "style"),
    [slow(*case, id=" ".join(case)) for case in STUDIES],
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


@pytest.mark.slow
def test_titles_of_a_study_state_its_findings(run_study):
    figures = run_study("lengthscales", "lengthscales=[3.0, 0.25, 0.05]").figures
    titles = [ax.get_title() for ax in figures["lengthscales"].axes]
    assert titles == [
        "ℓ = 3: oversmoothed",
        "ℓ = 0.25: lowest error",
        "ℓ = 0.05: undersmoothed",
    ]


def test_smoothing_is_judged_by_the_minimum_error():
    nan = float("nan")
    found = smoothing_verdicts([0.1, 0.2, 0.3, 0.4, 0.5], [1.2, 1.0, 1.04, nan, 1.06])
    as_good, missing = "as good within 5 %", "no leave-one-out error"
    assert found == ["undersmoothed", "lowest error", as_good, missing, "oversmoothed"]
    assert smoothing_verdicts([0.1, 0.2], [nan, nan]) == [missing, missing]
    assert smoothing_verdicts([0.1], [0.25]) == ["error 0.25"]


def test_panel_of_a_benchmark_names_the_fastest_other_contender():
    study = BenchSelection(study="bench_selection")
    median = {"attnkernel": 0.2, "kerneljax": 0.5, "statsmodels": 3.0}
    assert study.finding({"median": median}) == "kerneljax: 2.5 × the time of attnkernel"
    assert study.finding({"median": {"attnkernel": 0.2}}) == ""
