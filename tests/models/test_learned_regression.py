"""LearnedKernelRegression: multi-head attention from inputs to pairs of inputs and labels."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import attnkernel as ak
from attnkernel.priors import HeldOut


def test_the_sum_of_heads_over_pairs(x64):
    """Keys and values project (φ(x), y), queries φ(x) alone; Σ_h U_h of the heads, in NumPy."""
    key = jax.random.PRNGKey(0)
    rng = np.random.default_rng(0)
    x_new, x, y = (rng.normal(size=shape) for shape in ((5, 2), (7, 2), (7, 3)))

    @eqx.filter_jit
    def results(key):
        model = ak.LearnedKernelRegression(
            2, 3, num_heads=2, qk_size=5, embedding=jnp.tanh, key=key
        )
        hidden = model(x_new, x, y, prior=HeldOut(np.ones(7, bool)))
        flat = ak.LearnedKernelRegression(1, key=key)(x_new[:, 0], x[:, 0], y[:, 0])
        return model.attention, model(x_new, x, y), hidden, flat

    inner, found, hidden, flat = results(key)
    inner = jax.tree.map(np.asarray, eqx.filter(inner, eqx.is_array))
    pairs = np.concatenate([np.tanh(x), y], axis=1)
    expected = 0.0
    for h in range(2):
        q = np.tanh(x_new) @ inner.query_proj.weight[5 * h : 5 * h + 5].T
        k = pairs @ inner.key_proj.weight[5 * h : 5 * h + 5].T
        v = pairs @ inner.value_proj.weight[3 * h : 3 * h + 3].T
        weights = np.exp(q @ k.T / np.sqrt(5))
        weights = weights / weights.sum(axis=1, keepdims=True)
        expected += weights @ v @ inner.output_proj.weight[:, 3 * h : 3 * h + 3].T
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    assert np.isnan(hidden).all()
    assert flat.shape == (5,)
