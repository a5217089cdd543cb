"""Inverses by blocks, against LAPACK: of smoothers, and where elimination without pivots fails."""

import jax
import jax.numpy as jnp
import numpy as np

from attnkernel.models._backfitting import BLOCK_ROWS, inverse

N = BLOCK_ROWS + 5


def smoother():
    """I - S of local means, centred, at points in any order."""
    x = np.random.default_rng(0).uniform(size=N)
    near = np.exp(-0.5 * ((x[:, None] - x) / 0.05) ** 2)
    share = near / near.sum(axis=1, keepdims=True)
    return np.eye(N) - share + share.mean(axis=0)


def test_an_inverse_by_blocks_and_its_derivatives(x64, monkeypatch):
    matrix = smoother()
    expected = np.linalg.inv(matrix)
    monkeypatch.setattr(jnp.linalg, "inv", lambda of: of * np.nan)  # by blocks alone
    weights = np.random.default_rng(1).normal(size=(N, N))

    @jax.jit
    def results(matrix):
        def slope(matrix):
            found, pull_back = jax.vjp(inverse, matrix)
            return pull_back(jnp.asarray(weights))[0], found

        # forward over reverse: d(X' W X') along W
        slope, bend, found = jax.jvp(slope, (matrix,), (jnp.asarray(weights),), has_aux=True)
        return found, slope, bend

    found, slope, bend = jax.device_get(results(matrix))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(slope, -expected.T @ weights @ expected.T, rtol=1e-9)
    turned = expected.T @ weights.T @ expected.T
    one = turned @ weights @ expected.T
    two = expected.T @ weights @ turned
    np.testing.assert_allclose(bend, one + two, rtol=1e-8)


def test_lapack_where_blocks_are_not_accurate(x64):
    """Every pivot block is singular, or the pivots of one are small."""
    exchanged, small = np.eye(N)[::-1] + 0.0, np.random.default_rng(0).normal(size=(N, N))
    small[:9, :9] *= 1e-9
    found = jax.jit(lambda *matrices: [inverse(each) for each in matrices])(exchanged, small)
    for matrix, inverted in zip((exchanged, small), found, strict=True):
        np.testing.assert_allclose(matrix @ np.asarray(inverted), np.eye(N), atol=1e-10)
