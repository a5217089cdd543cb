"""Studies of the ledger: local polynomials at a cusp, and kernels over the context."""

import itertools

import equinox as eqx
import jax
import numpy as np
import pytest
from small_configs import (
    SMALL_IN_CONTEXT_KERNEL,
    SMALL_LOCAL_POLYNOMIALS,
    SMALL_RESIDUALS,
    SMALL_STATE_PRECISION,
)

from experiments.studies import (
    in_context_kernel,
    local_polynomials,
    probes,
    residual_attention,
    state_precision,
)


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
        fit = jax.jit(local_polynomials.fit_polynomial, static_argnums=0)
        given = np.zeros((1, columns)), x[:, :columns], y
        found = fit(order, 0.8, *given, weights=np.where(np.arange(60) < 50, one, 0.0))[0]
        expected = fit_at(np.zeros(columns), x[:50, :columns], y[:50], 0.8, order)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    for dim, h in ((1, 0.3), (2, 0.8)):
        at, orders = x[:, :dim], local_polynomials.ORDERS[dim]
        found = jax.jit(local_polynomials.fit_left_out)(h, at, y)
        for (k, order), i in itertools.product(enumerate(orders), (0, 17, 42)):
            others = np.arange(60) != i
            expected = fit_at(at[i], at[others], y[others], h, order)
            np.testing.assert_allclose(found[k, i], expected, rtol=1e-5 if dim == 2 else 1e-7)


@pytest.mark.slow
def test_slopes_at_a_cusp_are_compared(run_study):
    run = run_study("local_polynomials", *SMALL_LOCAL_POLYNOMIALS)
    known = [row["arms"]["α known"]["slope"] for row in run.summary["rows"]]
    assert known[0] == pytest.approx(-0.5, abs=0.25)
    assert len(run.summary["claims"]) == 3 * 4 + 3
    assert all(one["low"] < one["ours"] < one["high"] for one in run.summary["claims"])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", in_context_kernel.KERNELS)
def test_scales_are_chosen_by_rows_that_are_left_out(x64, kernel):
    """Against loops in NumPy: leave-one-out of every row, and five folds."""
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(100, 3)), rng.integers(0, 2, 100)
    labels[x[:, 0] > 0.5] = 2
    y = np.eye(3)[labels]
    scales = np.asarray(in_context_kernel.scales_of(kernel, x)[0])

    def predict(scale, held, seen):
        squares = ((x[held, None] - x[None, seen]) ** 2).sum(axis=2)
        scores = {"Gaussian": -squares / 2 / scale**2, "dot product": x[held] @ x[seen].T / scale}
        if kernel == "neighbours":
            return y[seen][np.argsort(squares, axis=1)[:, : int(scale)]].mean(axis=1)
        weights = np.exp(scores[kernel] - scores[kernel].max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True) @ y[seen]

    def loss(scale, groups):
        each = [(group, np.setdiff1d(np.arange(100), group)) for group in groups]
        return sum(((predict(scale, *rows) - y[rows[0]]) ** 2).sum() for rows in each)

    choose = jax.jit(in_context_kernel.choose_by_leave_one_out, static_argnums=0)
    best = min(scales, key=lambda scale: loss(scale, np.arange(100)[:, None]))
    assert scales[0] < best < scales[-1]
    assert choose(kernel, x, y)[0] == pytest.approx(best)
    folds = min(scales, key=lambda scale: loss(scale, np.arange(100).reshape(5, 20)))
    choose = jax.jit(in_context_kernel.choose_by_folds, static_argnums=0)
    assert choose(kernel, x, y) == pytest.approx(folds)


@pytest.mark.slow
def test_kernels_over_the_context_are_compared(run_study):
    summary = run_study("in_context_kernel", *SMALL_IN_CONTEXT_KERNEL).summary
    rows = summary["rows"]
    assert len(rows) == 2 * 3 * 4
    assert all(1 <= count <= 120 for row in rows for count in row["perplexity"].values())
    assert rows[1]["accuracy"]["leave-one-out"]["mean"] > 0.7  # iris, Gaussian, standardised
    plain = [row["over_rule"]["mean"] for row in rows if row["inputs"] in in_context_kernel.PLAIN]
    assert summary["claims"][1]["ours"] == pytest.approx(np.mean(plain))


@pytest.mark.slow
def test_states_and_updated_inverses_are_ridge_regressions(x64, run_study):
    q, k, v = state_precision.draw(jax.random.PRNGKey(0), np.array([0.3]), 40, 5)
    gram = np.asarray(k[0].T @ k[0])
    expected = q[0, -1] @ np.linalg.solve(gram + 0.01 * np.eye(5), k[0].T @ v[0])
    found = state_precision.sherman_morrison(np.array(0.01), (q, k, v))
    np.testing.assert_allclose(found[0, -1], expected, rtol=1e-9)
    kappa = state_precision.condition(np.asarray(k), 1.0, 0.01)
    np.testing.assert_allclose(kappa, np.linalg.cond(gram + 0.01 * np.eye(5)))
    rows = run_study("state_precision", *SMALL_STATE_PRECISION).summary["rows"]
    assert len(rows) == 3 * 2 * 3
    assert max(row["total"] / state_precision.EPS[row["dtype"]] for row in rows) < 30
    assert all(row["by length"]["1024"] == row["total"] for row in rows)


@pytest.mark.slow
def test_softmax_of_residuals_and_probes_are_those_of_loops(x64, run_study, monkeypatch):
    rng = np.random.default_rng(2)
    q, k, v = rng.normal(size=(2, 9, 3)), rng.normal(size=(9, 3)), rng.normal(size=(9, 2))
    layer = residual_attention.COMPARED["softmax of delta's residuals"]
    found = layer.predict({"lengthscale": np.array(0.7), "rate": np.array(0.2)}, q, k, v)
    state, states, residuals = np.zeros((3, 2)), [], []
    for key, value in zip(k, v, strict=True):
        state = state + 0.2 * np.outer(key, value - key @ state)
        states.append(state)
        residuals.append(value - key @ state)
    for batch, row in itertools.product(range(2), range(9)):
        seen = slice(row + 1)
        scores = -((q[batch, row] - k[seen]) ** 2).sum(axis=1) / 2 / 0.7**2
        weights = np.exp(scores - scores.max())
        mean = weights / weights.sum() @ np.array(residuals)[seen]
        expected = mean + q[batch, row] @ states[row]
        np.testing.assert_allclose(found[batch, row], expected, rtol=1e-8)
    exact = probes.Probed(probes.EXACT, 3)
    exact = eqx.tree_at(lambda model: model.log_ridge, exact, np.log(1e-12))
    design = np.hstack([np.ones((9, 1)), k - q[0, 0]])
    root = np.exp(-((k - q[0, 0]) ** 2).sum(axis=1) / 4)[:, None]  # lengthscale 1
    line = np.linalg.lstsq(design * root, v * root, rcond=None)[0]
    np.testing.assert_allclose(exact(q[0], k, v)[0], line[0], rtol=1e-6)
    for name in [one for one in residual_attention.COMPARED if "decay" in one or "gated" in one]:
        monkeypatch.delitem(residual_attention.COMPARED, name)
        monkeypatch.delitem(residual_attention.OF_RESIDUALS, name, raising=False)
    run = run_study("residual_attention", *SMALL_RESIDUALS)
    assert len(run.summary["claims"]) == 2 + 2  # the other layer, at one piece, is the control
    rows, seconds = (run.summary[part] for part in ("rows_at_equal_time", "seconds"))
    for (one, n), (other, m) in (parents.items() for parents in rows.values()):
        both = pytest.approx(seconds[one] + seconds[other], rel=0.05)  # the time of 24 rows
        assert (seconds[one] * (n / 24) ** 2, seconds[other] * m / 24) == (both, both)
