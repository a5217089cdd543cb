"""Rotary positions against complex numbers written out, and frequencies against transformers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, rows_of
from refusals import assert_raises, assert_refused

import attnkernel as ak
from attnkernel import nn

# `_compute_yarn_parameters` and `_compute_llama3_parameters` of transformers 4.57.1, whose
# `modeling_rope_utils.py` was run on NumPy arrays in float64; yarn: head_dim 16, rope_theta 1e4,
# factor 4, original length 2048; llama3: 5e5, factor 8, low 1, high 4, original length 8192
TRANSFORMERS = {
    "yarn": """1.0 0.316227766017 0.1 0.0256935059889
        0.00625 0.00138349647632 0.00025 7.90569415042e-05""",
    "llama3": """1.0 0.193922744749 0.0376060309309 0.00729266473722
        0.000524846160993 3.42810219595e-05 6.64786987118e-06 1.28917317215e-06""",
}


def test_frequencies_of_longer_sequences():
    yarn = nn.yarn_frequencies(16, 4.0, 2048)
    np.testing.assert_allclose(yarn, np.array(TRANSFORMERS["yarn"].split(), float), rtol=1e-11)
    llama3 = nn.llama3_frequencies(16, 8.0, 8192)
    np.testing.assert_allclose(llama3, np.array(TRANSFORMERS["llama3"].split(), float), rtol=1e-11)
    plain = nn.rotary_frequencies(10)
    np.testing.assert_allclose(plain, [1e4 ** (-c / 5) for c in range(5)], rtol=1e-14)
    slowed = plain / nn.ntk_frequencies(10, 6.0)  # geometric, from 1 to the factor
    np.testing.assert_allclose(slowed, 6.0 ** (np.arange(5) / 4), rtol=1e-13)
    for scaled in (nn.ntk_frequencies, nn.yarn_frequencies, nn.llama3_frequencies):
        length = () if scaled is nn.ntk_frequencies else (64,)
        np.testing.assert_allclose(scaled(10, 1.0, *length, base=1e4), plain, rtol=1e-13)


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_are_turned_and_the_rest_is_kept(x64, interleaved):
    """Points of 7 coordinates in a batch, of which 6 are rotated, at positions along two axes."""
    x = np.random.default_rng(0).normal(size=(2, 5, 7))
    at = np.array([[0, 3], [1, 2], [-4, 9], [1000, 0], [5, 5]])
    theta = np.array([[1.0, 0.3, 0.0], [0.0, 0.2, 0.7]])
    first, second = (x[..., :6:2], x[..., 1:6:2]) if interleaved else (x[..., :3], x[..., 3:6])
    turned = (first + 1j * second) * np.exp(1j * at @ theta)
    expected = x.copy()
    if interleaved:
        expected[..., :6:2], expected[..., 1:6:2] = turned.real, turned.imag
    else:
        expected[..., :3], expected[..., 3:6] = turned.real, turned.imag
    rotaries = [ak.Rotary(each, interleaved=interleaved) for each in (theta, ak.fixed(theta))]
    for found in eqx.filter_jit(lambda turn, x, at: [one(x, at) for one in turn])(rotaries, x, at):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_angles_of_points_in_half_precision_are_not_rounded():
    """bfloat16 rounds a position of 1001 to 1000: angles are computed in float32."""
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(jnp.bfloat16)
    positions, rotary = np.array([0, 1001, 4099]), ak.Rotary(base=100.0)
    found = np.asarray(jax.jit(lambda x: rotary(x, jnp.asarray(positions)))(x))
    assert found.dtype == jnp.bfloat16
    first, second = np.split(x.astype(np.float64), 2, axis=1)
    turned = (first + 1j * second) * np.exp(1j * positions[:, None] / 100.0 ** (np.arange(3) / 3))
    expected = np.concatenate([turned.real, turned.imag], axis=1)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2**-8, atol=2e-3)


def test_frequencies_are_trained_if_given_and_fixed_if_held():
    x, at, given = np.ones((3, 4), np.float32), np.arange(3), np.array([0.3, 0.2])
    for frequencies, number in ((None, 0), (ak.fixed(given), 0), (given, 1)):
        trained = eqx.filter(ak.Rotary(frequencies), eqx.is_inexact_array)
        assert len(jax.tree.leaves(trained)) == number
    turned = lambda rotary: rotary(jnp.asarray(x), jnp.asarray(at))[2, 0]  # noqa: E731
    slope = eqx.filter_jit(eqx.filter_grad(turned))(ak.Rotary(given))
    expected = [2 * (-np.sin(0.6) - np.cos(0.6)), 0.0]  # of cos 2θ − sin 2θ
    np.testing.assert_allclose(slope.frequencies_parameter.value, expected, rtol=1e-5)


@pytest.mark.slow
def test_decoding_equals_the_full_pass_with_frequencies_of_two_axes(x64):
    """As of the patches of an image: only distances count, and a step takes their positions."""
    rotary = ak.Rotary(ak.fixed(nn.axial_frequencies([2, 4], 50.0)), interleaved=True)
    options = {"qk_size": 7, "rotary": rotary, "prior": ak.Alibi(0.1)}
    attention, x = built(ak.MultiheadAttention, 2, 6, **options), rows_of((6, 6))
    at = np.stack(np.divmod(np.arange(6), 3), axis=1)

    @eqx.filter_jit
    def results(attention, x):
        def whole(at):
            options = {"positions": at, "key_positions": at, "prior": ak.Causal()}
            return attention(x, x, x, **options)

        def two_rows(cache, given):
            rows, at = given
            out, cache = attention.step(rows, cache, positions=at)
            return cache, out

        pairs = x.reshape(3, 2, 6), jnp.asarray(at).reshape(3, 2, 2)
        decoded = jax.lax.scan(two_rows, attention.cache(6), pairs)[1]
        return jax.vmap(whole)(jnp.stack([at, at + 5])), decoded.reshape(6, 6)

    (whole, moved), decoded = jax.device_get(results(attention, x))
    np.testing.assert_allclose(moved, whole, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(decoded, whole, rtol=1e-11, atol=1e-12)
    x = jax.device_put(x)
    message = "positions must have one number per row and each of"
    assert_raises(message, jax.eval_shape, lambda x: attention(x, x, x), x)
    message = r"positions must have .*\(6, 2\); got None"
    assert_raises(message, jax.eval_shape, lambda x: attention.step(x, attention.cache(6)), x)


def test_invalid_arguments_are_refused(as_users_run_it):
    assert_refused(
        (lambda: nn.rotary_frequencies(5), "size must be even: 5"),
        (lambda: ak.Rotary(np.ones((2, 2, 2))), r"frequencies .*\(pairs,\).*\(2, 2, 2\)"),
        (lambda: ak.Rotary([np.nan]), "frequencies must be finite"),
        (lambda: ak.Rotary([1.0, 2.0])(np.ones((2, 3)), [0, 1]), "4 coordinates.*size 3"),
        (lambda: ak.Rotary()(np.ones((2, 4)), [0, 1, 2]), r"positions .* per row.*\(3,\)"),
        (lambda: ak.Rotary(np.eye(2))(np.ones((2, 4)), [0, 1]), r"positions shape \(rows, 2\)"),
        (lambda: nn.ntk_frequencies(8, 0.5), r"factor must be at least 1.*0\.5"),
        (lambda: nn.llama3_frequencies(8, 8.0, 64, low=4.0, high=1.0), "high must be above 4"),
        (lambda: nn.yarn_frequencies(8, 8.0, 64, fast=0.5), "fast must be above 1"),
        (lambda: nn.axial_frequencies(4), r"sizes must be an even number for each axis.*4"),
        (lambda: built(ak.MultiheadAttention, 2, 4, rotary=1e4), r"rotary must be .*Rotary"),
    )
