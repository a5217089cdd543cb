"""Studies of kernel regression, against asymptotic theory, loops, and other libraries."""

import math
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from least_squares import left_out
from marks import needs_finufft

import attnkernel as ak
from experiments.benchmarks import growth, selection
from experiments.benchmarks.r_scripts import kernsmooth
from experiments.benchmarks.regressors import Fitted
from experiments.config.registry import STUDIES
from experiments.studies import additive
from experiments.studies.boundary import predicted

# f(x) = sin(2x + ½): its slope at 0, and its second derivatives at 0 and ½
SLOPE = 2 * math.cos(0.5)
CURVATURE = {"boundary": -4 * math.sin(0.5), "interior": -4 * math.sin(1.5)}


@pytest.mark.slow
def test_bias_and_variance_at_a_boundary_equal_the_asymptotic_ones(run_study):
    overrides = ("n=5000", "kernels=[gaussian]", "lengthscales=[0.005, 0.01, 0.02]", "points=2")
    found = run_study("boundary", *overrides, style="dark").summary
    h, half, boundary_moments = 0.005, 0.5 * 0.005**2, (math.pi - 4) / (math.pi - 2)
    bias = {
        (0, "boundary"): h * SLOPE * math.sqrt(2 / math.pi) + half * CURVATURE["boundary"],
        (0, "interior"): half * CURVATURE["interior"],
        (1, "boundary"): half * CURVATURE["boundary"] * boundary_moments,
        (1, "interior"): half * CURVATURE["interior"],
    }
    variance = {"boundary": 1 / math.sqrt(math.pi), "interior": 0.5 / math.sqrt(math.pi)}
    for row in found["rows"]:
        case = row["order"], row["place"]
        np.testing.assert_allclose(row["predicted_bias"][0], bias.pop(case), rtol=1e-9)
        assert row["ratio"] == pytest.approx([1.0] * 3, abs=0.08)
        assert row["ratio"][0] == pytest.approx(1.0, abs=0.02)
        assert row["power"] == pytest.approx(1 if case == (0, "boundary") else 2, abs=0.05)
        if case != (1, "boundary"):
            assert row["variance"][0] == pytest.approx(variance[case[1]], rel=2e-3)
    assert not bias


@pytest.mark.slow
def test_asymptotic_bias_and_variance_of_the_epanechnikov_kernel(x64):
    """At the boundary the moments of 1 - u² are μ = 2/3, 1/4, 2/15, 1/12; variances: the book's."""
    at, h = np.array([0.0, 0.5]), 0.01
    curvature_bias = 0.5 * h**2 * np.array(list(CURVATURE.values()))
    constant, linear = (predicted("epanechnikov", order, h, at) for order in (0, 1))
    slope_bias = np.array([h * SLOPE * 3 / 8, 0.0])
    np.testing.assert_allclose(constant, [slope_bias + curvature_bias / 5, [1.2, 0.6]], rtol=1e-9)
    np.testing.assert_allclose(linear[0], curvature_bias * [-11 / 95, 1 / 5], rtol=1e-9)
    np.testing.assert_allclose(linear[1], [4.4980, 0.6], rtol=1e-4)


TINY = (
    *("folds=2", "orders=[0]", "iterations=[1, 4]", "starts=2", "restarts=0", "repeats=1"),
    *("max_seconds=100.0", "data=[{source: bundled, name: ethanol}]"),
    "contenders=[attnkernel, 'attnkernel, bias reduced', statsmodels lc, kerneljax lc, ridge]",
)
OURS = ["attnkernel", "attnkernel, bias reduced"]
PEERS = STUDIES["peers"](study="peers", data=[{"source": "bundled", "name": "ethanol"}])


@pytest.mark.slow
def test_peers_are_compared_and_missing_ones_reported(run_study, monkeypatch):
    monkeypatch.setitem(sys.modules, "kerneljax", None)
    found = run_study("peers", *TINY).summary
    (row,) = found["table"]
    folds = row["folds"]
    assert list(row["median"]) == [*OURS, "statsmodels lc", "ridge"]
    # the same estimator, criterion and folds
    theirs = folds["statsmodels lc"]
    assert folds["attnkernel"]["error"] == pytest.approx(theirs["error"], rel=0.01)
    assert row["chosen"]["attnkernel"].startswith("local constant, 0.0156")
    reduced = row["chosen"]["attnkernel, bias reduced"]
    assert reduced.startswith("local constant, 4 iterations of bias reduction, 0.03")
    for name in OURS:
        assert 0.85 < folds[name]["coverage"] <= 1.0
    assert "coverage" not in theirs
    for name in row["median"]:
        assert folds[name]["over_best"] >= 1.0
        assert len(row["seconds"][name]) == 1
    assert any("kerneljax lc (kerneljax: not installed" in note for note in found["notes"])


def test_each_row_is_predicted_by_a_fit_without_its_fold():
    def fit(x, y):
        def predict(at, level):
            assert not np.isin(at, x).any()
            return 2.0 * at[:, 0], at[:, 0] - level, at[:, 0] + level

        return Fitted(predict, "")

    x = np.random.default_rng(0).normal(size=(13, 1))
    found = PEERS._predict_left_out(fit, x, x[:, 0], np.arange(13)[::-1] % 5)
    expected = [2.0 * x[:, 0], x[:, 0] - 0.95, x[:, 0] + 0.95]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_coverage_is_the_share_of_inputs_inside_the_band(run_study):
    sizes = ("data_sets=3", "batch=2", "n=40", "points=5", "draws=20", "starts=1")
    study = run_study("coverage", "designs=[boundary]", "orders=[0]", *sizes)
    found, arrays = study.summary, study.arrays("coverage")
    for row in found["methods"]:
        assert (row["design"], row["order"]) == ("boundary", 0)
        if row["worst"] is None:  # simultaneous bands: a share of three data sets
            assert 3 * row["coverage"] == pytest.approx(round(3 * row["coverage"]))
            continue
        _, share = arrays[f"1: {row['method']}"]
        assert share.shape == (5,)
        assert row["coverage"] == pytest.approx(share.mean())
        assert row["worst"] == pytest.approx(share.min())
    # intervals of a new label are wider than bands of the mean; corrected bands than naive ones
    width = {row["method"]: row["width"] for row in found["methods"]}
    assert width["naive"] < width["corrected"] < width["corrected, everywhere"]
    assert width["naive, everywhere"] < width["conformal"]


def test_means_of_more_columns_are_their_formulas():
    x = np.array([[0.25, 0.75, 0.5, 0.2, 0.4, 0.9]])
    found = {name: additive.mean_of(name, x)[0] for name in additive.MEANS}
    common = 10 * 0.2 + 5 * 0.4
    product = 10 * math.sin(math.pi * 0.25 * 0.75)
    expected = {"additive": 5.0 - 5.0, "product": product, "pure interaction": -5.0}
    assert found == pytest.approx({name: common + value for name, value in expected.items()})


@pytest.mark.slow
def test_a_sum_of_curves_follows_an_additive_mean(run_study):
    parts = "rows=[60]", "dims=[5]", "data_sets=2", "test_rows=50"
    rows = {row["mean"]: row for row in run_study("additive", *parts).summary["errors"]}
    assert rows["additive"]["additive"] < 0.5 * rows["additive"]["gradient boosting"]
    assert rows["additive"]["additive"] < 0.5 * rows["additive"]["surface"]
    # an interaction without effects along the columns is not followed: its sd is 2.5
    assert rows["pure interaction"]["additive"] > 2.0


@pytest.mark.slow
def test_modelling_the_noise_helps_where_it_grows(run_study):
    sizes = ("data_sets=6", "batch=6", "n=80", "points=21", "hold_out=16", "steps=60")
    found = run_study("heteroskedastic", "growth=[0.5]", "order=0", *sizes).summary
    rows = {row["method"]: row for row in found["methods"]}
    assert rows["one sd"]["error_over_one_sd"] == 1.0
    for name in ("local sd", "reweighted", "likelihood", "true weights"):
        assert rows[name]["error_of_log_sd"] < 0.75 * rows["one sd"]["error_of_log_sd"]
        assert rows[name]["log_score"] < rows["one sd"]["log_score"]
    assert rows["true weights"]["error_over_one_sd"] < 1.0


@pytest.mark.slow
def test_hypothesis_tests_reject_where_there_is_an_effect(run_study):
    sizes = ("n=60", "data_sets=10", "power_data_sets=5", "batch=5", "draws=39", "starts=1")
    cases = ("effects=[0.0, 1.5]", 'cases=["linear model"]')
    found = run_study("hypothesis_tests", *sizes, *cases).summary
    rows = {(row["lengthscale"], row["effect"]): row for row in found["rejections"]}
    assert rows["default", 0.0]["data_sets"] == 10
    assert rows["default", 0.0]["rejected"] <= 0.3
    assert rows["default", 1.5]["rejected"] == 1.0
    assert rows["default", 1.5]["expected"] is None


SELECTION = ("n=[20, 30]", "dims=[1]", "starts=2", "repeats=1", "samples=12")


def test_criterion_equals_leave_one_out_in_a_loop():
    rng = np.random.default_rng(0)
    x, y, h = rng.uniform(size=(301, 2)), rng.normal(size=301), np.array([0.2, 0.5])
    expected = np.mean((left_out(x, y, h) - y) ** 2)
    np.testing.assert_allclose(selection.criterion(x, y, h), expected, rtol=1e-12)


@pytest.mark.slow
def test_optimum_equals_that_of_statsmodels_and_is_inside_the_bounds(run_study, monkeypatch):
    for name in ("kerneljax", "hessband"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(selection, "SAMPLE_SIZES", (3, 8))  # a program each
    run = run_study("bench_selection", *SELECTION)
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


GROWTH = ("rows=[100, 200]", "dims=[1]", "tokens=[37, 64]", "repeats=1")


@pytest.mark.slow
@needs_finufft
def test_growth_is_that_of_fits_of_the_dense_criterion(x64, run_study, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    here = lambda function, *arguments: function(*arguments)  # noqa: E731  a process is slow
    monkeypatch.setattr(growth, "in_fresh_process", here)
    for package in ("torch", "pykeops"):
        monkeypatch.setitem(sys.modules, package, None)
    run = run_study("bench_growth", *GROWTH)
    table = run.summary["table"]
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(2024), n=200)
    start = 1.06 * jnp.std(data.x) * 200**-0.2
    kernels = (ak.Gaussian(start * factor) for factor in (1.0, 0.05, 3.0))
    model, low, high = (ak.KernelRegression(one, method=ak.methods.Dense()) for one in kernels)
    dense = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut(), bounds=(low, high), starts=1)
    np.testing.assert_allclose(table[1]["lengthscale"], dense.model.kernel.lengthscale, rtol=1e-5)
    ours = {"full", "causal", "window", "linear", "delta rule"}
    for row, names in zip(table, (*[{"fit", "prediction"}] * 2, ours, ours), strict=True):
        assert row["memory"].keys() <= names  # outside Linux, memory is unknown
        assert row["median"].keys() == names
    assert run.summary["targets"][0]["values"].keys() == {"attention, full", "attention, causal"}


def test_exponent_is_that_of_the_last_decade():
    sizes = np.array([10, 100, 1000, 10_000])
    values = np.where(sizes < 1000, 1.0, sizes**1.5)
    np.testing.assert_allclose(growth.exponent(sizes, values), 1.5)


@pytest.mark.needs_r("KernSmooth")
def test_kernsmooth_of_r_smooths_with_its_own_bandwidth():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 500)
    seconds, found = kernsmooth(x, np.sin(2 * x) + 0.1 * rng.normal(size=500))()
    assert 0 <= seconds < 60
    assert 0.01 < found.bandwidth < 0.5
    at, curve = found.curve
    middle = np.abs(at) < 1.5
    np.testing.assert_allclose(curve[middle], np.sin(2 * at[middle]), atol=0.1)
