"""Iterated bias reduction of self-attention, against dense matrices and the regression."""

import equinox as eqx
import jax
import numpy as np
import pytest
from attention_modules import built, projected, rows_of

import attnkernel as ak

ROWS, SIZE = 9, 12


def test_the_dense_formula(x64):
    """(I − (I − A)ᵏ) V of each head, whose keys two queries share; k = 2: 2A − A²."""
    heads, kv_heads = 6, 3
    module = built(ak.MultiheadAttention, heads, SIZE, num_kv_heads=kv_heads, prior=ak.Causal())
    x = rows_of((ROWS, SIZE))

    @eqx.filter_jit
    def results(module, x):
        wrapped = [ak.nn.BiasReducedAttention(module, iterations)(x) for iterations in (2, 3)]
        return wrapped, module.weights(x, x)

    found, weights = jax.device_get(results(module, x))
    values = projected(module, x)[2].repeat(heads // kv_heads, axis=1)
    rest = np.eye(ROWS) - weights
    matrices = [np.eye(ROWS) - np.linalg.matrix_power(rest, iterations) for iterations in (2, 3)]
    np.testing.assert_allclose(matrices[0], 2 * weights - weights @ weights, atol=1e-12)
    for of_head, ours in zip(matrices, found, strict=True):
        out = np.einsum("hij,jhd->ihd", of_head, values).reshape(ROWS, -1)
        expected = out @ np.asarray(module.output_proj.weight).T
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


def test_it_is_the_bias_reduced_regression(x64):
    """One head, a Gaussian kernel and projections that are the identity; some rows hidden."""
    iterations, size = 4, 2
    module = built(ak.MultiheadAttention, 1, size, kernel=ak.Gaussian(0.7))
    eye = jax.device_put(np.eye(size))
    for name in ("query_proj", "key_proj", "value_proj", "output_proj"):
        where = lambda m, name=name: getattr(m, name).weight  # noqa: E731
        module = eqx.tree_at(where, module, eye)
    x, mask = rows_of((ROWS, size)), np.tile(np.arange(ROWS) != 3, (ROWS, 1))
    seen = mask[0]  # no row sees row 3
    model = ak.models.BiasReduced(ak.KernelRegression(ak.Gaussian(0.7)), iterations)

    @eqx.filter_jit
    def results(module, x):
        wrapped = ak.nn.BiasReducedAttention(module, iterations)
        regressed = [model(rows, rows, rows) for rows in (x, x[seen])]
        return wrapped(x), wrapped(x, mask)[seen], *regressed

    whole, masked, of_all, of_seen = results(module, x)
    np.testing.assert_allclose(whole, of_all, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(masked, of_seen, rtol=1e-9, atol=1e-12)


def test_what_is_not_self_attention_is_refused():
    module = built(ak.MultiheadAttention, 1, 4, key_size=3)
    with pytest.raises(ValueError, match="those of one sequence"):
        ak.nn.BiasReducedAttention(module)
    module = built(ak.MultiheadAttention, 1, 4, dropout_p=0.5)
    with pytest.raises(ValueError, match="no dropout"):
        ak.nn.BiasReducedAttention(module)
