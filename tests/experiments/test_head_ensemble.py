"""Heads as an ensemble of smoothers: the decomposition of the error, and weights of heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies.head_errors import (
    SHRINKAGE,
    Decomposition,
    fit_data_sets,
    fit_heads,
    shrunken_weights,
)


def test_bias_variance_and_covariance_add_up_to_the_error():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=7)
    each = truth + 0.3 + rng.normal(size=(50, 1, 7)) + 0.5 * rng.normal(size=(50, 4, 7))
    found = Decomposition.of(each, truth)
    np.testing.assert_allclose(found.bias + found.variance + found.covariance, found.error)
    np.testing.assert_allclose(found.variance, np.mean(each.var(axis=0)) / 4)
    centred = each - each.mean(axis=0)
    pairs = [np.mean(centred[:, a] * centred[:, b]) for a in range(4) for b in range(4) if a != b]
    np.testing.assert_allclose(found.covariance, 0.75 * np.mean(pairs))


def test_weights_have_the_least_leave_one_out_error_by_refits(x64):
    rng = np.random.default_rng(1)
    predictions = rng.normal(size=(25, 8))  # the noise is large: the residuals would shrink least
    y = predictions @ np.full(8, 0.2) + 2.0 * rng.normal(size=25)

    def solve(rows, shrinkage):
        p = predictions[rows]
        gram = p.T @ p + shrinkage * 25 * np.eye(8)
        return 1 / 8 + np.linalg.solve(gram, p.T @ (y[rows] - p @ np.full(8, 1 / 8)))

    errors = []
    for shrinkage in SHRINKAGE:
        seen = [np.arange(25) != i for i in range(25)]
        left = [y[i] - predictions[i] @ solve(rows, shrinkage) for i, rows in enumerate(seen)]
        errors.append(np.mean(np.square(left)))
    best = SHRINKAGE[np.argmin(errors)]
    assert best > SHRINKAGE[0]
    expected = solve(np.full(25, True), best)
    found = jax.jit(shrunken_weights)(predictions, y, 25)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_heads_are_kernel_regressions_on_blocks_of_rotated_columns(x64):
    rng = np.random.default_rng(2)
    x, q, y = rng.normal(size=(20, 4)), rng.normal(size=(3, 4)), rng.normal(size=20)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    candidates = np.array([0.4, 0.8, 1.6])
    found = jax.jit(fit_heads, static_argnums=4)(x, y, q, rotation, 2, candidates, 20)

    def predict(ell, at, block, exclude_self=False):
        a, b = (at @ rotation)[:, block], (x @ rotation)[:, block]
        weights = np.exp(-0.5 * np.sum((a[:, None] - b) ** 2, axis=2) / ell**2)
        if exclude_self:
            np.fill_diagonal(weights, 0.0)
        return weights @ y / weights.sum(axis=1)

    blocks = [slice(0, 2), slice(2, 4)]
    criteria = [
        np.mean((np.mean([predict(ell, x, b, True) for b in blocks], axis=0) - y) ** 2)
        for ell in candidates
    ]
    ell = candidates[np.argmin(criteria)]
    assert found.lengthscale == ell
    expected = np.array([predict(ell, q, block) for block in blocks])
    np.testing.assert_allclose(found.each, expected, rtol=1e-9)
    weighted = np.asarray(found.weights) @ expected
    np.testing.assert_allclose(found.weighted, weighted, rtol=1e-9)


@pytest.mark.slow
def test_all_lengths_and_functions_share_a_program_and_have_the_results_of_their_own(
    x64, programs, monkeypatch
):
    monkeypatch.setattr("experiments.studies.head_errors.BLOCK_ROWS", 8)  # two of three are skipped
    queries = jnp.asarray(np.random.default_rng(1).normal(size=(5, 4)))
    eye, candidates = jnp.asarray(np.eye(4)), jnp.asarray([0.5, 1.0, 2.0])

    def fit(function, n, longest):
        return fit_data_sets(
            jax.random.PRNGKey(n),
            jnp.asarray(function),
            queries,
            eye,
            2,
            candidates,
            jnp.asarray(n),
            longest,
            jnp.asarray(0.3),
            2,
        )

    padded = {function: fit(function, n, 24) for function, n in ((0, 7), (1, 13), (2, 24))}
    assert sum("fit_data_sets" in name for name in programs) == 1
    for ours, alone in zip(padded[0], fit(0, 7, 7), strict=True):
        np.testing.assert_allclose(ours, alone, rtol=1e-10)
    assert all(np.isfinite(part).all() for found in padded.values() for part in found)


@pytest.mark.slow
def test_sizes_of_heads_are_compared(run_study):
    small = ("rows=[64]", "sets=8", "queries=16", "heads=[1, 4]", "functions=[rough]")
    run = run_study("head_ensemble", *small)
    assert [row["heads"] for row in run.summary["rows"]] == [1, 4]
    assert all(row["deviation"] < 1e-9 for row in run.summary["rows"])
    assert len(run.summary["predictions"]) == 6
