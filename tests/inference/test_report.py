"""`summarise`: its figures against NumPy; starts, minima, bounds and warnings of a fit."""

import re

import jax
import numpy as np
import pytest
from known_fits import known_fit
from least_squares import local_polynomial
from refusals import assert_raises

import attnkernel as ak
from attnkernel.inference._report import kernel_expression, natural_parameters


def test_figures_of_a_report_equal_their_formulas(x64):
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(-2, 2, 61))
    y = np.sin(2 * x) + 0.2 * rng.normal(size=61)
    weights = rng.uniform(0.5, 2.0, 61)
    fit = known_fit(ak.KernelRegression(ak.Gaussian(0.35), order=1), x, y, weights)
    report = ak.summarise(fit, names=["age (years)"])
    hat = local_polynomial(x, x, 0.35, 1, weights=weights)
    covariance = np.cov(y, hat @ y, aweights=weights, ddof=0)
    centred = hat @ y - np.average(y, weights=weights)  # as np, about the mean of y
    about = np.average(centred**2, weights=weights)
    counts = 1 / np.sum(hat**2, axis=1)
    residual_df = np.sum(weights[:, None] * (np.eye(61) - hat) ** 2 / weights)
    left_out = (y - hat @ y) / (1 - np.diag(hat))
    expected = {
        "r_squared": covariance[0, 1] ** 2 / covariance[0, 0] / about,
        "left_out_r_squared": 1 - np.average(left_out**2, weights=weights) / covariance[0, 0],
        "residual_sd": np.sqrt(weights @ (y - hat @ y) ** 2 / weights.mean() / residual_df),
        "trace": np.trace(hat),
        "residual_df": residual_df,
        "least_count": counts.min(),
        "median_count": np.median(counts),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(report, name), value, rtol=1e-8)
    np.testing.assert_allclose(report.parameters["lengthscale of age (years)"], 0.35, rtol=1e-12)
    lines = str(report).splitlines()
    assert lines[0].split(maxsplit=1) == ["fit", "local linear, Gaussian, 61 rows"]
    assert "lengthscale of age (years)" in lines[1]
    assert any(re.match("R² +0.*, squared correlation of label and fit$", line) for line in lines)
    assert not report.warnings
    assert report.isolated_rows == report.deficient == 0
    assert (report.bounds, report.minima) == ((), ())


@pytest.mark.slow
def test_report_names_rows_alone_in_their_window_and_bounds(x64):
    x = np.r_[np.linspace(0, 1, 20), 50.0]
    y = np.sin(3 * x) + 0.1 * np.cos(40 * x)
    model = ak.KernelRegression(ak.Epanechnikov(0.2), order=1)
    narrow = [ak.KernelRegression(ak.Epanechnikov(0.2 * s), order=1) for s in (0.99, 1.01)]
    with pytest.warns(ak.FitWarning):
        fit = ak.fit(model, x, y, objective=ak.GCV(), bounds=tuple(narrow), starts=2)
    report = ak.summarise(fit)
    assert report.isolated_rows == 1
    assert report.deficient == 1
    assert "no other row in reach" in str(report)
    assert report.bounds == ("kernel.lengthscale",)
    assert (report.starts, report.at_bound) == (2, int(np.sum(fit.starts.at_bound)))
    (warning,) = report.warnings
    assert "bound" in warning
    assert f"warning: {warning}" in str(report)
    assert_raises("names must be 1, one for each column", ak.summarise, fit, names=["a", "b"])


def test_report_counts_the_rows_where_the_fit_extrapolates(x64):
    """The last row, three lengthscales from the others, weighs too little to hold the line."""
    x, y = np.r_[np.linspace(0, 1, 60), 1.4], np.r_[np.zeros(60), 1.0]
    weights = np.r_[np.ones(60), 1e-9]
    fit = known_fit(ak.KernelRegression(ak.Gaussian(0.13), order=1), x, y, weights)
    report = ak.summarise(fit)
    assert (report.deficient, report.extrapolates) == (0, 1)
    assert re.search("^extrapolates +at 1 rows$", str(report), re.MULTILINE)


@pytest.mark.slow
def test_report_of_starts_and_their_minima(x64):
    rng = np.random.default_rng(0)
    x = np.r_[np.sort(rng.uniform(0, 1, 25)), 1.4]
    y = np.sin(40 * x) + 0.5 * (x > 0.5) + 0.1 * rng.normal(size=26)  # two scales, two minima
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), x, y, objective=ak.LeaveOneOut(), starts=6)
    report = ak.summarise(fit)
    (best, _), *others = fit.minima()
    assert others
    assert best.kernel == fit.model.kernel
    assert [loss for _, loss in report.minima] == [loss for _, loss in others]
    lengthscale = float(others[0][0].kernel.lengthscale)
    assert f"{others[0][1]:.6g}, Gaussian(lengthscale={lengthscale:.4g})" in str(report)
    assert (report.starts, report.diverged) == (6, 0)
    assert report.converged == int(np.sum(fit.starts.converged))
    assert report.at_bound == int(np.sum(fit.starts.at_bound)) > 0
    assert report.bounds == ()  # of the best
    assert re.search(f"^starts +6: {report.converged} converged, ", str(report), re.MULTILINE)


class Waves(ak.kernels.Kernel):
    """A kernel of a user's: a field `log_a` is the logarithm of a."""

    log_width: object
    shift: object

    def log_pair(self, q, k):
        return -np.float64(0.5) * ((q - k + self.shift) ** 2).sum() * np.exp(-2 * self.log_width)


def test_parameters_of_products_and_of_kernels_of_users_are_natural(x64):
    """Named by the columns that they belong to; a name comes once."""
    mixed = ak.Gaussian(0.3).on(0) * ak.kernels.AitchisonAitken(0.1, 3).on(1)
    shown = "Gaussian.on('age') * AitchisonAitken.on('kind')"
    assert kernel_expression(mixed, ["age", "kind"]) == shown
    assert kernel_expression(mixed.on(2, 0), ["kind", "x", "age"]) == f"({shown}).on('age', 'kind')"
    found = natural_parameters(mixed, ["age", "kind"])
    assert list(found) == ["lengthscale of age", "bandwidth of kind"]
    np.testing.assert_allclose(list(found.values()), [0.3, 0.1], rtol=1e-12)
    both = ak.Gaussian(np.array([0.3, 2.0])) * ak.Periodic(0.5, 7.0).on(1)
    found = natural_parameters(both, ["age", "day"])
    expected = {
        "lengthscale of age": 0.3,
        "lengthscale of day": 2.0,
        "Periodic lengthscale of day": 0.5,
        "period of day": 7.0,
    }
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-12)
    waves = Waves(*jax.device_put((np.log(0.2), np.array([1.0, 2.0]))))
    found = natural_parameters(waves, ["a", "b"])
    assert list(found) == ["width of a, b", "shift of a", "shift of b"]
    np.testing.assert_allclose(list(found.values()), [0.2, 1.0, 2.0], rtol=1e-12)
    assert len(natural_parameters(ak.Gaussian(np.ones(17)), list("abcdefghijklmnopq"))) == 17
    assert len(natural_parameters(ak.Gaussian(1.0) * ak.Gaussian(2) * ak.Gaussian(3), ["a"])) == 3
    near = ak.NearestNeighbours(ak.kernels.Tricube(1.0), fraction=0.5)
    assert kernel_expression(near, ["x"]) == "NearestNeighbours(Tricube)"


def test_report_warns_of_a_fit_that_passes_through_all_labels(x64):
    x = np.arange(12.0)
    for lengthscale, warned in ((0.05, True), (2.0, False)):
        model = ak.KernelRegression(ak.Gaussian(lengthscale))
        fit = known_fit(model, x, np.sin(x), objective=ak.LeaveOneOut)
        warnings = ak.summarise(fit).warnings
        advice = "passes through nearly all labels.* Try more rows.$"  # nothing that is so already
        assert any(re.search(advice, each) for each in warnings) == warned
