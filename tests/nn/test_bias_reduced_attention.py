"""Iterated bias reduction of self-attention, against dense matrices and the regression."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, projected, rows_of

import attnkernel as ak

ROWS, SIZE = 9, 12


@pytest.mark.parametrize("iterations", [2, 3])
def test_the_dense_formula(x64, iterations):
    """(I − (I − A)ᵏ) V of each head, whose keys two queries share; k = 2: 2A − A²."""
    heads, kv_heads = 6, 3
    module = built(ak.MultiheadAttention, heads, SIZE, num_kv_heads=kv_heads, prior=ak.Causal())
    x = jnp.asarray(rows_of((ROWS, SIZE)))
    wrapped = ak.nn.BiasReducedAttention(module, iterations)
    found = eqx.filter_jit(wrapped)(x)
    values = projected(module, x)[2].repeat(heads // kv_heads, axis=1)
    weights = np.asarray(module.weights(x, x))
    rest = np.eye(ROWS) - weights
    matrices = np.eye(ROWS) - np.linalg.matrix_power(rest, iterations)
    if iterations == 2:
        np.testing.assert_allclose(matrices, 2 * weights - weights @ weights, atol=1e-12)
    out = np.einsum("hij,jhd->ihd", matrices, values).reshape(ROWS, -1)
    expected = out @ np.asarray(module.output_proj.weight).T
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_it_is_the_bias_reduced_regression(x64):
    """One head, a Gaussian kernel and projections that are the identity; some rows hidden."""
    iterations, size = 4, 2
    module = built(ak.MultiheadAttention, 1, size, kernel=ak.Gaussian(0.7))
    eye = jnp.eye(size)
    for name in ("query_proj", "key_proj", "value_proj", "output_proj"):
        where = lambda m, name=name: getattr(m, name).weight  # noqa: E731
        module = eqx.tree_at(where, module, eye)
    x = jnp.asarray(rows_of((ROWS, size)))
    wrapped = ak.nn.BiasReducedAttention(module, iterations)
    model = ak.BiasReduced(ak.KernelRegression(ak.Gaussian(0.7)), iterations)
    np.testing.assert_allclose(wrapped(x), model(x, x, x), rtol=1e-9, atol=1e-12)
    mask = np.tile(np.arange(ROWS) != 3, (ROWS, 1))  # no row sees row 3
    seen = mask[0]
    found = wrapped(x, jnp.asarray(mask))
    np.testing.assert_allclose(found[seen], model(x[seen], x[seen], x[seen]), rtol=1e-9, atol=1e-12)


def test_what_is_not_self_attention_is_refused():
    module = built(ak.MultiheadAttention, 1, 4, key_size=3)
    with pytest.raises(ValueError, match="those of one sequence"):
        ak.nn.BiasReducedAttention(module)
    module = built(ak.MultiheadAttention, 1, 4, dropout_p=0.5)
    with pytest.raises(ValueError, match="no dropout"):
        ak.nn.BiasReducedAttention(module)
