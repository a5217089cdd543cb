"""Every layer and cache: decoding equals the full pass, for ragged batches and long sequences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import rows_of
from decoders import SIZE, assert_close, empty, full_pass, layer_of, seen, step
from marks import slow

import attnkernel as ak


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("latent", "sinks"),
        ("memory", "ring"),
        ("bias reduced", "full"),
        ("gated delta rule", None),
        ("retention", None),
        slow("memory", "full"),
        slow("bias reduced", "sinks"),
        slow("multi-head", "sinks"),
        slow("latent", "full"),
        slow("latent", "ring"),
        slow("mesa", None),
    ],
)
def test_one_row_or_several_at_a_time(x64, name, cache):
    layer, x = layer_of(name), rows_of((13, SIZE))
    expected = full_pass(layer, x, seen(cache))
    for first in (1, 9):
        out, after = step(layer, x[:first], empty(layer, cache))
        found = [out]
        for row in x[first:]:
            out, after = step(layer, row[None], after)
            found.append(out)
        assert_close(np.concatenate(jax.device_get(found)), expected)
        assert int(after.length) == 13


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("multi-head", "sinks"),
        ("latent", "full"),
        ("linear", None),
        ("gated delta rule", None),
        slow("memory", "sinks"),
        slow("bias reduced", "sinks"),
        slow("multi-head", "full"),
        slow("multi-head", "ring"),
        slow("latent", "sinks"),
        slow("retention", None),
        slow("mesa", None),
    ],
)
def test_ragged_batches(x64, name, cache):
    """Three sequences, four rows at a time, of which some are padding and hold NaN."""
    layer, x = layer_of(name), rows_of((3, 13, SIZE))
    expected = jax.vmap(lambda x: full_pass(layer, x, seen(cache)))(x)
    caches = jax.vmap(lambda _: empty(layer, cache))(np.arange(3))
    batch = eqx.filter_jit(jax.vmap(lambda x, cache, count: layer.step(x, cache, count=count)))
    lengths = np.zeros(3, int)
    for counts in ([4, 2, 0], [3, 4, 1], [0, 1, 4], [4, 4, 1]):
        given = np.full((3, 4, SIZE), np.nan)
        for i, count in enumerate(counts):
            given[i, :count] = x[i, lengths[i] : lengths[i] + count]
        out, caches = batch(given, caches, np.array(counts))
        for i, count in enumerate(counts):
            assert_close(out[i, :count], expected[i, lengths[i] : lengths[i] + count])
            assert np.all(out[i, count:] == 0.0)
        lengths += counts
        np.testing.assert_array_equal(caches.length, lengths)


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("multi-head", {"capacity": 12, "ring": True, "sinks": 2}),
        ("gated delta rule", {}),
        slow("multi-head", {"capacity": 4096}),
        slow("latent", {"capacity": 12, "ring": True, "sinks": 2}),
    ],
    ids=["multi-head, ring", "gated delta rule", "multi-head, full", "latent, ring"],
)
def test_4096_rows_in_one_program_whose_memory_does_not_grow(x64, name, cache):
    layer = layer_of(name)
    frequencies = np.arange(1, SIZE + 1) / 7.0

    def decode(layer, cache, steps):
        def next_row(carry, _):
            cache, _ = carry
            row = jnp.sin(cache.length * frequencies)[None]
            out, cache = layer.step(row, cache)
            return (cache, out[0]), None

        start = (cache, jnp.zeros(layer.output_size))
        return jax.lax.scan(next_row, start, length=steps)[0]

    def compiled(steps):
        return eqx.filter_jit(decode).lower(layer, layer.cache(**cache), steps).compile()

    programs = {steps: compiled(steps) for steps in (64, 4096)}
    memory = {
        steps: program.compiled.memory_analysis().temp_size_in_bytes
        for steps, program in programs.items()
    }
    assert memory[64] == memory[4096]
    after, last = programs[4096](layer, layer.cache(**cache), 4096)
    assert int(after.length) == 4096
    at = np.arange(4096)
    if cache.get("ring"):  # the rows that the last one sees
        at = np.concatenate([at[:2], at[-10:]])
    x = jnp.sin(at[:, None] * frequencies)
    if isinstance(layer, ak.nn.RecurrentAttention):
        expected = layer(x)
    elif isinstance(layer, ak.nn.LatentAttention):
        expected = layer(x, positions=at)
    else:
        expected = layer(
            x[-1:], x, x, positions=jnp.asarray(at[-1:]), key_positions=jnp.asarray(at)
        )
    assert_close(last, expected[-1])
