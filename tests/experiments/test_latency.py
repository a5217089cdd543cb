"""The benchmark of first calls: what it measures in fresh processes, and how it is tabulated."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from outputs import read_json
from paths import CONFIGS

import attnkernel as ak
from experiments.__main__ import main
from experiments.benchmarks import latency
from experiments.benchmarks.first_calls import EQUINOX, LOWESS, OURS, STATSMODELS, make_calls
from experiments.benchmarks.fresh_process import Latency
from experiments.benchmarks.latency import CACHED
from experiments.benchmarks.r_scripts import KERNSMOOTH, LOCFIT, NP, PACKAGES, SCRIPTS, timed_script

pytestmark = pytest.mark.usefixtures("blank_figures")
CONFIG = str(CONFIGS / "bench_latency.yaml")
SMALL = ("repeats=1", "length=8", "rows=300", "fits=6")


@pytest.fixture
def run(capsys):
    """Runs some calls of the benchmark: its summary by call, its targets, and what it printed."""

    def run(calls, *overrides):
        command = ["run", CONFIG, "--out", "out", f"calls=[{calls}]", *SMALL, *overrides]
        assert main(command) == 0
        summary = read_json("out/summary.json")
        rows = {row["call"]: row for row in summary["table"]}
        return rows, summary["targets"], capsys.readouterr().out

    return run


@pytest.fixture
def measured(monkeypatch):
    """No process is started: a call takes 1, 2, ... CPU seconds. Returns the calls and folders."""
    started = []

    def measure(name, contender, sizes, env):
        started.append((name, contender, env.get("JAX_COMPILATION_CACHE_DIR")))
        return Latency(float(len(started)), 0.5, 3, 0, (1.0,))

    monkeypatch.setattr(latency, "measure", measure)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    return started


def test_contenders_are_interleaved_and_a_process_fills_each_cache(run, measured):
    rows, targets, printed = run("attention", "repeats=2")
    (fill, fill_other), rounds = measured[:2], measured[2:]
    assert [(contender, bool(folder)) for _, contender, folder in rounds] == 2 * [
        (OURS, False),
        (EQUINOX, False),
        (OURS, True),
        (EQUINOX, True),
    ]
    assert fill == rounds[2] == rounds[6]
    assert fill_other == rounds[3]
    assert fill[2] != fill_other[2]
    assert not Path(fill[2]).exists()
    row = rows["attention"]
    assert row["seconds"] == {OURS: [3, 7], EQUINOX: [4, 8], OURS + CACHED: [5, 9]} | {
        EQUINOX + CACHED: [6, 10]
    }
    assert row["wall"][OURS] == 0.5
    assert row["compiled"][OURS] == 3
    assert [one["worst"] for one in targets] == pytest.approx([5 / 6, 7 / 8])
    assert [one["at_most"] for one in targets] == [3.0, 2.0]
    assert [one["at"] for one in targets] == [row["label"], row["label"] + CACHED]
    assert "medians of 2 processes" in printed


def test_goals_are_of_programs_seconds_and_cpu_seconds(run, measured):
    _, targets, _ = run("predict, another_n, sklearn_fit")
    goals = [(one["target"], one["worst"], one["reached"]) for one in targets]
    assert goals == [
        ("CPU seconds", 2.0, False),
        ("CPU seconds", 5.0, False),
        ("seconds", 0.5, True),
        ("seconds", 0.5, True),
        ("programs", 3.0, False),
    ]


def test_missing_contenders_are_reported(run, measured, monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels.nonparametric.kernel_regression", None)
    monkeypatch.setitem(sys.modules, "statsmodels.nonparametric.smoothers_lowess", None)
    rows, _, printed = run("predict")
    assert rows["predict"]["median"].keys() == {OURS, OURS + CACHED}
    reasons = rows["predict"]["unavailable"]
    assert reasons.keys() == {STATSMODELS, LOWESS, NP, KERNSMOOTH, LOCFIT}
    assert reasons[LOWESS].startswith("statsmodels: not installed")
    assert "no R: np (Rscript: not installed)" in printed


def test_call_without_its_package_has_no_numbers(run, measured, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    rows, targets, _ = run("sklearn_fit")
    assert rows["sklearn_fit"]["median"] == {}
    assert [one["reached"] for one in targets] == [None, None]


def test_scripts_of_r_belong_to_calls():
    assert SCRIPTS.keys() <= make_calls(8, 300, 6).keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "contender"),
    [
        pytest.param(name, one, marks=pytest.mark.needs_r(PACKAGES[one]))
        for name in SCRIPTS
        for one in SCRIPTS[name]
    ],
)
def test_scripts_of_r_run(name, contender):
    data = ak.data.load("cps71")
    x, y = np.asarray(data.x, float)[:, 0], np.asarray(data.y, float)
    found = timed_script(contender, SCRIPTS[name][contender], x, y)()
    assert 0 <= found.cpu < 60
    assert 0 <= found.wall < 60


@pytest.mark.slow
@pytest.mark.cli
def test_first_calls_are_measured_in_fresh_processes(run):
    rows, targets, _ = run("import, predict, another_grid, attention, large_fit, memory")
    predict = rows["predict"]
    assert predict["compiled"][OURS] == predict["loaded"][OURS + CACHED] > 0
    assert predict["compiled"][OURS + CACHED] == predict["loaded"][OURS] == 0
    assert predict["median"][OURS] > predict["median"][OURS + CACHED] > 0
    assert rows["import"]["compiled"] == {OURS: 0}
    assert rows["another_grid"]["compiled"] == {OURS: 0}
    assert max(rows["attention"]["deviation"].values()) < 1e-5
    assert rows["memory"]["growth"][OURS] >= 1.0
    assert len(targets) == 1 + 2 + 1 + 2 + 1 + 1
