"""Benchmarks: contenders agree or fail, and missing ones are reported; no time is asserted."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from paths import CONFIGS

from attnkernel import Causal
from experiments.__main__ import main
from experiments.benchmarks import attention_contenders, modules, regression

pytestmark = pytest.mark.usefixtures("blank_figures")
REGRESSION = ("n=[41]", "dim=[1, 3]", "repeats=2")
MODULES = ("length=[13, 19]", "heads=2", "size=6", "repeats=2")
ATTENTION = ("length=[19]", "memory_length=null", "heads=2", "dim=5", "repeats=2")


@pytest.fixture
def bench(run_study, monkeypatch):
    """Runs a benchmark as if some packages were not there."""

    def run(name, *overrides, without):
        for module in without:
            monkeypatch.setitem(sys.modules, module, None)
        return run_study(name, *overrides)

    return run


@pytest.mark.slow
def test_contenders_of_regression_agree(bench):
    run = bench("bench_regression", *REGRESSION, without=["pykeops.numpy"])
    found = run.summary
    assert [(row["n"], row["dim"]) for row in found["table"]] == [(41, 1), (41, 3)]
    for row in found["table"]:
        assert row["deviation"].keys() == {"attnkernel, Blockwise", "dense XLA", "scikit-learn"}
        assert max(row["deviation"].values()) < 1e-5
        assert all(len(seconds) == 2 for seconds in row["seconds"].values())
        rates, spent = row["giga_pairs_per_second"], row["median"]
        for name in row["deviation"]:
            assert rates[name] == pytest.approx(41**2 / spent[name] / 1e9)
        bounds = [1024**2 / spent[name] / 1e9 for name in regression.BOUNDS]
        assert rates["bound"] == pytest.approx(max(bounds))
    (keops, bound, gradient) = found["targets"]
    assert (keops["reached"], keops["worst"]) == (None, None)
    ratios = {
        f"n = 41, d = {row['dim']}": row["giga_pairs_per_second"]["attnkernel, Blockwise"]
        / row["giga_pairs_per_second"]["bound"]
        for row in found["table"]
    }
    assert bound["worst"] == pytest.approx(min(ratios.values()))
    assert ratios[bound["at"]] == min(ratios.values())
    assert gradient["at_most"] == 4.0
    assert "(× attnkernel, Blockwise; ~: extrapolated)" in run.output


def test_upper_bounds_compute_sums_of_exponentials():
    a = np.linspace(0.0, 1.0, 6, dtype=np.float32)
    expected = np.exp(-np.multiply.outer(a, a)).sum(axis=1)
    both = jax.jit(lambda a: (regression.exp_and_sum(a), regression.exp_and_sum_in_blocks(a)))
    for found in both(a):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes", "contenders"),
    [
        (
            "bench_regression",
            REGRESSION,
            {"KeOps": "pykeops.numpy", "scikit-learn": "sklearn.metrics.pairwise"},
        ),
        ("bench_attention", ATTENTION, {"PyTorch": "torch"}),
        ("bench_modules", MODULES, {"PyTorch": "torch"}),
    ],
)
@pytest.mark.slow
def test_missing_contenders_are_reported(bench, name, sizes, contenders):
    run = bench(name, *sizes, without=contenders.values())
    found = run.summary
    for contender, module in contenders.items():
        sentence = f"{module.partition('.')[0]}: not installed"
        for row in found["table"]:
            assert row["unavailable"][contender].startswith(sentence)
            assert contender not in row["median"]
        named = [note for note in found["notes"] if note.startswith(f"no {contender} ({sentence}")]
        assert len(named) == 1
        assert f"note: {named[0]}" in run.output


@pytest.mark.slow
def test_contenders_that_need_too_much_memory_are_reported(bench):
    tiny = ("n=[41]", "dim=[2]", "repeats=1", "max_memory_gib=2e-6")
    run = bench("bench_regression", *tiny, without=["pykeops.numpy"])
    (row,) = run.summary["table"]
    assert row["unavailable"]["dense XLA"].startswith("needs ")
    assert row["unavailable"]["scikit-learn"].startswith("needs a matrix of")


@pytest.mark.slow
def test_contenders_of_attention_agree(bench):
    found = bench("bench_attention", *ATTENTION, without=["torch"]).summary
    works = [(row["causal"], row["phase"]) for row in found["table"]]
    phases = (attention_contenders.FORWARD, attention_contenders.BACKWARD)
    assert works == [(causal, phase) for causal in (False, True) for phase in phases]
    for row in found["table"]:
        assert row["deviation"].keys() == {"attnkernel", "jax.nn", "Equinox"}
        assert max(row["deviation"].values()) < 1e-5
    by_name = {row["target"]: row for row in found["targets"]}
    causal = by_name["causal, in times of full"]
    times = [row["median"]["attnkernel"] for row in found["table"]]
    assert causal["worst"] == pytest.approx(max(times[2] / times[0], times[3] / times[1]))
    assert by_name["times as fast as jax.nn, T = 4096"]["reached"] is None


@pytest.mark.slow
def test_contenders_of_modules_agree(bench):
    found = bench("bench_modules", *MODULES, without=["torch"]).summary
    phases = (modules.FORWARD, modules.BACKWARD)
    works = [(row["length"], row["causal"], row["phase"]) for row in found["table"]]
    assert works == [(n, c, phase) for n in (13, 19) for c in (False, True) for phase in phases]
    for row in found["table"]:
        assert row["deviation"].keys() == {"attnkernel", "Equinox"}
        assert max(row["deviation"].values()) < 1e-5
        assert all(len(seconds) == 2 for seconds in row["seconds"].values())
        for name, seconds in row["seconds"].items():
            assert row["median"][name] == pytest.approx(sum(seconds) / 2)
    (times,) = found["targets"]
    ratios = {
        f"T = 19, {'causal' if row['causal'] else 'full'} + backward": row["median"]["Equinox"]
        / row["median"]["attnkernel"]
        for row in found["table"]
        if row["length"] == 19 and row["phase"] == modules.BACKWARD
    }
    assert times["values"] == pytest.approx(ratios)
    assert times["worst"] == pytest.approx(min(ratios.values()))
    assert times["reached"] == (min(ratios.values()) >= 3)


def assert_disagrees(name, overrides, contender):
    """The benchmark fails, since a contender has other numbers than attnkernel."""
    assert main(["run", str(CONFIGS / f"{name}.yaml"), "--out", "out", *overrides]) == 1
    error = Path("out/error.log").read_text()
    assert f"{contender} is" in error
    assert "away from attnkernel; expected at most 1e-04" in error


@pytest.mark.slow
def test_module_with_another_mask_fails_the_benchmark(monkeypatch):
    monkeypatch.setattr(modules.ak, "Causal", lambda: Causal(1))
    assert_disagrees("bench_modules", MODULES, "Equinox")


def test_contender_with_other_numbers_fails_the_benchmark(monkeypatch):
    monkeypatch.setitem(
        attention_contenders.JAX_CONTENDERS, "jax.nn", lambda q, k, v, causal: v + 0.0 * (q + k)
    )
    assert_disagrees("bench_attention", ATTENTION, "jax.nn")


@pytest.mark.slow
@pytest.mark.cli
def test_sweep_agrees_with_runs_in_processes_of_their_own(run_study):
    sizes = ("seeds=2", "hold_out=[2, 5]", "n=23", "repeats=1")
    run = run_study("bench_sweep", *sizes, "training.optimizer=sgd", "training.steps=7")
    (row,) = run.summary["table"]
    assert row["members"] == 4
    assert [len(seconds) for seconds in row["seconds"].values()] == [1, 1]
    assert row["deviation"] < 1e-9
    assert "extrapolated" in run.output


@pytest.mark.slow
def test_bench_gpu_reports_missing_devices_and_checks_the_rest(run_study):
    jobs = "jobs=[{score: Gaussian, dim: 3}, {score: attention, dim: 8, dim_v: 5}]"
    run = run_study("bench_gpu", "n=[128]", "matrix=64", "repeats=1", jobs)
    said = "no Fused, bfloat16 (Fused cannot evaluate this: it runs on NVIDIA's GPUs"
    assert said in run.output
    rows = run.summary["table"]
    assert len(rows) == 2 * 2  # jobs, phases
    for row in rows:
        assert len(row["error"]) == 4  # contenders of any device
        for contender, error in row["error"].items():
            assert error < (0.05 if "bfloat16" in contender else 2e-5)
        assert row["operations"] == (
            128**2 * {"forward": 8, "+ backward": 30}[row["phase"]]
            if "Gaussian" in row["job"]
            else 128 * 129 / 2 * {"forward": 26, "+ backward": 94}[row["phase"]]
        )
