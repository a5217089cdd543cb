"""Local linear attention: MultiheadAttention of order 1, against its equations in NumPy."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, projected, rows_of
from jax.test_util import check_grads
from marks import slow

import attnkernel as ak


@pytest.mark.parametrize("kv_heads", [2, slow(6)])
def test_local_linear_attention(x64, kv_heads):
    """Test-time regression (2025): slopes taken from weighted means, head by head; and decoded.

    Zuo et al. (2025) add λ to sums of weights that do not sum to 1: theirs is `ridge` times it.
    """
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


def test_gradients_of_every_projection_equal_finite_differences(x64):
    """The slope at a query follows the query: its projection is trained too."""
    module = built(ak.MultiheadAttention, 1, 2, order=1, ridge=0.1)
    x = jax.device_put(rows_of((7, 2)))
    arrays, rest = eqx.partition(module, eqx.is_inexact_array)

    @jax.jit
    def loss(arrays):
        return jnp.sum(jnp.sin(eqx.combine(arrays, rest)(x, x, x)))

    for name in ("query_proj", "key_proj", "value_proj", "output_proj"):

        def of_weight(weight, name=name):
            where = lambda m: getattr(m, name).weight  # noqa: E731
            return loss(eqx.tree_at(where, arrays, weight))

        check_grads(of_weight, (getattr(arrays, name).weight,), 1, ["rev"], rtol=1e-6, eps=1e-6)
