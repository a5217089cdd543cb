"""RecurrentAttention and LatentAttention: their equations in NumPy, masks, and what they refuse;
decoding of latents never forms keys or values."""

import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, numpy_attention, rows_of
from kernel_formulas import elu
from marks import slow
from refusals import assert_refused

import attnkernel as ak
from attnkernel.nn import RecurrentAttention
from attnkernel.recurrent import DeltaRule, LinearAttention, RecursiveLeastSquares

ROWS, SIZE, HEADS, QK, VO, OUT = 9, 7, 2, 3, 5, 4
SIZES = (HEADS, SIZE, OUT, QK, VO)
BIASES = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}


def linear(layer, x):
    """The product with the weight of a linear layer, plus its bias."""
    out = x @ np.asarray(layer.weight).T
    return out if layer.bias is None else out + np.asarray(layer.bias)


def by_row(layer, x, update, activation=lambda x: x):
    """The equations, a head and a row at a time; `update` returns the state and its read."""
    rows = len(x)
    q, k, v = (linear(p, x) for p in (layer.query_proj, layer.key_proj, layer.value_proj))
    if layer.convolutions is not None:
        parts = zip(layer.convolutions, (q, k, v), strict=True)
        q, k, v = (convolved(convolution, part) for convolution, part in parts)
    q, k = (activation(part).reshape(rows, HEADS, -1) for part in (q, k))
    v = v.reshape(rows, HEADS, VO)
    if layer.qk_norm:
        q, k = (part / np.linalg.norm(part, axis=-1, keepdims=True) for part in (q, k))
    alpha = np.ones((rows, HEADS, 1))
    if layer.decay is not None:
        bias = np.asarray(layer.decay.bias)
        logits = np.broadcast_to(bias, (rows, *bias.shape))
        if layer.decay.proj is not None:
            logits = logits + linear(layer.decay.proj, x).reshape(logits.shape)
        alpha = 1 / (1 + np.exp(logits))  # exp(−softplus)
    beta = np.ones((rows, HEADS))
    if layer.rate_proj is not None:
        beta = layer.max_rate / (1 + np.exp(-linear(layer.rate_proj, x)))
    read = np.zeros((rows, HEADS, VO))
    for h in range(HEADS):
        state = np.zeros((k.shape[2], VO))
        for t in range(rows):
            state = update(alpha[t, h][:, None] * state, k[t, h], v[t, h], beta[t, h])
            read[t, h] = q[t, h] @ state
    if layer.output_norm is not None:
        squares = np.mean(read**2, axis=-1, keepdims=True)
        read = read / np.sqrt(squares + layer.output_norm.eps)
        read = read * np.asarray(layer.output_norm.weight)
    read = read.reshape(rows, -1)
    if layer.gate_proj is not None:
        gate = linear(layer.gate_proj, x)
        read = read * gate / (1 + np.exp(-gate))
    return linear(layer.output_proj, read)


def convolved(convolution, x):
    """Each row from itself and those before, from NumPy's convolution of each column."""
    weight = np.asarray(convolution.weight)
    columns = [np.convolve(x[:, c], weight[:, c])[: len(x)] for c in range(x.shape[1])]
    out = np.stack(columns, axis=1)
    return out / (1 + np.exp(-out)) if convolution.silu else out


def delta(state, k, v, beta):
    return state + beta * np.outer(k, v - k @ state)


def added(state, k, v, beta):
    return state + beta * np.outer(k, v)


def case(update, estimator, **options):
    return {"estimator": estimator, **options}, update


CASES = {
    "gated delta rule": case(
        delta,
        DeltaRule(),
        decay="row",
        max_rate=1.5,
        qk_norm=True,
        output_gate=True,
        conv_width=3,
        **BIASES,
    ),
    "gated linear attention": case(
        added, LinearAttention(), decay="channel", output_gate=True, conv_width=2, conv_silu=False
    ),
    "retention without a norm": case(added, LinearAttention(), decay="head", output_norm=False),
    "rates and elu features": case(
        added, LinearAttention(), max_rate=0.5, kernel=ak.kernels.EluFeatures()
    ),
    "kimi delta attention": case(delta, DeltaRule(), decay="channel", max_rate=1.0, qk_norm=True),
}


@pytest.mark.parametrize(
    "name", [slow(name) if name.startswith(("kimi", "retention")) else name for name in CASES]
)
def test_equal_to_the_equations(x64, name):
    options, update = CASES[name]
    layer, x = built(RecurrentAttention, *SIZES, **options), rows_of((ROWS, SIZE))
    if layer.output_norm is not None:
        scale = rows_of(VO, seed=3)
        layer = eqx.tree_at(lambda layer: layer.output_norm.weight, layer, scale)
    activation = elu if "kernel" in options else lambda x: x
    expected = by_row(layer, x, update, activation)
    np.testing.assert_allclose(eqx.filter_jit(layer)(x), expected, rtol=1e-9, atol=1e-11)


def test_rows_that_are_masked_are_not_there(x64):
    """In values and in the gradients of every weight, whatever they hold."""
    options, _ = CASES["gated delta rule"]
    layer, x = built(RecurrentAttention, *SIZES, **options), rows_of((ROWS, SIZE))
    there = np.array([1, 1, 0, 1, 0, 1, 1, 0, 1], bool)
    padded = np.where(there[:, None], x, np.nan)

    @eqx.filter_jit
    def value_and_slopes(layer, x, mask):
        def loss(layer):
            out = layer(x, mask)
            return jnp.sum(jnp.sin(out)), out

        (_, out), slopes = eqx.filter_value_and_grad(loss, has_aux=True)(layer)
        return out, jax.tree.leaves(slopes)

    out, slopes = jax.device_get(value_and_slopes(layer, padded, there))
    alone, expected = jax.device_get(value_and_slopes(layer, x[there], None))
    np.testing.assert_allclose(out[there], alone, rtol=1e-9)
    assert np.all(out[~there] == 0.0)
    for both in zip(slopes, expected, strict=True):
        np.testing.assert_allclose(*both, rtol=1e-8, atol=1e-10)


def test_decays_start_with_a_memory_of_10_to_1000_rows():
    for of, sizes in (("head", (5, 1)), ("row", (5, 1)), ("channel", (5, 2))):
        layer = built(RecurrentAttention, 5, 10, estimator=LinearAttention(), decay=of)
        log_decay = eqx.filter_jit(layer.decay)(np.zeros((1, 10), np.float32))
        assert log_decay.shape == (5, 1, sizes[1])
        memory = np.sort(np.unique(np.round(-1 / np.asarray(log_decay), 3)))
        assert memory[0] > 10
        assert memory[-1] < 1000
        np.testing.assert_allclose(np.log10(memory[0]) - 1, 3 - np.log10(memory[-1]), atol=1e-3)


def test_a_float64_cache_sums_float32_rows_in_float64(x64):
    """The carry of a scan keeps its dtypes."""
    layer = built(RecurrentAttention, 2, 4, estimator=LinearAttention(), dtype=jnp.float32)
    x = rows_of((3, 4)).astype(np.float32)
    step = eqx.filter_jit(lambda layer, x: (*layer.step(x, layer.cache()), layer(x)))
    out, cache, whole = step(layer, x)
    assert (out.dtype, cache.state.matrix.dtype) == (jnp.float32, jnp.float64)
    np.testing.assert_allclose(out, whole, rtol=1e-5, atol=1e-6)


def test_bfloat16_where_implicit_promotion_is_forbidden():
    """The state and the gates are in float32, the rows in bfloat16."""
    options = {"estimator": DeltaRule(), "decay": "channel", "max_rate": 1.0, "qk_norm": True}
    options["conv_width"] = 2
    with jax.numpy_dtype_promotion("strict"):
        layer = built(RecurrentAttention, 2, 4, **options, output_gate=True, dtype=jnp.bfloat16)
        x = rows_of((5, 4)).astype(jnp.bfloat16)
        step = eqx.filter_jit(lambda layer, x: layer.step(x, layer.cache(dtype=jnp.bfloat16)))
        out, cache = jax.device_get(step(layer, x))
    assert (out.dtype, cache.state.heads.matrix.dtype) == (jnp.bfloat16, jnp.float32)

    @eqx.filter_jit
    def in_float32(layer, x):
        wide = jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_array(a) else a, (layer, x))
        return wide[0](wide[1])

    expected = in_float32(layer, x)
    np.testing.assert_allclose(out.astype(np.float32), expected, rtol=0.03, atol=0.03)


def made(**options):
    return built(RecurrentAttention, 2, 4, **{"estimator": LinearAttention(), **options})


def step(x, **options):
    return made().step(x, made().cache(), **options)


def convolution():
    return built(ak.nn.ShortConvolution, 4, 2)


def rows(count, size=4):
    return np.ones((count, size), np.float32)


def test_invalid_arguments_are_refused(as_users_run_it):
    assert_refused(
        (lambda: made(estimator=DeltaRule()), r"DeltaRule needs rate=.*max_rate=1\.0"),
        (lambda: made(estimator=DeltaRule(), max_rate=1.0), r"β‖k‖² ≤ 2.*qk_norm=True"),
        (lambda: made(estimator=DeltaRule(), max_rate=2.5, qk_norm=True), r"β‖k‖² = 2\.5"),
        (lambda: made(estimator=RecursiveLeastSquares(1.0), decay="channel"), "one decay per row"),
        (lambda: convolution().step(rows(3), rows(2)), r"recent .*\(1, 4\); got \(2, 4\)"),
        (lambda: made()(rows(3, 5)), r"x must be one sequence, shape \(rows, 4\)"),
        (lambda: made()(rows(3), np.ones(2, bool)), r"mask .*\(3,\); got \(2,\)"),
        (lambda: step(rows(2), mask=np.tri(2) > 0), "mask must be None: a recurrent state holds"),
        (lambda: step(rows(0)), "x has no rows"),
        (lambda: made().step(rows(2), ak.nn.KVCache(4, 2, 2, 2)), "a RecurrentCache"),
        (lambda: made().cache().rollback(0), "cannot give rows back: keep the earlier cache"),
        (lambda: ak.nn.RecurrentCache(None), "state must be a tree of arrays"),
    )


LATENT_HEADS, LATENT, LATENT_OUT, LATENT_QK, LATENT_VO, TURNED = 3, 5, 6, 4, 3, 2
OF_LATENT = (LATENT_HEADS, SIZE, LATENT, LATENT_OUT, LATENT_QK, LATENT_VO, TURNED)


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
    for h in range(LATENT_HEADS):
        q = of_queries @ weight("query_proj").reshape(LATENT_HEADS, LATENT_QK + TURNED, -1)[h].T
        q = np.concatenate([q[:, :LATENT_QK], turned(q[:, LATENT_QK:])], axis=1)
        k = latents @ weight("key_proj").reshape(LATENT_HEADS, LATENT_QK, LATENT)[h].T
        v = latents @ weight("value_proj").reshape(LATENT_HEADS, LATENT_VO, LATENT)[h].T
        heads.append(numpy_attention(q, np.concatenate([k, shared], axis=1), v, seen))
    return np.concatenate(heads, axis=1) @ weight("output_proj").T


@pytest.mark.parametrize(("norm", "of_queries"), [(True, 4), slow(False, 4), slow(True, None)])
def test_equal_to_the_equations_with_keys_and_without(x64, norm, of_queries):
    """The full pass has keys and values; `step` has their products with queries and outputs."""
    options = {"latent_norm": norm, "query_latent_size": of_queries}
    layer, x = built(ak.nn.LatentAttention, *OF_LATENT, **options), rows_of((ROWS, SIZE))
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
    layer, x = built(ak.nn.LatentAttention, *OF_LATENT), rows_of((ROWS, SIZE))
    mask = np.random.default_rng(1).random((ROWS, ROWS)) < 0.6
    mask |= np.eye(ROWS, dtype=bool)

    @eqx.filter_jit
    def results(layer, x):
        return layer(x, mask), layer(x, jnp.stack([mask] * LATENT_HEADS))

    expected = by_head(layer, x, mask, np.arange(ROWS))
    for found in results(layer, x):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_a_bfloat16_cache_rounds_latents_alone():
    layer = built(ak.nn.LatentAttention, *OF_LATENT)
    x = rows_of((ROWS, SIZE)).astype(np.float32)

    @eqx.filter_jit
    def both(layer, x):
        out, cache = layer.step(x, layer.cache(ROWS, dtype=jnp.bfloat16))
        return out, cache.keys, layer(x, prior=ak.Causal())

    out, latents, full = jax.device_get(both(layer, x))
    assert (out.dtype, latents.dtype) == (jnp.float32, jnp.bfloat16)
    assert 1e-6 < np.abs(out - full).max() < 2**-6 * np.abs(full).max()


ONES = np.ones((3, 4), np.float32)


def made_latent(*sizes, **options):
    return built(ak.nn.LatentAttention, *(sizes or (2, 4, 3)), **options)


def test_invalid_arguments_of_latent_attention_are_refused(as_users_run_it):
    assert_refused(
        (lambda: made_latent(rotary_size=3), "rotary_size 3.*even"),
        (lambda: made_latent(rotary_size=2, rotary=ak.Rotary(np.eye(2))), "rotary"),
        (lambda: made_latent(rotary=ak.Rotary(np.ones((2, 1)))), "frequencies of one axis.*got 2"),
        (lambda: made_latent()(ONES[:, :3]), r"shape \(rows, 4\)"),
        (lambda: made_latent()(ONES, np.ones((3, 2), bool)), r"mask must be Boolean.*\(3, 3\)"),
        (lambda: made_latent()(ONES, positions=[0, 1]), r"positions .* per row, shape \(3,\)"),
    )
