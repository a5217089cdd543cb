"""Law 4: softmax states of sets of keys are a commutative monoid, safe at -inf and NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import attnkernel as ak
from attnkernel.methods import SoftmaxState

QUERIES, KEYS, DIM_V = 3, 4, 2


def part(seed: int, seen: int, shift: float, blank: bool) -> tuple[jax.Array, jax.Array]:
    """Log weights and values of `KEYS` keys, of which only the first `seen` have a weight."""
    rng = np.random.default_rng(seed)
    log_weights = rng.normal(size=(QUERIES, KEYS)) * 3 + shift
    log_weights[:, seen:] = -np.inf
    if blank:
        log_weights[1] = -np.inf  # a query that sees none of these keys
    return jnp.asarray(log_weights), jnp.asarray(rng.normal(size=(KEYS, DIM_V)))


PARTS = st.tuples(
    st.integers(0, 99),
    st.sampled_from([0, 1, KEYS]),
    st.sampled_from([-900.0, 0.0, 900.0]),
    st.booleans(),
)


def assert_close(a: SoftmaxState, b: SoftmaxState) -> None:
    np.testing.assert_allclose(a.value, b.value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(a.log_mass, b.log_mass, rtol=1e-12, atol=1e-12)


@jax.jit
def merged(parts):
    x, y, z = (SoftmaxState.from_log_weights(*arguments) for arguments in parts)
    log_weights, values = zip(*parts, strict=True)
    union = SoftmaxState.from_log_weights(
        jnp.concatenate(log_weights, axis=1), jnp.concatenate(values)
    )
    return x.merge(y), y.merge(x), x.merge(y).merge(z), x.merge(y.merge(z)), union


@given(PARTS, PARTS, PARTS)
def test_merge_is_associative_commutative_and_the_union(a, b, c):
    with jax.enable_x64(True):
        xy, yx, xy_z, x_yz, union = merged([part(*arguments) for arguments in (a, b, c)])
        assert_close(xy, yx)
        assert_close(xy_z, x_yz)
        assert_close(xy_z, union)


def test_state_of_no_keys_is_the_identity(x64):
    some = SoftmaxState.from_log_weights(*part(0, 4, 0.0, blank=True))
    none = SoftmaxState.from_log_weights(jnp.zeros((QUERIES, 0)), jnp.zeros((0, DIM_V)))
    assert_close(some.merge(none), some)
    assert np.isneginf(none.log_mass).all()
    assert (np.asarray(none.value) == 0).all()


def test_gradients_of_an_empty_row_are_finite(x64):
    log_weights, v = part(0, 4, 0.0, blank=True)

    def total(log_weights, v):
        state = SoftmaxState.from_log_weights(log_weights, v)
        seen = jnp.where(jnp.isfinite(state.log_mass), state.log_mass, 0.0)
        return jnp.sum(state.value) + jnp.sum(seen)

    for gradient in jax.grad(total, (0, 1))(log_weights, v):
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    "method",
    [
        ak.Dense(),
        ak.Blockwise(2, 2),
        pytest.param(None, id="Sharded", marks=pytest.mark.multi_device),
    ],
)
def test_nan_is_not_taken_for_an_empty_row(method):
    """Inside `jit`, where it is not refused: a query of NaN or infinity, a NaN among the keys."""
    method = ak.Sharded() if method is None else method

    @jax.jit
    def sums(q, k):
        options = {"kernel": ak.Gaussian(1.0), "method": method, "return_log_mass": True}
        return ak.attend(q[:, None], k[:, None], k[:, None], **options)

    x = jnp.arange(5.0)
    value, log_mass = sums(jnp.array([0.5, jnp.nan, jnp.inf]), x)
    np.testing.assert_array_equal(jnp.isnan(log_mass), [False, True, True])
    np.testing.assert_array_equal(jnp.isnan(value[:, 0]), [False, True, True])
    assert np.all(np.isnan(sums(x, x.at[2].set(jnp.nan))[1]))
    merged = ak.methods.SoftmaxState(*(jnp.full(s, jnp.nan) for s in ((1,), (1,), (1, 1)))).merge(
        ak.methods.SoftmaxState.from_log_weights(jnp.zeros((1, 2)), jnp.ones((2, 1)))
    )
    assert np.isnan(merged.log_mass[0])
    assert np.isnan(merged.value[0, 0])


def test_models_return_nan_for_a_nan_query():
    x, nan = jnp.arange(5.0), jnp.array([jnp.nan])
    assert np.isnan(jax.jit(lambda q: ak.density(q, x, kernel=ak.Gaussian(1.0)))(nan)[0])
    model = ak.KernelRegression(ak.Gaussian(1.0), on_empty="mean")
    assert np.isnan(jax.jit(lambda q: model(q, x, x))(nan)[0])
    tokens = jnp.ones((5, 2)).at[2].set(jnp.nan)
    for order in (0, 1):
        module = ak.MultiheadAttention(
            1, 2, kernel=ak.Gaussian(1.0), order=order, key=jax.random.PRNGKey(0)
        )
        assert np.all(np.isnan(module(tokens, tokens, tokens))), order
