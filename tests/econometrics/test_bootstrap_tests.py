"""Tests by bootstrap, against their formulas in NumPy, for the labels and for every sample."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_fits import known_fit
from marks import slow
from refusals import assert_raises

import attnkernel as ak
from attnkernel._core.rows import bucket_size
from attnkernel.econometrics import relevance_test, specification_test
from attnkernel.econometrics._specification_test import two_point_multipliers

N, DRAWS = 24, 5
ELL = np.array([0.3, 0.5])
KEY = jax.device_put(np.array([0, 7], np.uint32))
DEFAULT = {"draws": DRAWS, "key": KEY}
multipliers = jax.jit(two_point_multipliers, static_argnums=(1, 2))


def sample(levels=None, n=N):
    rng = np.random.default_rng(3)
    x = rng.uniform(size=(n, 2))
    if levels is not None:
        x[:, 1] = np.arange(n) % levels
    return x, np.sin(4 * x[:, 0]) + 0.3 * x[:, 1] ** 2 + 0.2 * rng.normal(size=n)


def kernel_matrix(at, x, ell, bandwidth=None):
    scaled = (at[:, None] - x[None]) / ell
    if bandwidth is None:
        return np.exp(-0.5 * np.sum(scaled**2, axis=2))
    return np.exp(-0.5 * scaled[..., 0] ** 2) * np.where(scaled[..., 1] == 0, 1.0, bandwidth)


def smoother(at, x, ell, bandwidth=None):
    k = kernel_matrix(at, x, ell, bandwidth)
    return k / k.sum(axis=1, keepdims=True)


def left_out(x, labels, ell, bandwidth=None):
    k = kernel_matrix(x, x, ell, bandwidth) * (1 - np.eye(len(x)))
    return labels - (k / k.sum(axis=1, keepdims=True)) @ labels


def null_labels(x, y, ell, bandwidth=None, draws=DRAWS):
    """The labels and those of the bootstrap, of which the fit has no second column."""
    without = np.c_[x[:, 0], np.zeros(len(x))]
    hat = smoother(without, without, ell, bandwidth)
    fitted = hat @ y + hat @ (y - hat @ y)
    signs = np.asarray(jax.random.rademacher(KEY, (bucket_size(len(x)), draws), float))[: len(x)]
    residuals = left_out(without, y, ell, bandwidth)
    return np.c_[y, fitted[:, None] + residuals[:, None] * signs]


def assert_close(found, expected, rtol=1e-10):
    """Compares the statistics of the labels and of the bootstrap."""
    np.testing.assert_allclose(found.statistic, expected[0], rtol=rtol)
    np.testing.assert_allclose(found.bootstrap_statistics, expected[1:], rtol=rtol)


def relevance(x, labels, ell):
    """T of a quantity in column 1, from the derivative of the weights of Nadaraya and Watson."""
    w, away = smoother(x, x, ell), (x[:, 1][:, None] - x[:, 1][None]) / ell[1] ** 2
    d = -w * (away - np.sum(w * away, axis=1, keepdims=True))
    return np.mean((d @ labels) ** 2 / (d**2 @ left_out(x, labels, ell) ** 2), axis=0)


def fitted(**options):
    model = ak.KernelRegression(ak.Gaussian(ELL))
    return known_fit(model, *sample(**options), None, ak.LeaveOneOut)


def test_relevance_of_a_quantity(x64):
    x, y = sample()
    expected = relevance(x, null_labels(x, y, ELL), ELL)
    fit = fitted().named(["age", "income"])
    found = relevance_test(fit, "income", reselect=False, **DEFAULT)
    assert_close(found, expected)
    above = np.sum(expected[1:] >= expected[0])
    assert float(found.p_value) == pytest.approx((1 + above) / (DRAWS + 1))
    assert re.search(r"hypothesis +the mean does not depend on income\n", str(found))
    assert f"p-value            {float(found.p_value):.4f}" in str(found)


def test_the_lengthscale_is_chosen_again_for_each_sample(x64):
    x, y = sample()
    labels = null_labels(x, y, ELL)
    box = ak.Gaussian(ELL).search_box(x)
    low, high = (np.asarray(each.lengthscale)[1] for each in box)
    criteria, statistics = [], []
    for each in np.geomspace(low, high, 20):
        ell = np.array([ELL[0], each])
        criteria.append(np.mean(left_out(x, labels, ell) ** 2, axis=0))
        statistics.append(relevance(x, labels, ell))
    assert np.min(np.diff(np.sort(criteria, axis=0)[:2], axis=0)) > 1e-9  # no near tie
    best = np.argmin(criteria, axis=0)
    assert len(set(best)) > 1
    expected = np.array(statistics)[best, np.arange(DRAWS + 1)]
    assert_close(relevance_test(fitted(), 1, **DEFAULT), expected, rtol=1e-9)


def test_relevance_of_a_category(x64):
    """Differences from the first category, all else equal; a fixed bandwidth is not chosen."""
    x, y = sample(levels=3)
    model = ak.KernelRegression(ak.Gaussian(0.3).on(0) * ak.kernels.LiRacine(ak.fixed(0.4)).on(1))
    ell, expected = np.array([0.3, 1.0]), 0.0
    labels = null_labels(x, y, ell, 0.4)
    squares = left_out(x, labels, ell, 0.4) ** 2
    rows = [smoother(np.c_[x[:, 0], np.full(N, level)], x, ell, 0.4) for level in range(3)]
    for row in rows[1:]:
        d = row - rows[0]
        expected = expected + np.mean((d @ labels) ** 2 / (d**2 @ squares), axis=0)
    assert_close(relevance_test(known_fit(model, x, y), 1, **DEFAULT), expected)


def specification(x, y, kernel=None, draws=DRAWS):
    """T of the labels and of the bootstrap, with a Gaussian kernel or log K."""
    n, z = len(x), np.c_[np.ones(len(x)), x]
    hat = z @ np.linalg.pinv(z)
    u = y - hat @ y
    signs = multipliers(KEY, (bucket_size(n), draws), jnp.dtype(float))
    samples = np.c_[u, (np.eye(n) - hat) @ (u[:, None] * np.asarray(signs)[:n])]
    quartiles = np.subtract(*np.quantile(x, [0.75, 0.25], axis=0)) / 1.349
    reference = np.minimum(np.std(x, axis=0, ddof=1), quartiles) * n ** (-1 / 6)
    k = kernel_matrix(x, x, reference) if kernel is None else np.exp(kernel)
    k = k * (1 - np.eye(n))
    i_n = np.sum(samples * (k @ samples), axis=0) / n**2
    omega = 2 * np.sum(samples**2 * (k**2 @ samples**2), axis=0) / n**2
    return n * i_n / np.sqrt(omega)


@pytest.mark.parametrize("lengthscale", [None, slow(0.2)])
def test_specification(x64, lengthscale):
    kernel = None if lengthscale is None else ak.Laplace(lengthscale)  # in float64
    x, y = sample()
    scores = -np.linalg.norm(x[:, None] - x, axis=2) / 0.2
    expected = specification(x, y, kernel=None if kernel is None else scores)
    assert_close(specification_test(x, y, kernel=kernel, **DEFAULT), expected)
    if kernel is None:  # a sum of other columns changes nothing, and a unit neither
        design = np.c_[np.full(N, 1e-16), x, x.sum(axis=1)]
        same = specification_test(x, y, design=design, **DEFAULT)
        assert_close(same, expected, rtol=1e-8)


def test_multipliers_have_the_moments_of_the_two_points():
    v = np.asarray(multipliers(KEY, (10**5,), jnp.dtype("float32")), float)
    assert len(np.unique(v)) == 2
    for power, moment in ((1, 0.0), (2, 1.0), (3, 1.0)):
        assert np.mean(v**power) == pytest.approx(moment, abs=0.03)


def test_padded_rows_in_blocks(x64, monkeypatch):
    """30 rows are padded to 32, and taken 2 at a time."""
    for module in ("_relevance_test", "_specification_test"):
        monkeypatch.setattr(f"attnkernel.econometrics.{module}.MAX_DENSE_PAIRS", 64)
    (x, y), options = sample(n=30), {"draws": 3, "key": KEY}  # programs know the size of a block
    expected = relevance(x, null_labels(x, y, ELL, draws=3), ELL)
    assert_close(relevance_test(fitted(n=30), 1, reselect=False, **options), expected)
    expected = specification(x, y, draws=3)
    assert_close(specification_test(x, y, **options), expected)


def test_what_cannot_be_tested_is_refused(x64):
    x, y = sample()
    boxes = ak.KernelRegression(ak.kernels.Boxcar(np.array([0.5, 0.5])))
    neighbours = ak.KernelRegression(ak.NearestNeighbours(ak.kernels.Tricube(1.0), fraction=0.5))
    flat, other = (dataclasses.replace(fitted(), model=each) for each in (boxes, neighbours))
    relevance_test = functools.partial(ak.econometrics.relevance_test, **DEFAULT)
    specification_test = functools.partial(ak.econometrics.specification_test, **DEFAULT)
    for sentence, call in {
        "flat along column 1": lambda: relevance_test(flat, 1, reselect=False),
        "reselect=False": lambda: relevance_test(other, 1),
        "column must be a number of a column, from 0 to 1": lambda: relevance_test(fitted(), 2),
        "fits all labels exactly": lambda: specification_test(x, 1.0 + x[:, 0]),
        "Try the default, kernel=None": lambda: specification_test(x, y, kernel=neighbours.kernel),
        "Column 1 of x": lambda: specification_test(np.c_[x[:, 0], np.ones(N)], y),
    }.items():
        assert_raises(sentence, call)
