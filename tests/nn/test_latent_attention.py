"""LatentAttention: its equations in NumPy, head by head; decoding never forms keys or values."""

import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, numpy_attention, rows_of
from marks import slow
from refusals import assert_refused

import attnkernel as ak

ROWS, SIZE, HEADS, LATENT, OUT, QK, VO, TURNED = 9, 7, 3, 5, 6, 4, 3, 2
SIZES = (HEADS, SIZE, LATENT, OUT, QK, VO, TURNED)


def by_head(layer, x, seen, positions):
    """The equations, with the keys and values of each head."""

    def weight(name):
        return np.asarray(getattr(layer, name).weight)

    def latents_of(name, norm):
        latents = x @ weight(name).T
        if norm is None:
            return latents
        squares = np.mean(latents**2, axis=1, keepdims=True)
        return latents / np.sqrt(squares + norm.eps) * np.asarray(norm.weight)

    latents, of_queries = latents_of("latent_proj", layer.latent_norm), x
    if layer.query_latent_proj is not None:
        of_queries = latents_of("query_latent_proj", layer.query_latent_norm)

    def turned(points):
        """One pair of coordinates at frequency 1, as complex numbers."""
        rotated = (points[:, 0] + 1j * points[:, 1]) * np.exp(1j * positions)
        return np.stack([rotated.real, rotated.imag], axis=1)

    shared = turned(x @ weight("rotary_proj").T)
    heads = []
    for h in range(HEADS):
        q = of_queries @ weight("query_proj").reshape(HEADS, QK + TURNED, -1)[h].T
        q = np.concatenate([q[:, :QK], turned(q[:, QK:])], axis=1)
        k = latents @ weight("key_proj").reshape(HEADS, QK, LATENT)[h].T
        v = latents @ weight("value_proj").reshape(HEADS, VO, LATENT)[h].T
        heads.append(numpy_attention(q, np.concatenate([k, shared], axis=1), v, seen))
    return np.concatenate(heads, axis=1) @ weight("output_proj").T


@pytest.mark.parametrize(("norm", "of_queries"), [(True, 4), slow(False, 4), slow(True, None)])
def test_equal_to_the_equations_with_keys_and_without(x64, norm, of_queries):
    """The full pass has keys and values; `step` has their products with queries and outputs."""
    options = {"latent_norm": norm, "query_latent_size": of_queries}
    layer, x = built(ak.nn.LatentAttention, *SIZES, **options), rows_of((ROWS, SIZE))
    for name in ("latent_norm", "query_latent_norm"):
        if (of_name := getattr(layer, name)) is not None:  # a scale other than 1
            scale = rows_of(len(of_name.weight), seed=2)
            scaled = eqx.tree_at(lambda norm: norm.weight, of_name, scale)
            layer = eqx.tree_at(operator.attrgetter(name), layer, scaled)
    at = 3 * np.arange(ROWS) + 40
    expected = by_head(layer, x, np.tri(ROWS, dtype=bool), at)

    @eqx.filter_jit
    def results(layer, x):
        full = layer(x, prior=ak.Causal(), positions=at)
        return full, layer.step(x, layer.cache(ROWS + 2), positions=at)[0]

    for found in results(layer, x):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_masks_of_rows_and_of_heads(x64):
    layer, x = built(ak.nn.LatentAttention, *SIZES), rows_of((ROWS, SIZE))
    mask = np.random.default_rng(1).random((ROWS, ROWS)) < 0.6
    mask |= np.eye(ROWS, dtype=bool)

    @eqx.filter_jit
    def results(layer, x):
        return layer(x, mask), layer(x, jnp.stack([mask] * HEADS))

    expected = by_head(layer, x, mask, np.arange(ROWS))
    for found in results(layer, x):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_a_bfloat16_cache_rounds_latents_alone():
    layer = built(ak.nn.LatentAttention, *SIZES)
    x = rows_of((ROWS, SIZE)).astype(np.float32)

    @eqx.filter_jit
    def both(layer, x):
        out, cache = layer.step(x, layer.cache(ROWS, dtype=jnp.bfloat16))
        return out, cache.keys, layer(x, prior=ak.Causal())

    out, latents, full = jax.device_get(both(layer, x))
    assert (out.dtype, latents.dtype) == (jnp.float32, jnp.bfloat16)
    assert 1e-6 < np.abs(out - full).max() < 2**-6 * np.abs(full).max()


ONES = np.ones((3, 4), np.float32)


def made(*sizes, **options):
    return built(ak.nn.LatentAttention, *(sizes or (2, 4, 3)), **options)


def test_invalid_arguments_are_refused(as_users_run_it):
    assert_refused(
        (lambda: made(2, 4, 0), "latent_size must be an integer, at least 1"),
        (lambda: made(query_latent_size=0), "query_latent_size must be an integer, at least 1"),
        (lambda: made(rotary_size=3), "rotary_size 3.*even"),
        (lambda: made(rotary_size=2, rotary=ak.Rotary(np.eye(2))), "rotary"),
        (lambda: made(rotary=ak.Rotary(np.ones((2, 1)))), "frequencies of one axis.*got 2 axes"),
        (lambda: made(rule=ak.Gaussian()), "rule must be a Rule"),
        (lambda: made()(ONES[:, :3]), r"shape \(rows, 4\)"),
        (lambda: made()(ONES, np.ones((3, 2), bool)), r"mask must be Boolean.*\(3, 3\)"),
        (lambda: made()(ONES, positions=[0, 1]), r"positions .* per row, shape \(3,\)"),
    )
