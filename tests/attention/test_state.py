"""The softmax state: row maxima and unnormalised sums, merged over sets of keys (law 4)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import needs_finufft, slow

import attnkernel as ak
from attnkernel.attention import softmax_state
from attnkernel.kernels import EluFeatures
from attnkernel.methods import Blockwise, Dense, Fourier, Linear, Sorted
from attnkernel.priors import AtPositions

QUERIES, KEYS, DIM_V, CUT = 5, 11, 3, 4
RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(2, QUERIES, 1)), RNG.normal(size=(KEYS, 1))
V, COTANGENT = RNG.normal(size=(KEYS, DIM_V)), RNG.normal(size=(2, QUERIES, DIM_V))
I, J = np.arange(QUERIES), np.arange(KEYS)  # noqa: E741  the indices of the equations
SINKS = np.array([-0.5, 1.0])
# log π of two heads: the last query sees no key of the first set
ALLOWED = (J[None, :] <= 2 * I[:, None]) & ((I[:, None] < 4) | (J[None, :] >= CUT))
SLOPES = np.array([0.3, 0.7])
LOG_PRIOR = np.where(ALLOWED, -SLOPES[:, None, None] * np.abs(I[:, None] - J[None, :]), -np.inf)
LOG_WEIGHTS = Q * K.T + LOG_PRIOR


def prior_of(keys):
    mask = ak.priors.MaskFunction(lambda i, j: (j <= 2 * i) & ((i < 4) | (j >= CUT)))
    return AtPositions(ak.PerHead(ak.Alibi(ak.fixed(SLOPES))) * mask, I, keys)


@pytest.mark.parametrize("method", [Dense(), Blockwise(2, 3)], ids=["Dense", "Blockwise"])
def test_the_state_is_its_formula(x64, method):
    @jax.jit
    def states():
        options = {"kernel": ak.DotProduct(), "prior": prior_of(J), "method": method}
        exact = softmax_state(Q, K, V, **options, exact_maximum=True)
        any_maximum = softmax_state(Q, K, V, **options, exact_maximum=False)
        return exact, (any_maximum.log_mass, any_maximum.value)

    maximum = LOG_WEIGHTS.max(axis=2)
    weights = np.exp(LOG_WEIGHTS - maximum[..., None])
    exact, (log_mass, value) = states()
    for found, expected in (
        (exact.maximum, maximum),
        (exact.mass, weights.sum(axis=2)),
        (exact.total, weights @ V),
        (log_mass, maximum + np.log(weights.sum(axis=2))),
        (value, weights @ V / weights.sum(axis=2)[..., None]),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "methods",
    [(Dense(), Blockwise(2, 3)), slow((Blockwise(4, 4), Blockwise(2, 2)))],
    ids=["dense and blockwise", "blockwise"],
)
def test_states_of_two_sets_of_keys_merge_into_attention(x64, methods):
    """Values and gradients in the queries, by hand; the sink of each head is added once."""

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient(q):
        rule = ak.PerHead(ak.Softmax(log_sink_mass=SINKS))
        states = [
            softmax_state(
                q, K[part], V[part],
                kernel=ak.DotProduct(), prior=prior_of(J[part]), rule=rule, method=method,
            )
            for part, method in zip((slice(0, CUT), slice(CUT, None)), methods, strict=True)
        ]  # fmt: skip
        merged = states[0].merge(states[1]).with_sink(rule.stack.log_sink())
        return jnp.sum(COTANGENT * merged.value), (merged.value, merged.log_mass, states[0].mass)

    of_q, (value, log_mass, first_mass) = gradient(Q)
    weights = np.exp(LOG_WEIGHTS)
    mass = weights.sum(axis=2) + np.exp(SINKS)[:, None]
    shares = weights / mass[..., None]
    expected = shares @ V
    slope = shares * (COTANGENT @ V.T - np.sum(COTANGENT * expected, axis=2, keepdims=True))
    for found, of_formula in ((value, expected), (log_mass, np.log(mass)), (of_q, slope @ K)):
        np.testing.assert_allclose(found, of_formula, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(first_mass[:, 4], np.zeros(2))


@pytest.mark.parametrize(
    ("kernel", "method"),
    [
        (ak.Laplace(0.5), Sorted()),
        (EluFeatures(), Linear()),
        pytest.param(ak.Gaussian(0.5), Fourier(1e-12), marks=[pytest.mark.slow, needs_finufft]),
    ],
    ids=["Sorted", "Linear", "Fourier"],
)
def test_states_of_other_methods_merge(x64, kernel, method):
    @jax.jit
    def merged(q):
        parts = (slice(0, CUT), slice(CUT, None))
        first, second = (
            softmax_state(q, K[part], V[part], kernel=kernel, method=method) for part in parts
        )
        whole = ak.attend(q, K, V, kernel=kernel, method=Dense(), return_log_mass=True)
        union = first.merge(second)
        return (union.value, union.log_mass), whole

    for found, expected in zip(*merged(Q[0]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_half_precision_is_summed_in_float32_and_invalid_queries_are_nan():
    q, k, v = (array.astype(jnp.bfloat16) for array in (Q[0], K, V))
    invalid = np.where(I[:, None] == 1, np.nan, Q[0]).astype(jnp.bfloat16)

    @jax.jit
    def computed(q, invalid, k, v):
        state = softmax_state(invalid, k, v, kernel=ak.DotProduct())
        none = softmax_state(q, k[:0], v[:0], kernel=ak.DotProduct(), exact_maximum=True)
        return state, state.log_mass, state.value, none

    state, log_mass, value, none = computed(q, invalid, k, v)
    assert state.total.dtype == state.mass.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(np.asarray(log_mass, float)), I == 1)
    np.testing.assert_array_equal(np.isnan(np.asarray(value, float)).all(axis=1), I == 1)
    np.testing.assert_array_equal(none.maximum, np.zeros(QUERIES))
    np.testing.assert_array_equal(none.mass, np.zeros(QUERIES))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": ak.Entmax(1.5)}, "rule must weigh each key by itself.*Entmax"),
        (
            {"kernel": ak.Laplace(0.5), "method": Sorted(), "exact_maximum": True},
            r"exact_maximum=True needs method=.*Dense\(\) or .*Blockwise\(\); got Sorted",
        ),
        ({"method": Sorted()}, "Sorted cannot evaluate this"),
    ],
)
def test_what_has_no_state_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        softmax_state(Q[0], K, V, **{"kernel": ak.DotProduct()} | options)
