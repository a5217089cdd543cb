"""The temperature of attention in context: closed forms, criteria, and predictions judged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.reports.predictions import Claim, judge
from experiments.studies.context_errors import IN_N, IN_TAU, Case, in_closed_form, simulate

CASE = Case(np.array([0.5, 1.0, 2.0]), np.array([1.0, 0.3, 1.5]), 0.4)
TAU = np.array([2.7, 4.0, 8.0])


def draws(n, prompts, seed=0):
    """Contexts, labels, queries and slopes, in NumPy."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(prompts, 3)) / 3**0.5
    x = np.sqrt(CASE.context) * rng.normal(size=(prompts, n, 3))
    q = np.sqrt(CASE.queries) * rng.normal(size=(prompts, 3))
    return x, np.einsum("pnd,pd->pn", x, w) + CASE.noise * rng.normal(size=(prompts, n)), q, w


def errors(weights, y, q, w):
    found = (np.sum(weights * y, axis=1) - np.sum(q * w, axis=1)) ** 2
    return found.mean() / CASE.queries.mean(), found.std() / len(y) ** 0.5 / CASE.queries.mean()


def test_the_error_to_first_order_in_the_inverse_temperature_is_exact():
    x, y, q, w = draws(12, 100_000)
    scores = np.einsum("pd,pnd->pn", q, x)
    closed = in_closed_form(CASE, 12, TAU)[IN_TAU]
    for tau, expected in zip(TAU, closed, strict=True):
        found, spread = errors((1 + scores / tau) / 12, y, q, w)
        assert abs(found - expected) < 4 * spread
        assert spread < 0.02 * expected


def test_the_error_of_softmax_approaches_the_first_order_in_the_rows():
    n = 300
    x, y, q, w = draws(n, 10_000)
    scores = np.einsum("pd,pnd->pn", q, x) / TAU[1]
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    found, spread = errors(weights / weights.sum(axis=1, keepdims=True), y, q, w)
    expected = in_closed_form(CASE, n, TAU)[IN_N][1]
    assert abs(found - expected) < 0.02 * expected + 4 * spread
    assert in_closed_form(CASE, 300, np.array([2.4]))[IN_N] == np.inf  # 2 S Q / τ² above 1


def test_simulated_errors_and_criteria_are_those_of_softmax_in_numpy(x64):
    key, n, queries, tau = jax.random.PRNGKey(3), 9, 4, 2.0

    @jax.jit
    def results(key):
        found = simulate(key[None], jax.tree.map(jnp.asarray, CASE), n, queries, jnp.array([tau]))
        shapes = (3,), (n, 3), (queries, 3), (n,)
        keys = jax.random.split(key, 5)[:4]
        return found, [jax.random.normal(*one) for one in zip(keys, shapes, strict=True)]

    found, (w, x, q, noise) = jax.device_get(results(key))
    w, x, q = w / 3**0.5, np.sqrt(CASE.context) * x, np.sqrt(CASE.queries) * q
    y = x @ w + CASE.noise * noise

    def predict(at, x, y):
        weights = np.exp(at @ x.T / tau)
        return weights @ y / weights.sum(axis=-1)

    expected = np.mean((predict(q, x, y) - q @ w) ** 2) / CASE.queries.mean()
    np.testing.assert_allclose(found.softmax, [[expected]], rtol=1e-12)
    left_out = [predict(x[i], np.delete(x, i, 0), np.delete(y, i)) for i in range(n)]
    np.testing.assert_allclose(found.leave_one_out, [[np.mean((left_out - y) ** 2)]], rtol=1e-12)
    in_tau = y.mean() + (q @ x.T) @ y / (n * tau)
    expected = np.mean((in_tau - q @ w) ** 2) / CASE.queries.mean()
    np.testing.assert_allclose(found.first_order, [[expected]], rtol=1e-12)
    assert found.hold_out.shape == (1, 1)


def test_a_claim_is_judged_in_the_cases_that_it_concerns():
    claim = Claim("even numbers are below 5", lambda case: case % 2 == 0, lambda case: case < 5)
    assert judge([claim], [1, 2, 4, 6, 7], str) == [
        {"claim": "even numbers are below 5", "held": ["2", "4"], "failed": ["6"]}
    ]


@pytest.mark.slow
def test_choices_of_the_temperature_are_compared(run_study):
    run = run_study("context_temperature", "contexts=[8, 32]", "prompts=20", "temperatures=21")
    rows = run.summary["rows"]
    assert len(rows) == 14
    for row in rows:
        least = row["error"]["best of the prompt"]["mean"]
        assert all(one["mean"] >= least for one in row["error"].values())
        assert row["error"]["fixed"]["mean"] >= row["error"]["best of the case"]["mean"] - 1e-12
    assert len(run.summary["predictions"]) == 9
