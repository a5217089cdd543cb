"""Inverses by blocks, against LAPACK: of smoothers, and where elimination without pivots fails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnkernel.models._block_inverse import BLOCK_ROWS, inverse

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
    np.testing.assert_allclose(inverse(jnp.asarray(matrix)), expected, rtol=0, atol=1e-12)
    weights = np.random.default_rng(1).normal(size=(N, N))
    loss = lambda of: jnp.sum(weights * inverse(of))  # noqa: E731
    slope = jax.jit(jax.grad(loss))(jnp.asarray(matrix))
    np.testing.assert_allclose(slope, -expected.T @ weights @ expected.T, rtol=1e-9)
    # forward over reverse: d(X' W X') along W
    _, bend = jax.jvp(jax.grad(loss), (jnp.asarray(matrix),), (jnp.asarray(weights),))
    turned = expected.T @ weights.T @ expected.T
    one = turned @ weights @ expected.T
    two = expected.T @ weights @ turned
    np.testing.assert_allclose(bend, one + two, rtol=1e-8)


@pytest.mark.parametrize("kind", ["exchanged rows", "small pivots"])
def test_lapack_where_blocks_are_not_accurate(x64, kind):
    random = np.random.default_rng(0)
    matrix = np.eye(N)[::-1] + 0.0  # every pivot block is singular
    if kind == "small pivots":
        matrix = random.normal(size=(N, N))
        matrix[:9, :9] *= 1e-9
    found = np.asarray(inverse(jnp.asarray(matrix)))
    np.testing.assert_allclose(matrix @ found, np.eye(N), atol=1e-10)
