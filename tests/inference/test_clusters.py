"""Variances HC0 to HC3 and clustered ones, by their definitions in NumPy and as in nprobust."""

import jax
import numpy as np
import pytest
from known_fits import known_fit
from least_squares import left_out, local_polynomial
from marks import slow
from refusals import assert_raises
from scipy import stats

import attnkernel as ak

N, M, LENGTHSCALE = 48, 5, 0.35
X_NEW = np.linspace(-1.8, 1.8, M)
CLUSTERS = np.random.default_rng(1).integers(0, 11, N)
RNG = np.random.default_rng(5)
X = np.sort(RNG.uniform(-2, 2, N))
Y = np.sin(2 * X) + 0.1 * RNG.normal(size=N) + 0.2 * RNG.normal(size=11)[CLUSTERS]
ADJUSTED = {
    "hc0": lambda own, trace, n: np.ones_like(own),
    "hc1": lambda own, trace, n: n / (n - trace) * np.ones_like(own),
    "hc2": lambda own, trace, n: 1 / (1 - own),
    "hc3": lambda own, trace, n: 1 / (1 - own) ** 2,
}


def fitted(order):
    return known_fit(ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=order), X, Y)


def clustered(rows, errors):
    """$\\sum_g (\\sum_{i in g} L_i e_i)^2$ at each input."""
    return np.sum(((rows * errors) @ np.eye(11)[CLUSTERS]) ** 2, axis=1)


@pytest.mark.parametrize(
    ("noise", "order", "term"),
    [("hc2", 0, 0), slow("hc0", 1, 1), slow("hc1", 1, 0), slow("hc3", 1, 1)],
)
def test_variances_by_their_definitions(x64, noise, order, term):
    rows = local_polynomial(X_NEW, X, LENGTHSCALE, order, term)
    hat = local_polynomial(X, X, LENGTHSCALE, order)
    trace = np.trace(hat)
    squares = (Y - hat @ Y) ** 2 * ADJUSTED[noise](np.diag(hat), trace, N)
    options = {"noise": noise, "corrected": False, "derivative": term or None}
    found = ak.bands(fitted(order), X_NEW, **options)
    np.testing.assert_allclose(found.standard_error, np.sqrt(rows**2 @ squares), rtol=1e-9)
    errors = np.sign(Y - hat @ Y) * np.sqrt(squares)
    factor = 11 / 10 * (N - 1) / (N - trace)
    found = ak.bands(fitted(order), X_NEW, clusters=CLUSTERS, **options)
    expected = np.sqrt(factor * clustered(rows, errors))
    np.testing.assert_allclose(found.standard_error, expected, rtol=1e-9)
    c = (np.asarray(found.upper) - np.asarray(found.centre)) / expected
    np.testing.assert_allclose(c, np.full(M, stats.t.ppf(0.975, 10)), rtol=1e-9)


def test_average_derivatives_of_clustered_rows(x64):
    """The errors are those of predictions from all other clusters."""
    errors = Y - left_out(X, Y, LENGTHSCALE, groups=CLUSTERS)
    shorter = LENGTHSCALE * N ** (1 / 5 - 2 / 7)
    average = np.mean(local_polynomial(X, X, shorter, 1, 1), axis=0, keepdims=True)
    found = ak.econometrics.average_derivative(fitted(0), clusters=CLUSTERS)
    expected = np.sqrt(clustered(average, errors))
    np.testing.assert_allclose(found.standard_error, expected, rtol=1e-9)
    c = (np.asarray(found.upper) - np.asarray(found.estimate)) / expected
    np.testing.assert_allclose(c, [stats.t.ppf(0.975, 10)], rtol=1e-9)


# lprobust(accel, times, eval=[10, 30], p=1, h=1000.0, kernel="uni", bwcheck=None, vce=, cluster=)
# of nprobust 0.5.0 on mcycle: standard errors without and with the clusters round(times) // 5.
# Its residuals are those of the polynomial at the input; with all rows in reach, so are ours.
NPROBUST = {
    "hc0": ([5.8395375850912155, 3.8127471598235148], [16.743025473774097, 10.630491699029884]),
    "hc1": ([5.88394535461154, 3.841741852407562], [16.87035069524548, 10.71133310442874]),
    "hc2": ([5.884233265918918, 3.833510434038108], [16.85664557729283, 10.682644379106955]),
    "hc3": ([5.929464849766985, 3.8544382279475577], [16.971494725428514, 10.735108112131378]),
}


@pytest.mark.slow
@pytest.mark.parametrize("noise", NPROBUST)
def test_standard_errors_of_a_line_equal_those_of_nprobust(x64, noise):
    data, (independent, by_cluster) = ak.data.load("mcycle"), NPROBUST[noise]
    x = np.asarray(data.x)[:, 0]
    fit = known_fit(ak.KernelRegression(ak.kernels.Boxcar(1000.0), order=1), x, np.asarray(data.y))
    for clusters, expected in ((None, independent), (np.round(x) // 5, by_cluster)):
        options = {"noise": noise, "corrected": False, "clusters": clusters}
        found = ak.bands(fit, np.array([10.0, 30.0]), **options)
        np.testing.assert_allclose(found.standard_error, expected, rtol=1e-10)


def test_clusters_that_are_refused(x64):
    fit = fitted(1)
    key = jax.device_put(np.array([0, 0], np.uint32))
    assert_raises("got 1 of 48 rows", ak.econometrics.average_derivative, fit, clusters=np.zeros(N))
    for clusters, options, message in (
        (CLUSTERS[1:], {}, "each of the 48 rows of the fit; got 11 of 47 rows"),
        (CLUSTERS, {"noise": "local"}, "noise must be one of 'rows', 'hc0'.*got 'local'"),
        (CLUSTERS, {"kind": "simultaneous", "key": key}, 'pass kind="pointwise"'),
    ):
        assert_raises(message, ak.bands, fit, X_NEW, clusters=clusters, **options)
