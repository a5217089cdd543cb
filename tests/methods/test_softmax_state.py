"""Law 4: softmax states of sets of keys are a commutative monoid, safe at -inf and NaN, and where
the logarithm of a mass rounds away how many keys share the highest score."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import AxisType
from marks import slow

import attnkernel as ak
from attnkernel.kernels import Bilinear, CosineSimilarity, Polynomial
from attnkernel.methods import Blockwise, Dense, Sharded, SoftmaxState

QUERIES, KEYS, DIM_V = 3, 4, 2


def part(seed: int, seen: int, shift: float, blank: bool) -> tuple[np.ndarray, np.ndarray]:
    """Log weights and values of `KEYS` keys, of which only the first `seen` have a weight."""
    rng = np.random.default_rng(seed)
    log_weights = rng.normal(size=(QUERIES, KEYS)) * 3 + shift
    log_weights[:, seen:] = -np.inf
    if blank:
        log_weights[1] = -np.inf  # a query that sees none of these keys
    return log_weights, rng.normal(size=(KEYS, DIM_V))


PARTS = st.tuples(
    st.integers(0, 99),
    st.sampled_from([0, 1, KEYS]),
    st.sampled_from([-900.0, 0.0, 900.0]),
    st.booleans(),
)


def results(*states: SoftmaxState) -> list[tuple[jax.Array, jax.Array]]:
    return [(state.value, state.log_mass) for state in states]


def assert_close(a, b) -> None:
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@jax.jit
def merged(parts):
    x, y, z = (SoftmaxState.from_log_weights(*arguments) for arguments in parts)
    log_weights, values = zip(*parts, strict=True)
    union = SoftmaxState.from_log_weights(
        jnp.concatenate(log_weights, axis=1), jnp.concatenate(values)
    )
    return results(x.merge(y), y.merge(x), x.merge(y).merge(z), x.merge(y.merge(z)), union)


@given(PARTS, PARTS, PARTS)
def test_merge_is_associative_commutative_and_the_union(a, b, c):
    with jax.enable_x64(True):
        xy, yx, xy_z, x_yz, union = merged([part(*arguments) for arguments in (a, b, c)])
        assert_close(xy, yx)
        assert_close(xy_z, x_yz)
        assert_close(xy_z, union)


def test_state_of_no_keys_is_the_identity(x64):
    @jax.jit
    def states(log_weights, v):
        some = SoftmaxState.from_log_weights(log_weights, v)
        none = SoftmaxState.from_log_weights(log_weights[:, :0], v[:0])
        return results(some.merge(none), some, none)

    merged, some, (value, log_mass) = jax.device_get(states(*part(0, 4, 0.0, blank=True)))
    assert_close(merged, some)
    assert np.isneginf(log_mass).all()
    assert (value == 0).all()


def test_gradients_of_an_empty_row_are_finite(x64):
    @jax.jit
    def gradients(log_weights, v):
        def total(log_weights, v):
            state = SoftmaxState.from_log_weights(log_weights, v)
            seen = jnp.where(jnp.isfinite(state.log_mass), state.log_mass, 0.0)
            return jnp.sum(state.value) + jnp.sum(seen)

        return jax.grad(total, (0, 1))(log_weights, v)

    for gradient in gradients(*part(0, 4, 0.0, blank=True)):
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    "method",
    [
        ak.methods.Dense(),
        ak.methods.Blockwise(2, 2),
        pytest.param(None, id="Sharded", marks=pytest.mark.multi_device),
    ],
)
def test_nan_is_not_taken_for_an_empty_row(method):
    """Inside `jit`, where it is not refused: a query of NaN or infinity, a NaN among the keys."""
    method = ak.methods.Sharded() if method is None else method

    @jax.jit
    def sums(q, k):
        options = {"kernel": ak.Gaussian(1.0), "method": method, "return_log_mass": True}
        return ak.attend(q[:, None], k[:, None], k[:, None], **options)

    x, q = np.arange(5, dtype=np.float32), np.float32([0.5, np.nan, np.inf])
    value, log_mass = jax.device_get(sums(q, x))
    np.testing.assert_array_equal(np.isnan(log_mass), [False, True, True])
    np.testing.assert_array_equal(np.isnan(value[:, 0]), [False, True, True])
    assert np.all(np.isnan(sums(q, np.where(x == 2, np.nan, x))[1]))


def test_nan_is_merged_into_nan():
    @jax.jit
    def merged(nan, log_weights, v):
        some = SoftmaxState.from_log_weights(log_weights, v)
        spoilt = jax.tree.map(lambda leaf: jnp.full_like(leaf, nan), some)
        return results(spoilt.merge(some))

    for result in merged(np.nan, np.zeros((1, 2), np.float32), np.ones((2, 1), np.float32))[0]:
        assert np.isnan(result).all()


def test_models_return_nan_for_a_nan_query():
    x, nan, kernel = np.arange(5, dtype=np.float32), np.float32([np.nan]), ak.Gaussian(1.0)

    @jax.jit
    def predictions(q, x, tokens):
        def attended(order):
            key = jax.random.PRNGKey(0)
            module = ak.MultiheadAttention(1, 2, kernel=kernel, order=order, key=key)
            return module(tokens, tokens, tokens)

        regression = ak.KernelRegression(kernel, on_empty="mean")(q, x, x)
        return ak.density(q, x, kernel=kernel), regression, attended(0), attended(1)

    tokens = np.ones((5, 2), np.float32)
    tokens[2] = np.nan
    for result in predictions(nan, x, tokens):
        assert np.isnan(result).all()


METHODS = {
    "blocks": lambda mesh: Blockwise(3, 2),
    "one block": lambda mesh: Blockwise(),
    "sharded": Sharded,
    "ring": lambda mesh: Sharded(mesh, ring=True),
    "sharded dense": lambda mesh: Sharded(mesh, inner=Dense()),
}
KERNELS = {
    "dot": ak.DotProduct(),
    "bilinear": Bilinear(np.eye(3)),
    "polynomial": Polynomial(),
    "cosine": CosineSimilarity(),
}


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        *(("dot", name) for name in METHODS),
        *(slow(kernel, "blocks") for kernel in KERNELS if kernel != "dot"),
        slow("bilinear", "one block"),
        slow("polynomial", "sharded"),
        slow("cosine", "ring"),
    ],
)
def test_equals_the_dense_reference(kernel, name):
    """Of keys that come three times, in float32; from a scale of 1e25 a score is +inf."""
    rng = np.random.default_rng(0)
    # terms of one sign: the sum of an overflow above and one below is NaN
    q, k = np.abs(rng.normal(size=(2, 7, 3))).astype(np.float32)
    q *= np.float32([[1.0], [-1.0]] * 3 + [[1.0]])
    k = np.concatenate([k[:3], k[:3], k[:3], k[3:]])
    v = rng.normal(size=(len(k), 3)).astype(np.float32)
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])

    @jax.jit
    def both(q, k, v):
        parts = {"kernel": KERNELS[kernel], "return_log_mass": True}
        return [ak.attend(q, k, v, **parts, method=m) for m in (METHODS[name](mesh), Dense())]

    for scale in (2.0**17, 1e18, 1e25):
        found, expected = both(q * np.float32(scale), k * np.float32(scale), v)
        assert np.all(np.isfinite(expected[0]))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
