"""Key-value caches in half precision, and rings that are written at once."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, numpy_attention
from marks import slow

import attnkernel as ak


def seen_by(capacity, ring):
    return ak.Window(capacity - 1, 0) if ring else ak.Causal()


@pytest.mark.parametrize(("capacity", "ring"), [(13, False), slow(5, True)], ids=["full", "ring"])
def test_a_bfloat16_cache_rounds_keys_and_values_alone(capacity, ring):
    """Against the formula in float64 with keys and values rounded; scores up to 1e4."""
    plain = built(ak.MultiheadAttention, 2, 6, qk_size=5, vo_size=7)
    x = np.random.default_rng(8).normal(size=(13, 6)).astype("f")
    programs = []

    @eqx.filter_jit
    def step(module, row, cache):
        programs.append(cache)
        return module.step(row, cache)

    @eqx.filter_jit
    def results(module, x):
        heads = (module.query_proj, module.key_proj, module.value_proj)
        q, k, v = (jax.vmap(linear)(x).reshape(13, 2, -1) for linear in heads)
        k, v = (part.astype(jnp.bfloat16) for part in (k, v))
        return module(x, x, x, prior=seen_by(capacity, ring)), module.weights(x, x), (q, k, v)

    largest = np.abs(np.log(results(plain, x)[1])).max()
    i = np.arange(13)
    seen = (i[None] <= i[:, None]) & (i[None] > i[:, None] - capacity)
    for scores in (1.0, 1e4):
        weight = plain.query_proj.weight * np.float32(scores / largest)
        module = eqx.tree_at(lambda m: m.query_proj.weight, plain, weight)
        cache, rows = module.cache(capacity, ring=ring, dtype=jnp.bfloat16), []
        for row in x:
            out, cache = step(module, row[None], cache)
            rows.append(out)
        assert cache.keys.dtype == cache.values.dtype == jnp.bfloat16
        assert out.dtype == jnp.float32
        out = np.concatenate(jax.device_get(rows))
        full, _, heads = jax.device_get(results(module, x))
        q, k, v = (part.astype(np.float64) for part in heads)
        heads = [numpy_attention(q[:, h], k[:, h], v[:, h], seen) for h in (0, 1)]
        expected = np.concatenate(heads, axis=1) @ np.asarray(module.output_proj.weight).T
        # float32 has a score of 1e4 to 1e-3
        np.testing.assert_allclose(out, expected, rtol=0, atol=2e-6 if scores == 1.0 else 1e-3)
        if scores == 1.0:
            assert 1e-6 < np.abs(out - full).max() < 2**-8 * np.abs(full).max()
    assert len(programs) == 1


def test_a_ring_keeps_the_last_rows_before_the_padding():
    """Eight rows, five of them valid, at once in a ring of four."""
    module = built(ak.MultiheadAttention, 2, 4)
    after = jax.jit(lambda x: module.step(x, module.cache(4, ring=True), count=5)[1])
    assert sorted(np.asarray(after(np.ones((8, 4), np.float32)).rows.numbers)) == [1, 2, 3, 4]
