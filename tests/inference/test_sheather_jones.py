"""The lengthscale of Sheather and Jones, against R and the formula in NumPy."""

import numpy as np
import pytest
from refusals import assert_refused
from scipy import optimize

import attnkernel as ak
from attnkernel.inference import _sheather_jones as module, sheather_jones


def whole_numbers():
    """302 whole numbers from 0 to 100."""
    rng = np.random.default_rng(0)
    return np.r_[0.0, 100.0, np.clip(np.round(rng.gamma(4.0, 8.0, size=300)), 0, 100)]


# R 4.2: bw.SJ(x, nb = 101 * 1024, method = m, tol = 1e-13) for m = "ste" and "dpi": cells of 1/1024
R_FINE = {"ste": 3.7481367705187, "dpi": 3.9291150262532}
# bw.SJ(x, method = m): 1000 cells
R_DEFAULT = {"ste": 3.7545753634158, "dpi": 3.9324138825258}


@pytest.mark.parametrize("kind", module.KINDS)
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


@pytest.mark.parametrize("kind", module.KINDS)
def test_equal_to_the_formula_with_far_points(x64, kind):
    """By plane waves, and pair by pair where an outlier makes them too many."""
    near = 1e4 + np.random.default_rng(1).normal(size=302)
    for x in (near, np.r_[near[:-1], -1e6]):
        np.testing.assert_allclose(sheather_jones(x, kind=kind), formula(x, kind), rtol=1e-9)


def test_a_call_is_one_program_and_exact_in_float32(programs):
    x = np.asarray(ak.data.load("faithful").x)
    programs.clear()
    found = sheather_jones(x)
    assert len([name for name in programs if name != "jit(stage)"]) <= 1, programs
    programs.clear()
    sheather_jones(x[:270] * np.float32(3.0))
    assert programs == []
    np.testing.assert_allclose(found, formula(x[:, 0].astype(float), "ste"), rtol=1e-6)


def test_points_without_a_lengthscale_are_refused():
    assert_refused(
        (lambda: sheather_jones(np.ones((10, 2))), r"one column; got \(10, 2\).*normal_reference"),
        (lambda: sheather_jones(np.ones(1)), r"at least 2 rows.*got 1"),
        (lambda: sheather_jones(np.ones(9)), "x is constant"),
        (lambda: sheather_jones(np.r_[np.zeros(30), 1.0]), "x has too many points at few places"),
    )
