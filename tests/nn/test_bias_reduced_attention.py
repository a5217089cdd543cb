"""Iterated bias reduction of self-attention, against dense matrices."""

import equinox as eqx
import jax
import numpy as np
import pytest
from attention_modules import built, projected, rows_of

import attnkernel as ak

ROWS, SIZE = 9, 12


def test_the_dense_formula(x64):
    """(I − (I − A)ᵏ) V of each head, whose keys two queries share, and some rows hidden; k = 2:
    2A − A²."""
    heads, kv_heads = 6, 3
    module = built(ak.MultiheadAttention, heads, SIZE, num_kv_heads=kv_heads, prior=ak.Causal())
    x, mask = rows_of((ROWS, SIZE)), np.tile(np.arange(ROWS) != 3, (ROWS, 1))

    @eqx.filter_jit
    def results(module, x):
        twice, thrice = (ak.nn.BiasReducedAttention(module, k) for k in (2, 3))
        found = twice(x), thrice(x), thrice(x, mask)
        return found, module.weights(x, x), module.weights(x, x, mask)

    found, whole, masked = jax.device_get(results(module, x))
    values = projected(module, x)[2].repeat(heads // kv_heads, axis=1)
    for ours, weights, iterations in zip(found, (whole, whole, masked), (2, 3, 3), strict=True):
        matrix = np.eye(ROWS) - np.linalg.matrix_power(np.eye(ROWS) - weights, iterations)
        if iterations == 2:
            np.testing.assert_allclose(matrix, 2 * weights - weights @ weights, atol=1e-12)
        out = np.einsum("hij,jhd->ihd", matrix, values).reshape(ROWS, -1)
        expected = out @ np.asarray(module.output_proj.weight).T
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"key_size": 3}, "those of one sequence"), ({"dropout_p": 0.5}, "no dropout")],
)
def test_what_is_not_self_attention_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ak.nn.BiasReducedAttention(built(ak.MultiheadAttention, 1, 4, **options))
