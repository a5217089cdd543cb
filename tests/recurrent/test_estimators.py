"""What each regression should do: interpolate, forget, ignore masked rows, be finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from refusals import assert_raises

import attnkernel as ak
from attnkernel.recurrent import DeltaRule, LinearAttention, RecursiveLeastSquares, Row, regress
from attnkernel.recurrent._delta_rule import inverse_of_unit_lower

ROWS, DIM, DIM_V = 37, 5, 3
RNG = np.random.default_rng(1)
Q, K = RNG.normal(size=(2, ROWS, DIM))
V = RNG.normal(size=(ROWS, DIM_V))
ESTIMATORS = (slow(LinearAttention), DeltaRule, lambda: RecursiveLeastSquares(0.3, intercept=True))


def regressed(*arrays, **options):
    """The results of `regress`, in NumPy."""
    return jax.device_get(regress(*arrays, **options))


def test_without_decay_a_normalised_sum_is_causal_linear_attention(x64):
    kernel = ak.kernels.EluFeatures()
    q, k = (np.where(x > 0, x + 1, np.exp(x)) for x in (Q, K))
    found, _ = regressed(q, k, V, estimator=LinearAttention(normalised=True), log_decay=0.0)
    options = {"kernel": kernel, "prior": ak.Causal(), "method": ak.methods.Linear()}
    np.testing.assert_allclose(found, ak.attend(Q, K, V, **options), rtol=1e-12)


def test_a_normalised_sum_without_mass_is_0_of_no_row_and_else_nan():
    k, v = np.float32([[0.0], [1.0], [-1.0]]), np.float32([[1.0], [2.0], [5.0]])
    found, _ = regressed(np.ones_like(k), k, v, estimator=LinearAttention(normalised=True))
    np.testing.assert_array_equal(found[:, 0], [0.0, 2.0, np.nan])


def test_a_full_step_of_the_delta_rule_interpolates_the_last_row(x64):
    out, state = regressed(K, K, V, estimator=DeltaRule(), rate=1 / np.sum(K**2, axis=1))
    np.testing.assert_allclose(out, V, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(K[-1] @ state.matrix, V[-1], rtol=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_forgets_all_sees_its_own_row_alone(x64, estimator):
    options = {"estimator": estimator(), "rate": 0.1}
    found, _ = regressed(Q, K, V, **options, log_decay=-np.inf)
    alone, _ = regressed(Q[:, None], K[:, None], V[:, None], **options)
    np.testing.assert_allclose(found, alone[:, 0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rows_that_are_masked_are_not_there(x64, estimator):
    """Whatever they hold, NaN too; a row of rate 0 is there, and only lets the state decay."""
    there = RNG.uniform(size=ROWS) < 0.6
    log_decay, rate = -RNG.uniform(size=(ROWS, 1)), 0.1 * RNG.uniform(size=ROWS)
    q, k, v = (np.where(there[:, None], part, np.nan) for part in (Q, K, V))
    options = {"estimator": estimator(), "log_decay": log_decay, "rate": rate}
    found, state = regressed(q, k, v, **options, mask=there)
    kept = {"log_decay": log_decay[there], "rate": rate[there]}
    expected, last = regressed(Q[there], K[there], V[there], **options | kept)
    np.testing.assert_allclose(found[there], expected, rtol=1e-10, atol=1e-12)
    assert np.all(found[~there] == 0)
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(last), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_regression_with_an_intercept_moves_with_the_data():
    """In float32, for data far from the origin; of no rows the result is 0."""
    line = RecursiveLeastSquares(1e-2, intercept=True)
    q, k, v = ((part / 10).astype(np.float32) for part in (Q, K, V))
    options = {"estimator": line, "log_decay": -0.1}
    near, _ = regressed(q, k, v, **options)
    far_k = k + np.float32(1e4)
    far, state = regressed(far_k - k + q, far_k, v + np.float32(500), **options)
    exact, _ = regressed(far_k - k + q - 1e4, far_k - 1e4, v, **options)
    np.testing.assert_allclose(far, exact + 500, atol=2e-4)
    assert np.max(np.abs(near - exact)) < 0.2  # k itself is rounded at 1e4
    np.testing.assert_allclose(state.key_origin, 1e4, rtol=1e-4)
    none, _ = regressed(q, k, v, estimator=line, rate=0.0)
    assert np.all(none == 0)


@pytest.mark.parametrize(("rows", "ridge"), [(1, 1e-8), (8192, 1e-4), (8192, 0.1)])
@pytest.mark.parametrize("method", ["chunked", slow("recurrent")])
def test_equal_keys_predict_their_mean_at_a_ridge_below_rounding(rows, ridge, method):
    keys = np.tile(np.linspace(0.4, 1.9, 8, dtype=np.float32), (rows, 1))
    values = np.full((rows, 1), 0.7, np.float32)
    options = {"estimator": RecursiveLeastSquares(ridge), "method": method}
    found, _ = regressed(keys, keys, values, **options)
    counts = np.arange(1, rows + 1)[:, None] * np.sum(keys[0] ** 2, dtype=float)
    np.testing.assert_allclose(found, 0.7 * counts / (counts + ridge), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("estimator", [DeltaRule, LinearAttention])
def test_long_sequences_stay_finite_and_exact(estimator, dtype):
    """Decays of 1e-3, of almost 1 and of 0 next to each other, against one row after another."""
    rows, dim = 2048, 3
    rng = np.random.default_rng(2)
    q, k, v = rng.normal(size=(3, rows, dim))
    k = k / np.sqrt(1 + np.sum(k**2, axis=1, keepdims=True))
    decays, shares = [1e-3, 1.0 - 1e-6, 0.9, 1e-30], [0.02, 0.9, 0.07, 0.01]
    log_decay = np.log(rng.choice(decays, p=shares, size=(rows, dim)))
    log_decay[rng.integers(rows, size=20)] = -np.inf
    options = {"estimator": estimator(), "rate": rng.uniform(size=rows).astype(np.float32)}

    @jax.jit
    def both(q, k, v, log_decay):
        def loss(q, k, v, log_decay):
            out, _ = regress(q, k, v, **options, log_decay=log_decay)
            return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

        slopes, out = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(q, k, v, log_decay)
        by_row, _ = regress(q, k, v, **options, log_decay=log_decay, method="recurrent")
        return out, slopes, by_row

    arrays = (part.astype(dtype) for part in (q, k, v))
    out, slopes, expected = jax.device_get(both(*arrays, log_decay.astype(np.float32)))
    assert all(np.all(np.isfinite(slope.astype(np.float32))) for slope in slopes)
    assert out.dtype == dtype
    expected = expected.astype(np.float32)
    error = np.max(np.abs(out.astype(np.float32) - expected))
    # about 30 roundings of float32, and one of bfloat16
    assert error < np.max(np.abs(expected)) * (1e-2 if dtype == jnp.bfloat16 else 3e-6)


def test_equal_keys_lose_no_digits():
    """Powers of the matrix of a chunk of equal keys would have entries of 10¹⁸."""
    below = np.tril(np.ones((64, 64), np.float32), -1)
    expected = np.eye(64) - np.eye(64, k=-1)
    np.testing.assert_array_equal(jax.jit(inverse_of_unit_lower)(below), expected)


def test_a_new_estimator_needs_no_chunks():
    class Last(ak.recurrent.Estimator):
        def initial_state(self, dim, dim_v, dtype=None):
            return jnp.zeros(dim_v, dtype)

        def update(self, state, row: Row):
            return jnp.where(row.rate > 0, row.v, state)

        def read(self, state, q):
            return state

    v = np.arange(200.0, dtype=np.float32)[:, None]
    out, state = regressed(v, v, v, estimator=Last(), mask=np.arange(200) < 150)
    np.testing.assert_array_equal(out, np.where(v < 150, v, 0.0))
    assert state[0] == 149


ZEROS = np.zeros((2, 7, 3))
DELTA = {"estimator": DeltaRule(), "k": ZEROS + 1}
RIDGE = {"estimator": RecursiveLeastSquares(1.0)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"q": ZEROS[0, 0]}, r"q must have shape \(\*batch, rows, columns\)"),
        ({"v": ZEROS[:, :5]}, "q, k and v as many rows"),
        ({"v": np.zeros((3, 7, 3))}, "batch axes must broadcast"),
        ({"log_decay": 0.9}, "at most 0.*jax.nn.log_sigmoid"),
        ({"log_decay": -np.ones(7)}, r"\(2, 7, 1\) or \(2, 7, 3\).*Got shape \(7,\)"),
        ({"rate": np.ones(7)}, r"rate must be a number, or of shape \(2, 7\)"),
        (DELTA | {"rate": 1.0}, r"β‖k‖² ≤ 2.*= 3 in 14 of 14"),
        (DELTA, "DeltaRule needs rate="),
        (RIDGE | {"rate": -1.0}, "rate must be at least 0"),
        (RIDGE | {"log_decay": -np.ones((1, 1, 3))}, "one decay per row"),
        ({"estimator": RecursiveLeastSquares(np.ones(2))}, r"one per dimension of k, shape \(3,\)"),
        ({"mask": np.ones((2, 6), bool)}, r"mask must be a Boolean array.*\(2, 7\).*\(2, 6\)"),
        ({"state": DeltaRule().initial_state(4, 3)}, r"must have arrays of shape \(2, 3, 3\)"),
        ({"state": np.zeros((3, 3))}, "state must be one that LinearAttention returned"),
    ],
)
def test_errors_are_sentences(arguments, message):
    given = {"q": ZEROS, "k": ZEROS, "v": ZEROS, "estimator": LinearAttention()} | arguments
    assert_raises(message, regress, **given)
