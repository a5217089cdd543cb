"""Normal-reference and plug-in lengthscales, against SciPy, statsmodels, R and NumPy."""

import jax
import numpy as np
import pytest
from noisy_sine import whole_numbers
from refusals import assert_raises
from scipy import optimize, stats

import attnkernel as ak
from attnkernel.data import load
from attnkernel.inference import _sheather_jones, normal_reference, plug_in, sheather_jones
from attnkernel.inference._rules_of_thumb import _plug_in_lengthscale
from attnkernel.kernels import Boxcar


@pytest.mark.parametrize("dim", [1, 3])
def test_normal_reference_equals_silverman_of_scipy(x64, dim):
    x = np.random.default_rng(2).normal(size=(101, dim)) * np.arange(1, dim + 1)
    expected = stats.gaussian_kde(x.T, "silverman").factor * np.std(x, axis=0, ddof=1)
    np.testing.assert_allclose(normal_reference(x, robust=False), expected, rtol=1e-12)


def test_normal_reference_equals_that_of_statsmodels(x64):
    """statsmodels 0.15: nonparametric.bandwidths.bw_normal_reference of a column of faithful."""
    faithful = load("faithful")
    found = [normal_reference(column) for column in (faithful.x, faithful.y)]
    np.testing.assert_allclose(found, [[0.394004240378], [4.6930193098]], rtol=1e-9)


def test_normal_reference_of_an_outlier_is_that_of_the_quartiles(x64):
    x = np.r_[np.arange(99.0), 1e4]
    expected = 49.5 / 1.349 * (4 / 300) ** 0.2
    np.testing.assert_allclose(normal_reference(x), [expected], rtol=1e-9)
    assert np.asarray(normal_reference(x, robust=False)) > 10 * expected


def test_normal_reference_of_equal_quartiles_is_that_of_the_standard_deviation(x64):
    x = np.r_[np.zeros(30), np.arange(7.0)]
    expected = np.std(x, ddof=1) * (4 / 3 / 37) ** 0.2
    np.testing.assert_allclose(normal_reference(x), [expected])


# R 4.2, KernSmooth 2.23: dpill(x, y, gridsize = 20001), and = 401 as by default
DPILL = {
    "cps71": (1.98940973418, 1.86644300548),
    "mcycle": (1.44415379064, 1.44525836557),
    "ethanol": (0.0252600590140, 0.0252708378083),
    "geyser": (4.70710467200, 4.70722659105),
    "faithful": (0.196976815675, 0.196969521551),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DPILL)
def test_plug_in_equals_dpill_of_kernsmooth(x64, name):
    """With the kernel cut off at 4ℓ, as in R, whose sums are on a grid."""
    data, (fine, coarse) = load(name), DPILL[name]
    cut = lambda length: ak.Gaussian(length) * Boxcar(4.0 * length)  # noqa: E731
    x, y = jax.device_put((np.asarray(data.x)[:, 0], np.asarray(data.y)))
    found = _plug_in_lengthscale(x, y, cut)
    np.testing.assert_allclose(found, fine, rtol=4e-7)
    np.testing.assert_allclose(found, coarse, rtol=0.07 if name == "cps71" else 1e-3)


def test_plug_in_changes_with_the_units(x64):
    data = load("faithful")
    x, y, expected = np.asarray(data.x), np.asarray(data.y), DPILL["faithful"][0]
    found = float(plug_in(x, y))
    assert 0.02 < abs(found / expected - 1) < 0.024  # R cuts the kernel off at 4ℓ
    moved = plug_in(1e3 + 100.0 * x, 7.0 - 3.0 * y)
    np.testing.assert_allclose(moved, 100.0 * found, rtol=1e-7)


def test_inputs_without_a_rule_of_thumb_are_refused(x64):
    x = np.linspace(0.0, 1.0, 40)
    assert_raises(r"Column 1 of x.*constant", normal_reference, np.stack([x, np.ones(40)], axis=1))
    for value in (0.1, 1 / 3, 123.456):  # however their mean rounds
        assert_raises(r"Column 0 of x .* is constant", normal_reference, np.full(100, value))
    assert_raises(r"2 rows.*got 1", normal_reference, np.ones(1))
    assert_raises(r"x \(40, 2\).*normal_reference", plug_in, np.stack([x, x**2], axis=1), x)
    assert_raises(r"6 different inputs.*5", plug_in, np.repeat(np.arange(5.0), 8), x)
    ends = np.arange(272) == 0  # they are left out
    assert_raises(r"curvature.*LeaveOneOut", plug_in, np.arange(272.0), ends)


def test_the_spread_of_small_numbers_does_not_vanish():
    x = np.random.default_rng(0).uniform(size=50)
    found, scaled = (np.asarray(normal_reference(each), float) for each in (x, 1e-25 * x))
    np.testing.assert_allclose(scaled * 1e25, found, rtol=1e-5)


# R 4.2: bw.SJ(x, nb = 101 * 1024, method = m, tol = 1e-13) for m = "ste" and "dpi": cells of 1/1024
R_FINE = {"ste": 3.7481367705187, "dpi": 3.9291150262532}
# bw.SJ(x, method = m): 1000 cells
R_DEFAULT = {"ste": 3.7545753634158, "dpi": 3.9324138825258}


@pytest.mark.parametrize("kind", _sheather_jones.KINDS)
def test_equal_to_r_on_a_grid_that_holds_the_points(x64, kind):
    found = float(sheather_jones(whole_numbers(), kind=kind))
    np.testing.assert_allclose(found, R_FINE[kind], rtol=1e-12)
    np.testing.assert_allclose(found, R_DEFAULT[kind], rtol=2e-3)
    assert abs(found / R_DEFAULT[kind] - 1) > 5e-4  # R rounds the points


def psi(x, order, g):
    """ψ̂_r(g), by the formula."""
    u = (x[:, None] - x[None, :]) / g
    hermite = np.polynomial.hermite_e.HermiteE.basis(order)(u)
    total = np.sum(hermite * np.exp(-0.5 * u**2)) / np.sqrt(2 * np.pi)
    return total / (len(x) * (len(x) - 1) * g ** (order + 1))


def formula(x, kind):
    n = len(x)
    scale = min(np.std(x, ddof=1), np.subtract(*np.quantile(x, [0.75, 0.25])) / 1.349)
    psi_6 = -psi(x, 6, 1.23 * scale * n ** (-1 / 9))
    best = lambda g: (2 * np.sqrt(np.pi) * n * psi(x, 4, g)) ** -0.2  # noqa: E731
    if kind == "dpi":
        return best((2.394 / (n * psi_6)) ** (1 / 7))
    factor = 1.357 * (psi(x, 4, 1.24 * scale * n ** (-1 / 7)) / psi_6) ** (1 / 7)
    longest = 1.144 * scale * n**-0.2
    ends = 0.02 * longest, 2.0 * longest
    return optimize.brentq(lambda h: best(factor * h ** (5 / 7)) - h, *ends, xtol=1e-14 * longest)


def test_it_is_exact_in_float32():
    x = np.asarray(load("faithful").x)
    expected = formula(x[:, 0].astype(float), "ste")
    np.testing.assert_allclose(sheather_jones(x), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", _sheather_jones.KINDS)
def test_equal_to_the_formula_with_far_points(x64, kind):
    """By plane waves, and pair by pair where an outlier makes them too many."""
    near = 1e4 + np.random.default_rng(1).normal(size=302)
    for x in (near, np.r_[near[:-1], -1e6]):
        np.testing.assert_allclose(sheather_jones(x, kind=kind), formula(x, kind), rtol=1e-9)


def test_points_without_a_lengthscale_are_refused():
    assert_raises(r"one column; got \(10, 2\).*normal_reference", sheather_jones, np.ones((10, 2)))
    assert_raises(r"at least 2 rows.*got 1", sheather_jones, np.ones(1))
    assert_raises("x is constant", sheather_jones, np.ones(9))
    assert_raises("x has too many points at few places", sheather_jones, np.r_[np.zeros(30), 1.0])
