"""Regression discontinuities: rdrobust's figures, and the formulas in NumPy."""

import csv
import functools
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from marks import slow
from refusals import assert_raises

import attnkernel as ak
from attnkernel.econometrics import discontinuity

FIGURES = (
    *("lengthscale", "bias_lengthscale", "estimate", "corrected"),
    *("conventional_error", "standard_error", "lower", "upper", "p_value"),
)
COUNTS = ("rows_within", "bias_rows_within", "distinct")


def simulated(step=None):
    """Inputs, of multiples of `step` if it is given, labels, treatments and weights of 600 rows."""
    rng = np.random.default_rng(7)
    x = 2.0 * rng.beta(2.0, 4.0, size=600) - 0.7
    if step:
        x = np.round(x / step) * step
    mean = 0.5 + 0.8 * x - 1.5 * x**2 + 3 * x**3 + 0.4 * (x >= 0.0)
    y = mean + (0.3 + 0.2 * np.abs(x)) * rng.normal(size=600)
    treated = (rng.random(600) < np.where(x >= 0.0, 0.8, 0.25) + 0.1 * x).astype(float)
    return x, y + 0.5 * treated, treated, rng.uniform(0.5, 2.0, size=600)


# rdrobust 2.1.1 for Python: rdrobust(y, x, **options) of these data; c=0.1 and level=90 for
# "cutoff", sharpbw=True for "fuzzy", h=0.3 and b=0.5 for "given"
RDROBUST = {}
for case, *numbers in csv.reader(Path(__file__).with_name("rdrobust.csv").read_text().splitlines()):
    RDROBUST[case] = numbers[:9], numbers[9:]
del RDROBUST["case"]
RDROBUST = {name: (np.array(a, float), np.array(b, int)) for name, (a, b) in RDROBUST.items()}
OPTIONS = {
    "triangular": {},
    "coarse": {"step": 0.05},
    "repeated": {"step": 0.01},
    "weights": {"weights": True},
    "fuzzy": {"treatment": True},
    "order 0": {"order": 0},
    "order 2": {"order": 2},
    "coarse epanechnikov": {"step": 0.05, "kernel": ak.Epanechnikov},
    "epanechnikov": {"kernel": ak.Epanechnikov},
    "uniform": {"kernel": ak.kernels.Boxcar},
    "given": {"lengthscale": 0.3, "bias_lengthscale": 0.5},
    "cutoff": {"cutoff": 0.1, "level": 0.9},
    "repeated uniform": {"step": 0.01, "kernel": ak.kernels.Boxcar},
}
OF_ONE_PROGRAM = ("triangular", "coarse", "repeated", "cutoff")


def found(name, **more):
    options = {"cutoff": 0.0} | OPTIONS[name]
    x, y, treated, weights = simulated(options.pop("step", None))
    for argument, values in (("treatment", treated), ("weights", weights)):
        if argument in options:
            options[argument] = values
    return discontinuity(x, y, **options | more)


@pytest.mark.parametrize(
    "name", [n if n in OF_ONE_PROGRAM or n == "fuzzy" else slow(n) for n in RDROBUST]
)
def test_figures_equal_those_of_rdrobust(x64, name):
    result, (figures, counts) = found(name), RDROBUST[name]
    np.testing.assert_allclose([getattr(result, f) for f in FIGURES], figures, rtol=1e-8)
    assert np.concatenate([getattr(result, c) for c in COUNTS]).tolist() == counts.tolist()
    assert np.sum(np.asarray(result.rows)) == 600


def variances(x, y):
    """The squared residuals of each label about its three nearest others, and all as near."""
    out = np.empty_like(y)
    for i in range(len(x)):
        distance = np.abs(x - x[i])
        near = distance <= np.sort(np.delete(distance, i))[2] * (1 + 1e-7)
        near[i] = False
        out[i] = (y[i] - np.mean(y[near])) ** 2 * near.sum() / (near.sum() + 1)
    return out


def one_sided(x, y, h, b, order):
    """The two means at 0 and their variances, by the formulas of the three local fits."""

    def coefficients(length, degree):
        w = np.where(np.abs(x) < length, 1 - np.abs(x) / length, 0.0)
        powers = x[:, None] ** np.arange(degree + 1)
        return np.linalg.solve(powers.T @ (w[:, None] * powers), powers.T * w)

    plain = coefficients(h, order)[0]
    corrected = plain - plain @ x ** (order + 1) * coefficients(b, order + 1)[-1]
    inside = np.abs(x) < max(h, b)
    squares = np.zeros_like(y)
    squares[inside] = variances(x[inside], y[inside])
    return [of @ y for of in (plain, corrected)], [of**2 @ squares for of in (plain, corrected)]


@pytest.mark.parametrize("order", [slow(0), 1, slow(2)])
def test_jump_and_errors_equal_their_formulas(x64, order):
    x, y, *_ = simulated(0.02)
    result = discontinuity(x, y, cutoff=0.0, order=order, lengthscale=0.4, bias_lengthscale=0.6)
    sides = (one_sided(x[side], y[side], 0.4, 0.6, order) for side in (x < 0, x >= 0))
    means, squares = zip(*sides, strict=True)
    jump = np.subtract(means[1], means[0])
    np.testing.assert_allclose([result.estimate, result.corrected], jump, rtol=1e-9)
    errors = np.sqrt(np.add(*squares))
    np.testing.assert_allclose([result.conventional_error, result.standard_error], errors)
    curve = result(np.array([-1e-13, 0.0]))
    np.testing.assert_allclose(curve, [means[0][0], means[1][0]], rtol=1e-9)
    band = result.bands(np.array([-1e-13, 0.0]))
    np.testing.assert_allclose(band.centre, [means[0][1], means[1][1]], rtol=1e-9)
    np.testing.assert_allclose(band.standard_error, np.sqrt([s[1] for s in squares]))


def test_rows_of_weight_zero_are_none_and_units_are_units(x64):
    x, y, _, weights = simulated()
    first = discontinuity(x, y, cutoff=0.0, weights=weights)
    order = np.random.default_rng(1).permutation(608)
    added = (np.linspace(-9, 9, 8), np.full(8, 1e3), np.zeros(8))
    both = zip((x, y, weights), added, strict=True)
    x, y, weights = (np.r_[old, new][order] for old, new in both)
    second = discontinuity(1e3 + 10.0 * x, 50.0 - 3.0 * y, cutoff=1e3, weights=weights)
    scales = {"lengthscale": 10.0, "estimate": -3.0, "corrected": -3.0, "standard_error": 3.0}
    for name, scale in (scales | dict.fromkeys(("rows", *COUNTS), 1)).items():
        expected = scale * np.asarray(getattr(first, name))
        np.testing.assert_allclose(getattr(second, name), expected, rtol=1e-8)


@pytest.mark.parametrize(("is_64", "rtol"), [(True, 1e-8), slow(False, 1e-3)])
def test_a_call_is_one_program(programs, is_64, rtol):
    x, y, *_ = simulated()
    with jax.enable_x64(is_64):
        found = discontinuity(x, y, cutoff=0.0)
        assert len([name for name in programs if name != "jit(stage)"]) <= 1, programs
        programs.clear()
        result = discontinuity(x[:597], y[:597], cutoff=0.1, level=0.8)
        assert programs == []
        np.testing.assert_allclose(found.standard_error, RDROBUST["triangular"][0][5], rtol=rtol)
        result.bands(np.array([0.1, 0.2]))
        assert len(programs) <= 1, programs
        programs.clear()
        result.bands(np.array([0.1, 0.2, 0.3]))
        assert programs == []


def test_the_table_names_the_figures(x64):
    x, y, *_ = simulated(0.05)
    x, y = pd.Series(x, name="margin"), pd.Series(y, name="vote")
    result = discontinuity(x, y, cutoff=0.0)
    _, _, estimate, corrected, _, error, lower, upper, _ = RDROBUST["coarse"][0]
    assert f"{corrected:.6g} (standard error {error:.6g})" in str(result)
    assert f"{lower:.6g} to {upper:.6g}" in str(result)
    ax = ak.plot.discontinuity(result, bins=10)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("margin", "vote")
    left, right = ax.lines[1], ax.lines[3]
    np.testing.assert_allclose(right.get_ydata()[0] - left.get_ydata()[-1], estimate, rtol=1e-6)
    means = ax.lines[2].get_xydata()
    first = (x >= 0) & (x < 0.1 * x.max())
    np.testing.assert_allclose(means[0], [0.05 * x.max(), y[first].mean()])


def test_data_without_a_discontinuity_are_refused(x64):
    x, y, *_ = simulated()
    assert_raises(r"cutoff must be between .*got 5", discontinuity, x, y, cutoff=5.0)
    at_zero = functools.partial(discontinuity, cutoff=0.0)
    for message, inputs, labels, options in (
        (r"at least 20 rows of x; there are 15\. Pass lengthscale", x[:15], y[:15], {}),
        ("without lengthscale", x, y, {"bias_lengthscale": 0.3}),
        ("order 1 and 2 need more different inputs.*longer", x, y, {"lengthscale": 1e-3}),
        (r"too few different inputs, \[2, 2\]", np.sign(x) * (1.0 + (y > 0.5)), y, {}),
        ("kernel must be the class.*Cosine", x, y, {"kernel": ak.kernels.Cosine}),
        ("order must be 0, 1 or 2; got 3", x, y, {"order": 3}),
        ("treatment has no jump", x, y, {"treatment": np.ones(600)}),
        ("one column each", np.stack([x, x], axis=1), y, {}),
    ):
        assert_raises(message, at_zero, inputs, labels, **options)
