"""Benchmarks: contenders agree or fail, and missing ones are reported; no time is asserted."""

import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from least_squares import local_polynomial
from marks import needs_finufft
from paths import CONFIGS

import attnkernel as ak
from experiments.__main__ import main
from experiments.benchmarks import attention_contenders, gcv
from experiments.benchmarks.masks import EXAMPLES, share_of_pairs

pytestmark = pytest.mark.usefixtures("blank_figures")
REGRESSION = ("n=[41]", "dim=[1, 3]", "repeats=2")
MODULES = ("length=[19]", "heads=2", "size=6", "repeats=2")
ATTENTION = ("length=[19]", "memory_length=null", "heads=2", "dim=5", "repeats=2")


@pytest.fixture
def bench(run_study, monkeypatch):
    """Runs a benchmark as if KeOps and PyTorch were not there.

    Not by None among the loaded modules: SciPy reads PyTorch's there.
    """
    load = importlib.import_module

    def import_module(name, package=None):
        if name.partition(".")[0] in ("pykeops", "torch"):
            raise ImportError(name)
        return load(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    return run_study


def assert_agree(row, *contenders):
    """The contenders of a row agree, and each has the median of its times."""
    assert row["deviation"].keys() == set(contenders)
    assert max(row["deviation"].values()) < 1e-5
    for name, seconds in row["seconds"].items():
        assert row["median"][name] == pytest.approx(np.median(seconds))


@pytest.mark.slow
def test_contenders_of_regression_agree(bench):
    run = bench("bench_regression", *REGRESSION)
    found, ratios = run.summary, {}
    assert [(row["n"], row["dim"]) for row in found["table"]] == [(41, 1), (41, 3)]
    for row in found["table"]:
        assert_agree(row, "attnkernel, Blockwise", "dense XLA", "scikit-learn")
        rates = row["giga_pairs_per_second"]
        ratios[f"n = 41, d = {row['dim']}"] = rates["attnkernel, Blockwise"] / rates["bound"]
    (keops, bound, gradient) = found["targets"]
    assert (keops["reached"], keops["worst"]) == (None, None)
    assert bound["worst"] == pytest.approx(min(ratios.values()))
    assert ratios[bound["at"]] == min(ratios.values())
    assert gradient["at_most"] == 4.0
    assert "medians of up to 2 (× attnkernel, Blockwise)" in run.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "small", "others"),
    [("attention", ATTENTION, ("jax.nn", "Equinox")), ("modules", MODULES, ("Equinox",))],
)
def test_contenders_of_attention_agree(bench, name, small, others):
    found = bench(f"bench_{name}", *small).summary
    works = [(row["causal"], row["phase"]) for row in found["table"]]
    phases = (attention_contenders.FORWARD, attention_contenders.BACKWARD)
    assert works == [(causal, phase) for causal in (False, True) for phase in phases]
    for row in found["table"]:
        assert_agree(row, "attnkernel", *others)
    assert any(target["reached"] is None for target in found["targets"])  # of what is not there


@pytest.mark.slow
def test_errors_of_attention_are_those_of_rounding(bench):
    found = bench("bench_accuracy", "length=[19]", "queries=5", "heads=2", "dim=3").summary
    for row, precision in zip(found["table"], ("float32", "bfloat16"), strict=True):
        assert (row["keys"], row["precision"]) == (19, precision)
        assert set(row["rms"]) == set(attention_contenders.JAX_CONTENDERS)
        unit = jnp.finfo(precision).eps
        for name, largest in row["largest"].items():
            assert 0.01 * unit < row["rms"][name] <= largest < 10 * unit


def test_contender_with_other_numbers_fails_the_benchmark(monkeypatch):
    contenders = attention_contenders.JAX_CONTENDERS
    monkeypatch.setitem(contenders, "jax.nn", lambda q, k, v, causal: v + 0.0 * (q + k))
    assert main(["run", str(CONFIGS / "bench_attention.yaml"), "--out", "out", *ATTENTION]) == 1
    error = Path("out/error.log").read_text()
    assert "jax.nn is" in error
    assert "away from attnkernel; expected at most 1e-04" in error


RECURRENT = ("length=[16]", "heads=2", "dim=4", "repeats=1")


@pytest.mark.slow
def test_each_layer_is_timed_in_chunks_and_by_a_scan(run_study):
    layers = ["channel decay", "gated delta"]
    table = run_study("bench_recurrent", *RECURRENT, f"layers={layers}").summary["table"]
    assert [row["layer"] for row in table] == [layer for layer in layers for _ in range(2)]
    for row in table:
        assert set(row["median"]) == {"chunks", "scan", "softmax"}
        assert 0 < row["deviation"]["scan"] < 1e-5


MASKS = ("length=64", "heads=2", "dim=4", "repeats=1")


@pytest.mark.slow
def test_each_example_is_timed_and_has_a_share_of_pairs(run_study):
    examples = ["tiled neighbourhood", "documents", "soft cap", "ALiBi"]
    table = run_study("bench_masks", *MASKS, f"examples={examples}").summary["table"]
    assert [row["example"] for row in table] == examples
    for row in table:
        is_mask = row["example"] not in ("soft cap", "ALiBi")
        assert ("jax.nn" in row["median"]) == is_mask
        assert (row["pairs"] == 1.0) == (not is_mask)
        if is_mask:
            assert row["deviation"]["jax.nn"] < 1e-4


def test_shares_of_pairs():
    for window in ("window", "sliding window"):  # 4 keys before each query
        assert share_of_pairs(EXAMPLES[window](64, 1), 64) == pytest.approx((64 * 5 - 10) / 64**2)
    assert share_of_pairs(EXAMPLES["ALiBi"](64, 2), 64) == 1.0


@pytest.mark.slow
@needs_finufft
def test_criteria_and_errors_are_those_of_numpy(x64, run_study, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastlpr", None)
    (row,) = run_study("bench_gcv", "n=[200]", "orders=[1]", "repeats=1").summary["table"]
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(2024), n=200)
    x, y = np.asarray(data.x[:, 0]), np.asarray(data.y)
    hat = local_polynomial(x, x, row["bandwidth"][gcv.OURS], 1)
    expected = np.mean((y - hat @ y) ** 2) / (1.0 - np.trace(hat) / len(x)) ** 2
    np.testing.assert_allclose(row["criterion"][gcv.OURS], expected, rtol=1e-7)
    assert row["criterion_error"][gcv.OURS] < 1e-5
    assert row["curve_error"][gcv.OURS] < 1e-5
