"""The study of bandwidth selection, at small sizes; its criterion against a loop."""

import sys

import numpy as np
import pytest

from experiments.benchmarks.selection import PEERS, count, criterion, small_sample

TINY = ("n=[20, 30]", "dims=[1]", "starts=2", "repeats=1", "samples=12")


def hide(monkeypatch, *names):
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def test_criterion_equals_leave_one_out_in_a_loop():
    rng = np.random.default_rng(0)
    x, y, h = rng.uniform(size=(301, 2)), rng.normal(size=301), np.array([0.2, 0.5])
    errors = []
    for i in range(301):
        others = np.arange(301) != i
        weights = np.exp(-0.5 * (((x[i] - x[others]) / h) ** 2).sum(axis=1))
        errors.append(weights @ y[others] / weights.sum() - y[i])
    np.testing.assert_allclose(criterion(x, y, h), np.mean(np.square(errors)), rtol=1e-12)


@pytest.mark.slow
def test_optimum_equals_that_of_statsmodels_and_is_inside_the_bounds(run_study, monkeypatch):
    hide(monkeypatch, "kerneljax", "hessband")
    run = run_study("bench_selection", *TINY)
    summary = run.summary
    for row, n in zip(summary["table"], (20, 30), strict=True):
        bandwidth = row["bandwidth"]
        assert row["n"] == n
        np.testing.assert_allclose(bandwidth["attnkernel"], bandwidth["statsmodels"], rtol=1e-2)
        assert row["criterion_above_ours"]["statsmodels"] > -1e-8
    of_statsmodels, of_kerneljax, _ = summary["targets"]
    slower = row["median"]["statsmodels"] / row["median"]["attnkernel"]
    assert of_statsmodels["values"] == {"n = 30, d = 1": slower}
    assert of_kerneljax["reached"] is None
    ours = summary["small_samples"][0]
    assert (ours["contender"], ours["run"], ours["errors"]) == ("attnkernel", 12, 0)
    assert ours["not finite"] == ours["not positive"] == ours["outside"] == 0
    for end in ("png", "pdf", "npz"):
        assert (run.directory / f"figures/bench_selection.{end}").is_file()


@pytest.mark.slow
def test_missing_libraries_are_reported_without_numbers(run_study, monkeypatch):
    hide(monkeypatch, "kerneljax", "statsmodels.nonparametric.kernel_regression")
    run = run_study("bench_selection", *TINY, "samples=0", "n=[20]")
    (row,) = run.summary["table"]
    assert row["median"].keys() == {"attnkernel"}
    assert row["extrapolated"] == {}
    for name, note in zip(PEERS, run.summary["notes"], strict=True):
        assert note.startswith(f"no {name} ({name}: not installed")
        assert run.output.count(note) == 1
    assert run.output.count("not measured") == len(PEERS)


@pytest.mark.slow
def test_invalid_bandwidths_are_counted():
    x = np.linspace(0.0, 1.0, 11)[:, None]
    results = [np.array([h]) for h in (0.2, -0.2, 0.0, np.nan, 100.0)] + [None]
    counted = count("it", [(x, x[:, 0])] * 7, results)
    kinds = {"errors": 1, "not finite": 1, "not positive": 2, "outside": 1}
    assert counted == {"contender": "it", "run": 6} | kinds


@pytest.mark.parametrize("dim", [1, 2])
def test_small_samples_have_ties_outliers_and_a_constant_label(dim):
    samples = [small_sample(np.random.default_rng(i), 8, dim, 6 * i) for i in range(5)]
    ties, outliers, constant = samples[1], samples[2], samples[3]
    assert len(np.unique(ties[0][:, 0])) < 8
    assert np.ptp(outliers[0]) > 1e3 * np.ptp(samples[0][0])
    assert 0 < np.ptp(constant[1]) < 1e-10
    for x, y in samples:
        assert x.shape == (8, dim)
        assert np.ptp(x[:, 0]) > 0
        assert np.ptp(y) > 0
