"""Law 4: softmax states of sets of keys are a commutative monoid, merged over sets of keys, safe at
-inf and NaN, and where the logarithm of a mass rounds away how many keys share the highest score.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import AxisType
from laws import assert_agree
from marks import needs_finufft, slow

import attnkernel as ak
from attnkernel.attention import softmax_state
from attnkernel.kernels import Bilinear, CosineSimilarity, EluFeatures, Polynomial
from attnkernel.methods import Blockwise, Dense, Fourier, Linear, Sharded, SoftmaxState, Sorted
from attnkernel.priors import AtPositions

QUERIES, KEYS, DIM_V = 3, 4, 2


def part(seed: int, seen: int, shift: float, blank: bool) -> tuple[np.ndarray, np.ndarray]:
    """Log weights and values of `KEYS` keys, of which only the first `seen` have a weight."""
    rng = np.random.default_rng(seed)
    log_weights = rng.normal(size=(QUERIES, KEYS)) * 3 + shift
    log_weights[:, seen:] = -np.inf
    if blank:
        log_weights[1] = -np.inf  # a query that sees none of these keys
    return log_weights, rng.normal(size=(KEYS, DIM_V))


SIZES, SHIFTS = st.sampled_from([0, 1, KEYS]), st.sampled_from([-900.0, 0.0, 900.0])
PARTS = st.tuples(st.integers(0, 99), SIZES, SHIFTS, st.booleans())


def results(*states: SoftmaxState) -> list[tuple[jax.Array, jax.Array]]:
    return [(state.value, state.log_mass) for state in states]


@jax.jit
def merged(parts):
    x, y, z = (SoftmaxState.from_log_weights(*arguments) for arguments in parts)
    log_weights, values = zip(*parts, strict=True)
    whole = jnp.concatenate(log_weights, axis=1), jnp.concatenate(values)
    union = SoftmaxState.from_log_weights(*whole)
    return results(x.merge(y), y.merge(x), x.merge(y).merge(z), x.merge(y.merge(z)), union)


@given(PARTS, PARTS, PARTS)
def test_merge_is_associative_commutative_and_the_union(a, b, c):
    with jax.enable_x64(True):
        xy, yx, xy_z, x_yz, union = merged([part(*arguments) for arguments in (a, b, c)])
        for one, other in ((xy, yx), (xy_z, x_yz), (xy_z, union)):
            assert_agree(one, other, rtol=1e-12, atol=1e-12)


def test_the_gradient_does_not_see_the_size_of_the_scores_of_a_far_query():
    rng, lengthscale = np.random.default_rng(1), 0.02
    x, v = rng.uniform(size=40), rng.normal(size=(40, 1))
    queries, labels = np.array([0.3, 0.7, 100.0]), np.array([0.1, 0.2, 0.5])
    squares = (queries[:, None] - x[None, :]) ** 2

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(log_lengthscale):
        scores = -0.5 * jnp.asarray(squares, "float32") * jnp.exp(-2.0 * log_lengthscale)
        state = SoftmaxState.from_log_weights(scores, jnp.asarray(v, "float32"))
        return jnp.sum((state.value[:, 0] - labels.astype("float32")) ** 2), state.log_mass[2]

    (_, log_mass), slope = loss(jnp.float32(np.log(lengthscale)))
    changes = squares / lengthscale**2  # of the scores, -changes / 2
    weights = np.exp(-0.5 * (changes - changes.min(axis=1, keepdims=True)))
    weights /= weights.sum(axis=1, keepdims=True)
    fit = weights @ v[:, 0]
    moves = np.sum(weights * changes * (v[:, 0] - fit[:, None]), axis=1)
    np.testing.assert_allclose(slope, np.sum(2.0 * (fit - labels) * moves), rtol=1e-4)
    np.testing.assert_allclose(log_mass, -0.5 * changes[2].min(), rtol=1e-5)


def test_models_return_nan_for_a_nan_query():
    x, nan, kernel = np.arange(5, dtype=np.float32), np.float32([np.nan]), ak.Gaussian(1.0)

    @jax.jit
    def predictions(q, x, tokens):
        def attended(order):
            key = jax.random.PRNGKey(0)
            module = ak.MultiheadAttention(1, 2, kernel=kernel, order=order, key=key)
            return module(tokens, tokens, tokens)

        of_policies = [
            ak.KernelRegression(ak.kernels.Boxcar(0.1), on_empty=policy)(q, x, x)
            for policy in ("nearest", "mean")
        ]
        return ak.density(q, x, kernel=kernel), *of_policies, attended(0), attended(1)

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
        *(("dot", name) for name in ("blocks", "one block", "sharded", "ring")),
        slow("dot", "sharded dense"),
        *(slow(kernel, "blocks") for kernel in KERNELS if kernel != "dot"),
        slow("bilinear", "one block"),
        slow("polynomial", "sharded"),
        slow("cosine", "ring"),
    ],
)
def test_equals_the_dense_reference(kernel, name):
    """Each key is repeated three times, in float32; from a scale of 1e25 scores overflow to inf."""
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
        assert_agree(found, expected, rtol=1e-5, atol=1e-6)


ROWS, COLUMNS, WIDTH, CUT = 5, 11, 3, 4
RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(2, ROWS, 1)), RNG.normal(size=(COLUMNS, 1))
V, COTANGENT = RNG.normal(size=(COLUMNS, WIDTH)), RNG.normal(size=(2, ROWS, WIDTH))
I, J = np.arange(ROWS), np.arange(COLUMNS)  # noqa: E741  the indices of the equations
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

        def state_of(part, method):
            parts = {"kernel": ak.DotProduct(), "prior": prior_of(J[part]), "rule": rule}
            return softmax_state(q, K[part], V[part], **parts, method=method)

        first, second = map(state_of, (slice(0, CUT), slice(CUT, None)), methods)
        merged = first.merge(second).with_sink(rule.stack.log_sink())
        return jnp.sum(COTANGENT * merged.value), (merged.value, merged.log_mass, first.mass)

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
        state_of = functools.partial(softmax_state, q, kernel=kernel, method=method)
        first, second = state_of(K[:CUT], V[:CUT]), state_of(K[CUT:], V[CUT:])
        whole = ak.attend(q, K, V, kernel=kernel, method=Dense(), return_log_mass=True)
        union = first.merge(second)
        return (union.value, union.log_mass), whole

    assert_agree(*merged(Q[0]), rtol=1e-9, atol=0)


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
    np.testing.assert_array_equal(none.maximum, np.zeros(ROWS))
    np.testing.assert_array_equal(none.mass, np.zeros(ROWS))
