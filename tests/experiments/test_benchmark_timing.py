"""The driver of benchmarks: comparison of arrays, timing, extrapolation, memory, targets; the
benchmark of first calls: what it measures in fresh processes, and how it is tabulated."""

import functools
import shutil
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from outputs import read_json
from paths import CONFIGS

import attnkernel as ak
from experiments.__main__ import main
from experiments.benchmarks import attention_contenders, driver, latency
from experiments.benchmarks.fresh_process import Latency
from experiments.benchmarks.r_scripts import timed_script
from experiments.benchmarks.reports import target
from experiments.runs.monitor import NO_MONITOR


@pytest.mark.parametrize("wrong", [1.0 + 1e-3, np.nan])
def test_agreement_compares_every_array(wrong):
    ours = (np.ones((3, 2)), np.array([1e-3, 1.0]))
    near = (np.ones((1, 3, 2)), np.array([2e-5 + 1e-3, 1.0]))
    found = driver.agreement({"ours": ours, "near": near}, "ours", 1e-4)
    assert found == {"ours": 0.0, "near": pytest.approx(2e-5)}
    with pytest.raises(driver.Disagreement, match="other is"):
        driver.agreement({"ours": ours, "other": (ours[0], np.array([1e-3, wrong]))}, "ours", 1e-4)


def test_contenders_are_interleaved_after_one_warm_call_each():
    calls = []
    contenders = {name: lambda name=name: calls.append(name) or name for name in "ab"}
    first, seconds, results = driver.interleaved(contenders, 2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert results == {"a": "a", "b": "b"}
    assert {name: len(spent) for name, spent in seconds.items()} == {"a": 2, "b": 2}
    assert first.keys() == {"a", "b"}


def test_sizes_that_would_take_too_long_are_not_run():
    def case(n):
        contenders = {
            "cubic": lambda: lambda: driver.SelfTimed((n / 20) ** 3, n),
            "linear": lambda: lambda: driver.SelfTimed(n / 20, n),
        }
        fields = {"n": n, "kind": "a"}
        return driver.Case(
            fields, f"n = {n}", contenders, lambda found, row: {"found": sorted(found)}
        )

    cases = [lambda n=n: case(n) for n in (20, 40, 80, 160)]
    rows = driver.measure(NO_MONITOR, cases, 1, along="n", max_run_seconds=20.0)
    assert [row["found"] for row in rows] == 2 * [["cubic", "linear"]] + 2 * [["linear"]]
    assert [row["label"] for row in rows] == ["n = 20", "n = 40", "n = 80", "n = 160"]
    for row, seconds in zip(rows[2:], (64, 512), strict=True):
        assert row["unavailable"] == {"cubic": f"would take {seconds} s, by its smaller sizes"}
    # rows that differ in another field do not count; through one row goes the square
    assert driver.extrapolate(rows, {"n": 40, "kind": "b"}, "n", "cubic") == 0.0
    found = driver.extrapolate(rows[:1], {"n": 40, "kind": "a"}, "n", "linear")
    assert found == pytest.approx(4.0)


def test_memory_of_a_program_is_known_before_it_runs():
    x = np.ones((16, 16), np.float32)

    def outer(x):
        return jnp.sort((x.ravel()[:, None] * x.ravel()[None, :]), axis=1)[:, 0]

    np.testing.assert_allclose(driver.compiled(outer, x)(), np.ones(16**2))
    with pytest.raises(driver.Unavailable, match="more than"):
        driver.compiled(outer, x, max_bytes=4 * 16**4 - 1)


@pytest.mark.slow
@pytest.mark.cli
def test_memory_of_one_call():
    ones = ("float32", functools.partial, np.ones, 2**23)
    first, later = driver.in_fresh_process(driver.growth_of_calls, *ones)
    # the system counts pages core by core: a total is some hundred pages early or late
    assert (abs(first - 2**26) < 2**22, later > 2**25) == (True, True)
    sizes, call = (2, 19, 5, 0), attention_contenders.one_call
    with pytest.raises(driver.Unavailable, match="needs "):
        driver.growth_of_calls("float32", call, "jax.nn", False, "forward", sizes, 1)


def test_target_is_judged_by_its_worst_value():
    values = {"here": 3.0, "there": 5.0}
    low, high = target("a", 4.0, values), target("b", 5.0, values, at_most=True)
    assert (low["at"], high["at"]) == ("here", "there")
    assert (low["reached"], high["reached"], target("c", 1.0, {})["reached"]) == (False, True, None)


pytestmark = pytest.mark.usefixtures("blank_figures")
CONFIG = str(CONFIGS / "bench_latency.yaml")
SMALL = ("repeats=1", "length=8", "rows=300", "fits=6")
CALLS = latency.make_calls(8, 300, 6)
CONTENDERS = (latency.OURS, latency.EQUINOX)


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

    def measure(contender, script, env):
        started.append((script.call, contender, env.get("JAX_COMPILATION_CACHE_DIR")))
        return Latency(float(len(started)), 0.5, 3, 0, (1.0,))

    monkeypatch.setattr(latency, "measure", measure)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    return started


def test_contenders_are_interleaved_and_a_process_fills_each_cache(run, measured):
    rows, targets, printed = run("attention", "repeats=2")
    (fill, fill_other), rounds = measured[:2], measured[2:]
    each = [(contender, is_cached) for is_cached in (False, True) for contender in CONTENDERS]
    assert [(contender, bool(folder)) for _, contender, folder in rounds] == 2 * each
    assert fill == rounds[2] == rounds[6]
    assert fill_other == rounds[3]
    assert fill[2] != fill_other[2]
    assert not Path(fill[2]).exists()
    row = rows["attention"]
    ends = [*CONTENDERS, *(contender + latency.CACHED for contender in CONTENDERS)]
    assert row["seconds"] == {end: [3 + i, 7 + i] for i, end in enumerate(ends)}
    assert row["wall"][latency.OURS] == 0.5
    assert row["compiled"][latency.OURS] == 3
    assert [one["worst"] for one in targets] == pytest.approx([5 / 6, 7 / 8])
    assert [one["at_most"] for one in targets] == [3.0, 2.0]
    assert [one["at"] for one in targets] == [row["label"], row["label"] + latency.CACHED]
    assert "medians of 2 processes" in printed


def test_missing_contenders_are_reported(run, measured, monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels.nonparametric.kernel_regression", None)
    monkeypatch.setitem(sys.modules, "statsmodels.nonparametric.smoothers_lowess", None)
    rows, _, printed = run("predict")
    assert rows["predict"]["median"].keys() == {latency.OURS, latency.OURS + latency.CACHED}
    reasons = rows["predict"]["unavailable"]
    assert reasons.keys() == {"statsmodels", "statsmodels, lowess"} | latency.R_PACKAGES.keys()
    assert reasons["statsmodels, lowess"].startswith("statsmodels: not installed")
    assert "no R: np (Rscript: not installed)" in printed


def test_scripts_of_python_can_be_compiled():
    for call in CALLS.values():
        for one in call.contenders.keys() - latency.R_PACKAGES.keys():
            compile("\n".join(call.contenders[one][:2]), one, "exec")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "contender"),
    [
        pytest.param(name, one, marks=pytest.mark.needs_r(latency.R_PACKAGES[one]))
        for name in CALLS
        for one in CALLS[name].contenders
        if one in latency.R_PACKAGES
    ],
)
def test_scripts_of_r_run(name, contender):
    data = ak.data.load("cps71")
    x, y = np.asarray(data.x, float)[:, 0], np.asarray(data.y, float)
    script = CALLS[name].contenders[contender]
    found, _ = timed_script(latency.R_PACKAGES[contender], script, x, y)()
    assert all(0 <= seconds < 60 for seconds in (found.cpu, found.wall))


@pytest.mark.slow
@pytest.mark.cli
def test_first_calls_are_measured_in_fresh_processes(run, monkeypatch):
    calls = {}
    for name in ("predict", "memory"):
        ours = CALLS[name].contenders[latency.OURS]
        calls[name] = CALLS[name]._replace(contenders={latency.OURS: ours})
    monkeypatch.setattr(latency, "make_calls", lambda *_: calls)
    rows, targets, _ = run(", ".join(calls))
    predict, ours, cached = rows["predict"], latency.OURS, latency.OURS + latency.CACHED
    assert predict["compiled"][ours] == predict["loaded"][cached] > 0
    assert predict["compiled"][cached] == predict["loaded"][ours] == 0
    assert predict["median"][ours] > predict["median"][cached] > 0
    assert rows["memory"]["growth"][latency.OURS] >= 1.0
    assert len(targets) == 2 + 1
