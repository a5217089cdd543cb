"""Key-value caches: decoding row by row equals the full pass."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, numpy_attention, rows_of
from marks import slow

import attnkernel as ak

OPTIONS = {
    "plain": {},
    "grouped, rotary, normed": {"num_kv_heads": 2, "rotary": ak.Rotary(base=50.0), "qk_norm": True},
    "alibi": {"prior": ak.PerHead(eqx.filter_vmap(ak.Alibi)(ak.priors.alibi_slopes(4)))},
    "gaussian, window": {"kernel": ak.Gaussian(0.8), "prior": ak.Window(2, 0)},
    "entmax, capped": {"rule": ak.Entmax(1.5), "kernel": ak.SoftCapped(ak.DotProduct(), 3.0)},
}


@eqx.filter_jit
def attend_to_self(module, x, prior):
    return module(x, x, x, prior=prior)


@eqx.filter_jit
def step(module, x, cache):
    return module.step(x, cache)


def seen_by(capacity, ring):
    return ak.Window(capacity - 1, 0) if ring else ak.Causal()


@pytest.mark.parametrize(
    ("options", "capacity", "ring"),
    [
        ("plain", 13, False),
        ("gaussian, window", 13, False),
        ("grouped, rotary, normed", 4, True),
        ("alibi", 4, True),
        slow("entmax, capped", 4, True),
        *[
            slow(options, 13, False)
            for options in ("grouped, rotary, normed", "alibi", "entmax, capped")
        ],
        *[slow(options, 4, True) for options in ("plain", "gaussian, window")],
    ],
)
def test_decoding_with_a_cache_equals_the_full_pass(x64, options, capacity, ring):
    """Law 4: 1, 3 or 6 rows at once, then one at a time; a ring wraps more than once."""
    module, x = built(ak.MultiheadAttention, 4, 8, **OPTIONS[options]), rows_of((13, 8))
    expected = attend_to_self(module, x, seen_by(capacity, ring))
    for first in (1, 3, 6):
        out, cache = step(module, x[:first], module.cache(capacity, ring=ring))
        rows = [out]
        for t in range(first, 13):
            out, cache = step(module, x[t : t + 1], cache)
            rows.append(out)
        found = np.concatenate(jax.device_get(rows))
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
        assert int(cache.length) == 13
        assert cache.keys.shape[0] == capacity


@pytest.mark.parametrize(("capacity", "ring"), [(13, False), (5, True)], ids=["full", "ring"])
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


def test_a_full_cache_refuses_more_rows():
    module, x = built(ak.MultiheadAttention, 2, 4), jnp.ones((3, 4))
    _, cache = step(module, x, module.cache(4))
    jax.eval_shape(lambda row: module.step(row, cache), x[:1])  # the row that just fits
    with pytest.raises(ValueError, match=r"4 rows.* 3 more.*holds 3"):
        module.step(x, cache)
    with pytest.raises(Exception, match=r"4 rows.* 3 more"):
        jax.block_until_ready(step(module, x, cache))
    with pytest.raises(ValueError, match=r"capacity.*got 0"):
        module.cache(0)
