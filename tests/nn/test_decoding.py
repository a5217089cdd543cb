"""Law 4: with every layer and cache, decoding equals the full pass; ragged and long sequences,
caches in half precision, and rings that are written at once."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, numpy_attention, rows_of
from decoders import SIZE, assert_close, empty, full_pass, layer_of, seen
from marks import slow

import attnkernel as ak

ROWS, AT_ONCE = 22, 9
COUNTS = np.array([[4, 2, 0], [3, 4, 1], [0, 1, 4], [4, 4, 1]])  # rows, by step and sequence


def padded_parts(x):
    """The rows of each step and sequence; those of padding hold NaN."""
    parts = np.full((*COUNTS.shape, 4, SIZE), np.nan)
    for (t, i), count in np.ndenumerate(COUNTS):
        before = COUNTS[:t, i].sum()
        parts[t, i, :count] = x[i, before : before + count]
    return parts


@eqx.filter_jit
def decode(layer, cache, x, parts):
    """The full passes, and decoding: several rows, then single ones; single ones; ragged parts."""
    full = jax.vmap(lambda x: full_pass(layer, x, seen(cache)))(x)
    start = empty(layer, cache)
    several, after = layer.step(x[0, :AT_ONCE], start)

    def one_row(caches, rows):
        out, caches = jax.vmap(layer.step)(rows[:, None], caches)
        return caches, out[:, 0]

    def ragged(caches, given):
        step = jax.vmap(lambda x, cache, count: layer.step(x, cache, count=count))
        out, caches = step(given[0], caches, given[1])
        return caches, (out, caches.length)

    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), start, after)
    rows = jnp.stack([x[0, :-AT_ONCE], x[0, AT_ONCE:]], axis=1)
    both, single = jax.lax.scan(one_row, both, rows)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(x)), start)
    _, of_parts = jax.lax.scan(ragged, many, (parts, COUNTS))
    return full, several, single, both.length, of_parts


# caches by layer; those of DEFAULT are tested by default
CASES = {
    "plain": ["full"],
    "multi-head": ["full", "sinks"],
    "alibi": ["ring"],
    "gaussian, window": ["full", "sinks"],
    "entmax, capped": ["ring"],
    "latent": ["sinks", "full"],
    "memory": ["ring", "full"],
    "bias reduced": ["full", "sinks"],
    **dict.fromkeys(["linear", "gated delta rule", "retention", "mesa"], (None,)),
}
PAIRS = [(name, cache) for name, caches in CASES.items() for cache in caches]
DEFAULT = {("alibi", "ring"), ("latent", "sinks"), ("memory", "ring"), ("gated delta rule", None)}


@pytest.mark.parametrize(
    ("name", "cache"), [pair if pair in DEFAULT else slow(*pair) for pair in PAIRS]
)
def test_decoding_equals_the_full_pass(x64, name, cache):
    """One row, 4 or 9 rows at a time; in ragged batches, rows of padding hold NaN and give 0."""
    x = rows_of((3, ROWS, SIZE))
    found = decode(layer_of(name), cache, x, padded_parts(x))
    full, several, single, lengths, (ragged, ragged_lengths) = jax.device_get(found)
    assert_close(several, full[0, :AT_ONCE])
    assert_close(single[:, 0], full[0, :-AT_ONCE])
    assert_close(single[:, 1], full[0, AT_ONCE:])
    np.testing.assert_array_equal(lengths, [ROWS - AT_ONCE, ROWS])
    np.testing.assert_array_equal(ragged_lengths, COUNTS.cumsum(axis=0))
    for (t, i), count in np.ndenumerate(COUNTS):
        before = COUNTS[:t, i].sum()
        assert_close(ragged[t, i, :count], full[i, before : before + count])
        assert np.all(ragged[t, i, count:] == 0.0)


@pytest.mark.parametrize("name", ["multi-head", *map(slow, ("gated delta rule", "latent"))])
def test_4096_rows_in_one_program_whose_memory_does_not_grow(x64, name):
    """With a state, or a ring of ten rows after two sinks."""
    layer = layer_of(name)
    has_ring = not isinstance(layer, ak.nn.RecurrentAttention)
    frequencies = np.arange(1, SIZE + 1) / 7.0

    def decode(layer, cache, steps):
        def next_row(carry, _):
            cache, _ = carry
            row = jnp.sin(cache.length * frequencies)[None]
            out, cache = layer.step(row, cache)
            return (cache, out[0]), None

        start = (cache, jnp.zeros(layer.output_size))
        return jax.lax.scan(next_row, start, length=steps)[0]

    start = layer.cache(12, ring=True, sinks=2) if has_ring else layer.cache()
    program = eqx.filter_jit(decode).lower(layer, start, 4096).compile()
    # the rows alone are 128 KiB
    assert program.compiled.memory_analysis().temp_size_in_bytes < 2**15
    after, last = program(layer, start, 4096)
    assert int(after.length) == 4096
    at = np.arange(4096)
    if has_ring:  # the rows that the last one sees
        at = np.concatenate([at[:2], at[-10:]])
    x = np.sin(at[:, None] * frequencies)

    @eqx.filter_jit
    def expected(layer, x):
        if not has_ring:
            return layer(x)
        if isinstance(layer, ak.nn.LatentAttention):
            return layer(x, positions=at)
        return layer(x[-1:], x, x, positions=jnp.asarray(at[-1:]), key_positions=jnp.asarray(at))

    # the scan rounds the arguments of sines, up to 2341 of them, in its own way
    np.testing.assert_allclose(last, expected(layer, x)[-1], rtol=1e-8, atol=1e-10)


def test_a_full_cache_refuses_more_rows():
    layer, x = built(ak.MultiheadAttention, 2, 4), jax.device_put(np.ones((3, 4), np.float32))
    _, cache = eqx.filter_jit(lambda x: layer.step(x, layer.cache(4)))(x)
    jax.eval_shape(lambda x: layer.step(x[:1], cache), x)  # the row that just fits
    with pytest.raises(ValueError, match=r"4 rows.* 3 more.*holds 3"):
        layer.step(x, cache)
    with pytest.raises(Exception, match=r"4 rows.* 3 more"):
        jax.block_until_ready(eqx.filter_jit(layer.step)(x, cache))
    with pytest.raises(ValueError, match=r"capacity.*got 0"):
        layer.cache(0)


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
