"""Local linear attention: MultiheadAttention of order 1, against its equations in NumPy."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, projected, rows_of
from marks import slow

import attnkernel as ak


@pytest.mark.parametrize("kv_heads", [2, slow(6)])
def test_local_linear_attention(x64, kv_heads):
    """Test-time regression (2025): slopes taken from weighted means, head by head; and decoded."""
    rows, size, heads, qk, vo, ridge = 11, 12, 6, 3, 5, 0.07
    options = {"qk_size": qk, "vo_size": vo, "num_kv_heads": kv_heads, "prior": ak.Causal()}
    module = built(ak.MultiheadAttention, heads, size, order=1, ridge=ridge, **options)
    x = rows_of((rows, size))
    q, k, v = projected(module, x)
    out = np.zeros((rows, heads, vo))
    for i, h in itertools.product(range(rows), range(heads)):
        of = h // (heads // kv_heads)
        w = np.exp(k[: i + 1, of] @ q[i, h] / np.sqrt(qk))
        w = w / w.sum()
        d = k[: i + 1, of] - q[i, h]
        mean, gram = w @ d, (w[:, None] * d).T @ d + ridge * np.eye(qk)
        slope = np.linalg.solve(gram, mean)
        out[i, h] = (w * (1 - d @ slope)) @ v[: i + 1, of] / (1 - mean @ slope)
    expected = out.reshape(rows, -1) @ np.asarray(module.output_proj.weight).T

    @eqx.filter_jit
    def results(module, x):
        def one_row(cache, row):
            out, cache = module.step(row[None], cache)
            return cache, out[0]

        return module(x, x, x), jax.lax.scan(one_row, module.cache(rows), x)[1]

    for found in results(module, x):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_the_estimator_of_local_linear_attention_as_published(x64):
    r"""$\sum_j w_j (1 - d_j^\top \rho) v_j / (\omega - \mu^\top \rho)$ with $d_j = k_j - q$,
    $\omega = \sum w$, $\mu = \sum w d$, $\rho = (\sum w d d^\top + \lambda I)^{-1} \mu$.

    There λ is added to sums of weights that do not sum to 1; here it is `ridge` times ω.
    """
    rows, size, ridge = 9, 3, 0.3
    module = built(ak.MultiheadAttention, 1, size, order=1, ridge=ridge, prior=ak.Causal())
    x = rows_of((rows, size), seed=1)
    q, k, v = (part[:, 0] for part in projected(module, x))
    found = eqx.filter_jit(module)(x, x, x)
    for i in range(rows):
        w, d = np.exp(k[: i + 1] @ q[i] / np.sqrt(size)), k[: i + 1] - q[i]
        omega, mu = w.sum(), w @ d
        rho = np.linalg.solve((w[:, None] * d).T @ d + ridge * omega * np.eye(size), mu)
        out = (w * (1 - d @ rho)) @ v[: i + 1] / (omega - mu @ rho)
        expected = np.asarray(module.output_proj.weight) @ out
        np.testing.assert_allclose(found[i], expected, rtol=1e-9, atol=1e-11)


def test_gradients_of_every_projection_equal_finite_differences(x64):
    """The slope at a query follows the query: its projection is trained too."""
    module = built(ak.MultiheadAttention, 1, 2, order=1, ridge=0.1)
    x = jax.device_put(rows_of((7, 2)))
    leaves, structure = jax.tree.flatten(eqx.filter(module, eqx.is_inexact_array))
    steps = [np.cos(np.arange(leaf.size)).reshape(leaf.shape) for leaf in leaves]

    @jax.jit
    def loss_and_slopes(leaves):
        def loss(leaves):
            moved = eqx.combine(jax.tree.unflatten(structure, leaves), module)
            return jnp.sum(jnp.sin(moved(x, x, x)))

        return jax.value_and_grad(loss)(leaves)

    slopes = jax.device_get(loss_and_slopes(leaves)[1])
    for i, (leaf, step) in enumerate(zip(leaves, steps, strict=True)):
        low, high = (
            loss_and_slopes([*leaves[:i], np.asarray(leaf) + size * step, *leaves[i + 1 :]])[0]
            for size in (-1e-6, 1e-6)
        )
        low, high = float(low), float(high)
        np.testing.assert_allclose(np.sum(slopes[i] * step), (high - low) / 2e-6, rtol=1e-6)
