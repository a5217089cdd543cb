"""Sinks given by their logarithm: a learned score of each head joins the sum of the softmax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import needs_finufft, slow

import attnkernel as ak
from attnkernel.kernels import EluFeatures
from attnkernel.methods import Blockwise, Dense, Fourier, Linear, Sharded, Sorted

QUERIES, KEYS, DIM_V = 5, 7, 2
SINKS = np.array([-1.5, 0.3, 2.0])
RNG = np.random.default_rng(0)
Q, K, V, COTANGENT = (
    RNG.normal(size=size) for size in ((QUERIES, 1), (KEYS, 1), (KEYS, DIM_V), (QUERIES, DIM_V))
)
TWO_DEVICES = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("devices",))


def elu(x):
    return np.where(x > 0, x + 1, np.exp(x))


# each method with a kernel that it supports, and log K in NumPy
CASES = {
    "Dense": (Dense(), ak.DotProduct(), Q * K.T),
    "Blockwise": (Blockwise(2, 3), ak.DotProduct(), Q * K.T),
    "Sorted": (Sorted(), ak.Laplace(ak.fixed(0.5)), -np.abs(Q - K.T) / 0.5),
    "Fourier": (Fourier(1e-12), ak.Gaussian(ak.fixed(0.7)), -((Q - K.T) ** 2) / 0.98),
    "Linear": (Linear(), EluFeatures(), np.log(elu(Q) * elu(K.T))),
    "Sharded": (Sharded(TWO_DEVICES), ak.DotProduct(), Q * K.T),
}
MARKS = {
    "Blockwise": [pytest.mark.slow],
    "Sorted": [pytest.mark.slow],
    "Fourier": [pytest.mark.slow, needs_finufft],
    "Linear": [pytest.mark.slow],
    "Sharded": [pytest.mark.multi_device],
}


def by_hand(scores, sink):
    """Values, log-mass, and the derivatives of Σ C · value in the sink and in the values."""
    weights, zero = np.exp(scores), np.exp(sink)
    total = zero + weights.sum(axis=1)
    shares = weights / total[:, None]
    value = shares @ V
    of_sink = -np.sum(zero / total * np.sum(COTANGENT * value, axis=1))
    return value, np.log(total), of_sink, shares.T @ COTANGENT


@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, ())) for n in CASES])
def test_sinks_of_heads_are_their_formula_and_are_learned(x64, name):
    method, kernel, scores = CASES[name]

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
    def gradients(sinks, v):
        rule = ak.PerHead(ak.Softmax(log_sink_mass=sinks))
        options = {"kernel": kernel, "rule": rule, "method": method, "return_log_mass": True}
        value, log_mass = ak.attend(Q, K, v, **options)
        return jnp.sum(COTANGENT[None] * value), (value, log_mass)

    (of_sinks, of_values), (value, log_mass) = gradients(SINKS, V)
    expected = [by_hand(scores, sink) for sink in SINKS]
    for found, parts in ((value, 0), (log_mass, 1), (of_sinks, 2)):
        np.testing.assert_allclose(
            found, np.array([each[parts] for each in expected]), rtol=1e-9, atol=1e-9
        )
    np.testing.assert_allclose(of_values, sum(each[3] for each in expected), rtol=1e-9, atol=1e-9)


def test_a_log_sink_is_its_mass(x64):
    learned, fixed = (ak.Softmax(0.7, log_sink_mass=sink) for sink in (0.4, ak.fixed(0.4)))
    mass = ak.Softmax(0.7, sink_mass=ak.fixed(np.exp(0.4)))
    assert [len(jax.tree.leaves(rule)) for rule in (learned, fixed)] == [2, 1]

    @jax.jit
    def computed(q, k):
        stacked = ak.PerHead([ak.Softmax(log_sink_mass=sink) for sink in SINKS])
        figures = [
            (
                rule.sink_mass,
                rule.log_sink_mass,
                ak.attention_weights(q, k, kernel=ak.DotProduct(), rule=rule),
            )
            for rule in (learned, fixed, mass)
        ]
        return figures, stacked.stack.log_sink(), stacked.head(1).log_sink()

    figures, of_all, of_one = jax.device_get(computed(Q, K))
    for found in figures[:2]:
        for part, expected in zip(found, figures[2], strict=True):
            np.testing.assert_allclose(part, expected, rtol=1e-12)
    np.testing.assert_allclose(figures[2][:2], [np.exp(0.4), 0.4], rtol=1e-12)
    np.testing.assert_allclose(of_all, SINKS)
    np.testing.assert_allclose(of_one, SINKS[1])
    assert fixed.without_sink().log_sink() is None
    assert repr(ak.Softmax(log_sink_mass=0.4)) == (
        "Softmax(temperature=fixed(1.0), log_sink_mass=0.4)"
    )


@pytest.mark.parametrize(
    "method", [slow(Dense(), id="Dense"), pytest.param(Blockwise(2, 3), id="Blockwise")]
)
def test_sinks_far_from_the_scores(method):
    """Those of -inf are none, with a gradient of 0; high ones take all weight; a query that sees
    no key has the mass of its sink."""

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def value(sinks):
        rule = ak.PerHead(ak.Softmax(log_sink_mass=sinks))
        options = {"kernel": ak.DotProduct(), "method": method, "return_log_mass": True}
        q, k, v = (array.astype(np.float32) for array in (Q, K, V))
        prior = ak.priors.MaskFunction(lambda i, j: i > 0)
        out, log_mass = ak.attend(q, k, v, prior=prior, rule=rule, **options)
        return jnp.sum(out), (out, log_mass)

    sinks = np.array([-np.inf, -200.0, 300.0], np.float32)
    (_, (out, log_mass)), gradient = jax.device_get(value(sinks))
    expected = np.exp(Q * K.T) @ V / np.exp(Q * K.T).sum(axis=1, keepdims=True)
    for head in (0, 1):
        np.testing.assert_allclose(out[head, 1:], expected[1:], rtol=1e-5)
    np.testing.assert_array_equal(out[2], np.zeros((QUERIES, DIM_V)))
    np.testing.assert_array_equal(log_mass[2], np.full(QUERIES, 300.0))
    np.testing.assert_array_equal(log_mass[:, 0], [-np.inf, -200.0, 300.0])
    np.testing.assert_array_equal(gradient, np.zeros(3))


def test_both_sinks_are_refused():
    with pytest.raises(ValueError, match=r"one of sink_mass=.*log_sink_mass=.*got both"):
        ak.Softmax(sink_mass=0.1, log_sink_mass=0.0)
    with pytest.raises(ValueError, match=r"log_sink_mass must be a finite number.*leave it out"):
        ak.Softmax(log_sink_mass=-np.inf)
