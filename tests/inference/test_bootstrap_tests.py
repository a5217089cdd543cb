"""Tests by bootstrap, against their formulas in NumPy, for the labels and for every sample."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow

import attnkernel as ak
from attnkernel.inference._specification_test import two_point_multipliers

N, DRAWS = 24, 5  # rows that need no padding, so that signs can be drawn here
ELL = np.array([0.3, 0.5])
KEY = jax.random.PRNGKey(7)
DEFAULT = {"draws": DRAWS, "key": KEY}
STILL = {"optimizer": optax.sgd(0.0), "steps": 1}  # a fit whose lengthscales are known


def sample(levels=None):
    rng = np.random.default_rng(3)
    x = rng.uniform(size=(N, 2))
    if levels is not None:
        x[:, 1] = np.arange(N) % levels
    return x, np.sin(4 * x[:, 0]) + 0.3 * x[:, 1] ** 2 + 0.2 * rng.normal(size=N)


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


def null_labels(x, y, ell, bandwidth=None):
    """The labels and those of the bootstrap, of which the fit has no second column."""
    without = np.c_[x[:, 0], np.zeros(N)]
    hat = smoother(without, without, ell, bandwidth)
    fitted = hat @ y + hat @ (y - hat @ y)
    signs = np.asarray(jax.random.rademacher(KEY, (N, DRAWS), float))
    residuals = left_out(without, y, ell, bandwidth)
    return np.c_[y, fitted[:, None] + residuals[:, None] * signs]


def relevance(x, labels, ell):
    """T of a quantity in column 1, from the derivative of the weights of Nadaraya and Watson."""
    w, away = smoother(x, x, ell), (x[:, 1][:, None] - x[:, 1][None]) / ell[1] ** 2
    d = -w * (away - np.sum(w * away, axis=1, keepdims=True))
    return np.mean((d @ labels) ** 2 / (d**2 @ left_out(x, labels, ell) ** 2), axis=0)


@functools.cache
def fitted(order=0, **options):
    x, y = sample()
    model = ak.KernelRegression(ak.Gaussian(jnp.asarray(ELL)), order=order)
    return ak.fit(model, x, y, objective=ak.LeaveOneOut(), **STILL, **options)


def test_relevance_of_a_quantity(x64):
    x, y = sample()
    expected = relevance(x, null_labels(x, y, ELL), ELL)
    found = ak.inference.relevance_test(fitted(), 1, reselect=False, **DEFAULT)
    np.testing.assert_allclose(found.statistic, expected[0], rtol=1e-10)
    np.testing.assert_allclose(found.bootstrap_statistics, expected[1:], rtol=1e-10)
    above = np.sum(expected[1:] >= expected[0])
    assert float(found.p_value) == pytest.approx((1 + above) / (DRAWS + 1))


def test_the_lengthscale_is_chosen_again_for_each_sample(x64):
    x, y = sample()
    labels = null_labels(x, y, ELL)
    box = ak.Gaussian(jnp.asarray(ELL)).search_box(x)
    low, high = (np.asarray(each.lengthscale)[1] for each in box)
    criteria, statistics = [], []
    for each in np.geomspace(low, high, 20):
        ell = np.array([ELL[0], each])
        criteria.append(np.mean(left_out(x, labels, ell) ** 2, axis=0))
        statistics.append(relevance(x, labels, ell))
    best = np.argmin(criteria, axis=0)
    assert len(set(best)) > 1
    expected = np.array(statistics)[best, np.arange(DRAWS + 1)]
    found = ak.inference.relevance_test(fitted(), 1, **DEFAULT)
    np.testing.assert_allclose(found.statistic, expected[0], rtol=1e-9)
    np.testing.assert_allclose(found.bootstrap_statistics, expected[1:], rtol=1e-9)


def test_relevance_of_a_category(x64):
    """Differences from the first category, all else equal; a fixed bandwidth is not chosen."""
    x, y = sample(levels=3)
    model = ak.KernelRegression(ak.Gaussian(0.3).on(0) * ak.LiRacine(ak.fixed(0.4)).on(1))
    fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), **STILL)
    labels, expected = null_labels(x, y, 0.3 + 0 * ELL, 0.4), 0.0
    squares = left_out(x, labels, np.array([0.3, 1.0]), 0.4) ** 2
    rows = [
        smoother(np.c_[x[:, 0], np.full(N, level)], x, np.array([0.3, 1.0]), 0.4)
        for level in range(3)
    ]
    for row in rows[1:]:
        d = row - rows[0]
        expected = expected + np.mean((d @ labels) ** 2 / (d**2 @ squares), axis=0)
    found = ak.inference.relevance_test(fit, 1, **DEFAULT)
    np.testing.assert_allclose(found.statistic, expected[0], rtol=1e-10)
    np.testing.assert_allclose(found.bootstrap_statistics, expected[1:], rtol=1e-10)


@pytest.mark.parametrize("kernel", [None, slow(ak.Laplace(0.2))])
def test_specification(x64, kernel):
    x, y = sample()
    z = np.c_[np.ones(N), x]
    hat = z @ np.linalg.pinv(z)
    u = y - hat @ y
    v = np.asarray(two_point_multipliers(KEY, (N, DRAWS), jnp.dtype(float)))
    samples = np.c_[u, (np.eye(N) - hat) @ (u[:, None] * v)]
    ell = np.asarray(ak.normal_reference(x))
    k = (
        kernel_matrix(x, x, ell)
        if kernel is None
        else np.exp(kernel.pairwise(*2 * [jnp.asarray(x)]))
    )
    k = k * (1 - np.eye(N))
    i_n = np.sum(samples * (k @ samples), axis=0) / N**2
    omega = 2 * np.sum(samples**2 * (k**2 @ samples**2), axis=0) / N**2
    found = ak.inference.specification_test(x, y, kernel=kernel, **DEFAULT)
    expected = N * i_n / np.sqrt(omega)
    np.testing.assert_allclose(found.statistic, expected[0], rtol=1e-10)
    np.testing.assert_allclose(found.bootstrap_statistics, expected[1:], rtol=1e-10)
    if kernel is None:  # a column more that is a sum of others changes nothing
        design = np.c_[z, x.sum(axis=1)]
        same = ak.inference.specification_test(x, y, design=design, **DEFAULT)
        np.testing.assert_allclose(same.bootstrap_statistics, expected[1:], rtol=1e-8)


def test_multipliers_have_the_moments_of_the_two_points():
    v = np.asarray(two_point_multipliers(KEY, (10**5,), jnp.dtype("float32")), float)
    assert len(np.unique(v)) == 2
    for power, moment in ((1, 0.0), (2, 1.0), (3, 1.0)):
        assert np.mean(v**power) == pytest.approx(moment, abs=0.03)


def test_results_do_not_depend_on_blocks_or_padding(x64, monkeypatch):
    """30 rows are padded to 32; in blocks of 2 rows the sums are the same."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(30, 2))
    y = np.sin(5 * x[:, 0]) + 0.1 * rng.normal(size=30)
    model = ak.KernelRegression(ak.Gaussian(jnp.asarray(ELL)))
    fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), **STILL)
    run = [
        lambda: ak.inference.relevance_test(fit, 1, reselect=False, **DEFAULT),
        lambda: ak.inference.specification_test(x, y, **DEFAULT),
    ]
    whole = [each() for each in run]
    np.testing.assert_allclose(whole[0].statistic, relevance(x, y, ELL), rtol=1e-10)
    jax.clear_caches()
    for module in ("_relevance_test", "_specification_test"):
        monkeypatch.setattr(f"attnkernel.inference.{module}.MAX_DENSE_PAIRS", 64)
    for each, expected in zip(run, whole, strict=True):
        found = each().bootstrap_statistics
        np.testing.assert_allclose(found, expected.bootstrap_statistics, rtol=1e-9)
    jax.clear_caches()


def test_names_and_the_table(x64):
    fit = fitted().named(["age", "income"])
    found = ak.inference.relevance_test(fit, "income", reselect=False, **DEFAULT)
    assert re.search(r"hypothesis +the mean does not depend on income\n", str(found))
    assert f"p-value            {float(found.p_value):.4f}" in str(found)


def test_what_cannot_be_tested_is_refused(x64):
    x, y = sample()
    boxes = ak.KernelRegression(ak.Boxcar(jnp.array([0.5, 0.5])))
    neighbours = ak.KernelRegression(ak.NearestNeighbours(ak.Tricube(1.0), fraction=0.5))
    flat, other = (dataclasses.replace(fitted(), model=each) for each in (boxes, neighbours))
    relevance_test = functools.partial(ak.inference.relevance_test, **DEFAULT)
    specification_test = functools.partial(ak.inference.specification_test, **DEFAULT)
    for sentence, call in {
        "flat along column 1": lambda: relevance_test(flat, 1),
        "reselect=False": lambda: relevance_test(other, 1),
        "column must be from 0 to 1": lambda: relevance_test(fitted(), 2),
        "fits all labels exactly": lambda: specification_test(x, 1.0 + x[:, 0]),
        "Try the default, kernel=None": lambda: specification_test(x, y, kernel=neighbours.kernel),
        "Column 1 of x": lambda: specification_test(np.c_[x[:, 0], np.ones(N)], y),
    }.items():
        with pytest.raises(ValueError, match=sentence):
            call()


@pytest.mark.slow
def test_size_and_power_of_both(x64):
    """Rejections of 200 data sets at 5 %: 10 are expected under the hypothesis, 2 to 20 allowed."""

    def p_values(key):
        keys = jax.random.split(key, 3)
        x = jax.random.uniform(keys[0], (40, 2), float)
        noise = 0.3 * jax.random.normal(keys[1], (40,), float)
        y = x[:, 0] + noise
        model = ak.KernelRegression(ak.Gaussian(jnp.asarray([0.3, 0.3])))
        fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=1, steps=20)
        options = {"draws": 99, "key": keys[2]}
        return jnp.stack(
            [
                ak.inference.relevance_test(fit, 1, **options).p_value,
                ak.inference.relevance_test(fit, 0, **options).p_value,
                ak.inference.specification_test(x, y, **options).p_value,
                ak.inference.specification_test(x, y + 4.0 * x[:, 0] ** 2, **options).p_value,
            ]
        )

    many = jax.jit(lambda keys: jax.lax.map(p_values, keys, batch_size=20))
    rejected = np.sum(np.asarray(many(jax.random.split(KEY, 200))) <= 0.05, axis=0)
    assert np.all((rejected[[0, 2]] >= 2) & (rejected[[0, 2]] <= 20)), rejected
    assert np.all(rejected[[1, 3]] > 120), rejected
