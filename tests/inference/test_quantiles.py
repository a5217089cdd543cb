"""Conditional quantiles, against their definition in NumPy, and against new labels."""

import numpy as np
import pytest
from known_fits import known_fit
from marks import slow

import attnkernel as ak
from attnkernel.inference import _quantiles

N, M = 61, 7
LEVELS = [0.05, 0.25, 0.5, 0.9]


def fitted(kernel, x, y, weights=None, **options):
    return known_fit(ak.KernelRegression(kernel, **options), x, y, weights)


def by_definition(weights, y, level):
    for label in np.sort(y):
        if np.sum(weights[y <= label]) >= level * np.sum(weights) * (1 - 1e-14):
            return label
    return np.nan


@pytest.mark.parametrize(
    ("pairs", "weighted"),
    [
        pytest.param(2**20, False, id="all queries at once"),
        pytest.param(3 * N, True, id="three queries at a time, weighted"),
        slow(2**20, True, id="all at once, weighted"),
        slow(3 * N, False, id="three queries at a time"),
    ],
)
def test_quantiles_by_their_definition(x64, monkeypatch, weighted, pairs):
    """With ties, three queries at a time, and weights of rows beside a sink."""
    monkeypatch.setattr(_quantiles, "CHUNK_WEIGHTS", pairs)
    rng = np.random.default_rng(5)
    x, weights = rng.uniform(-2, 2, (N, 2)), rng.integers(0, 3, N).astype(float)
    y = np.round(np.sin(2 * x[:, 0]) + 0.4 * rng.normal(size=N), 1)  # ties
    # a sink takes mass from all labels alike: the quantiles of the rest stay
    options = {"weights": weights, "rule": ak.Softmax(sink_mass=ak.fixed(20.0))} if weighted else {}
    fit = fitted(ak.Gaussian(0.4), x, y, **options)
    # the number of queries is one of its own: what is compiled knows how many go at a time
    x_new = rng.uniform(-2, 2, (M + pairs % 5, 2))
    squares = np.sum((x_new[:, None] - x[None, :]) ** 2, axis=2)
    rows = np.exp(-0.5 * squares / 0.4**2)
    rows = rows * weights if weighted else rows
    expected = [[by_definition(row, y, level) for level in LEVELS] for row in rows]
    np.testing.assert_array_equal(ak.quantiles(fit, x_new, LEVELS), expected)
    medians = np.array(expected)[:, LEVELS.index(0.5), None]
    np.testing.assert_array_equal(ak.quantiles(fit, x_new, 0.5), medians)


@pytest.mark.parametrize("n", [slow(10), 49, slow(100)])
def test_quantiles_of_equal_weights_are_sorted_labels(x64, n):
    """Sums that equal p up to rounding count as p."""
    rng = np.random.default_rng(n)
    x, y = rng.uniform(size=n), rng.normal(size=n)
    fit = fitted(ak.kernels.Boxcar(5.0), x, y)
    levels = np.arange(1, n) / n
    expected = np.sort(y)[: n - 1]
    np.testing.assert_array_equal(ak.quantiles(fit, np.array([0.5]), levels), expected[None])


def test_quantiles_are_nan_where_no_label_has_weight(x64):
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, N)
    fit = fitted(ak.Epanechnikov(0.5), x, np.sin(3 * x) + rng.normal(size=N), on_empty="mean")
    found = ak.quantiles(fit, np.array([0.0, 9.0]), [0.5])
    np.testing.assert_array_equal(np.isnan(found), [[False], [True]])


def test_arguments_of_quantiles_that_are_refused():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, N)
    y = np.sin(3 * x) + 0.1 * rng.normal(size=N)
    with pytest.raises(ValueError, match=r"one label.*\(61, 2\)"):
        ak.quantiles(fitted(ak.Gaussian(0.3), x, np.stack([y, -y], axis=1)), x, 0.5)
