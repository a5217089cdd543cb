"""Studies of the ledger: local polynomials at a cusp, and kernels over the context."""

import itertools

import jax
import numpy as np
import pytest
from small_configs import SMALL_LOCAL_POLYNOMIALS

from experiments.studies import local_polynomials


def fit_at(point, x, y, h, order):
    """The local polynomial in NumPy, by weighted least squares."""
    steps = x - point
    weights = np.maximum(1 - np.abs(steps).sum(axis=1) / h, 0)  # the root of the kernel
    terms = [
        np.prod(steps[:, list(columns)], axis=1)
        for degree in range(order + 1)
        for columns in itertools.combinations_with_replacement(range(x.shape[1]), degree)
    ]
    design = np.stack(terms, axis=1) * weights[:, None]
    return np.linalg.lstsq(design, y * weights[:, None], rcond=None)[0][0]


@pytest.mark.slow
def test_local_polynomials_and_their_leave_one_out_are_weighted_least_squares(x64):
    rng = np.random.default_rng(0)
    x, y, one = rng.uniform(-0.5, 0.5, (60, 2)), rng.normal(size=(60, 3)), np.ones(60)
    for order, columns in ((1, 1), (2, 2), (3, 2)):
        fit = jax.jit(local_polynomials.fit_at_cusp, static_argnums=0)
        found = fit(order, 0.8, x[:, :columns], y, np.where(np.arange(60) < 50, one, 0.0))
        expected = fit_at(np.zeros(columns), x[:50, :columns], y[:50], 0.8, order)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    found = jax.jit(local_polynomials.fit_left_out)(0.3, x[:, 0], y)
    for order, i in itertools.product(range(3), (0, 17, 42)):
        others = np.arange(60) != i
        expected = fit_at(x[i, :1], x[others, :1], y[others], 0.3, order)
        np.testing.assert_allclose(found[order, i], expected, rtol=1e-7)


@pytest.mark.slow
def test_slopes_at_a_cusp_are_compared(run_study):
    run = run_study("local_polynomials", *SMALL_LOCAL_POLYNOMIALS)
    known = [row["arms"]["α known"]["slope"] for row in run.summary["rows"]]
    assert known[0] == pytest.approx(-0.5, abs=0.25)
    assert len(run.summary["claims"]) == 3 * 4 + 1
    assert all(one["low"] < one["ours"] < one["high"] for one in run.summary["claims"])
