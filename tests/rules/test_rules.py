"""Law 5: a rule maximises its objective; entmax is a compact kernel of adaptive bandwidth."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from scipy.optimize import LinearConstraint, brentq, minimize

import attnkernel as ak

KEYS = 7
RULES = {
    "softmax": ak.Softmax(0.7),
    "uniform": ak.Uniform(),
    "sparsemax": ak.Entmax(ak.fixed(2.0), temperature=1.3),
    "entmax 1.5": ak.Entmax(1.5),
    "entmax near softmax": ak.Entmax(1.05),
}


class GivenScores(ak.Kernel):
    """log K = the key itself: scores of one query, given as keys."""

    def log_pair(self, q, k):
        return k[0] + 0.0 * q[0]


@eqx.filter_jit
def weights_of(rule, scores, prior=None):
    one = jnp.zeros((1, 1), scores.dtype)
    weights = ak.attention_weights(
        one, scores[:, None], kernel=GivenScores(), prior=prior, rule=rule
    )
    return weights[0]


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("with_prior", [False, True])
def test_weights_are_the_maximum_of_the_objective(x64, rule, with_prior):
    """Against a numerical optimiser on the simplex."""
    rng = np.random.default_rng(3)
    scores, log_prior = rng.normal(size=KEYS), rng.normal(size=KEYS)
    rule = RULES[rule]
    prior = ak.priors.KeyWeights(log_prior) if with_prior else None
    ours = np.asarray(weights_of(rule, jnp.asarray(scores), prior))

    @jax.jit
    def loss_and_slope(a):
        def loss(a):
            return -rule.objective(a, jnp.asarray(scores), prior and jnp.asarray(log_prior))

        return jax.value_and_grad(loss)(a)

    found = minimize(
        lambda a: jax.device_get(loss_and_slope(a)),
        np.full(KEYS, 1.0 / KEYS),
        jac=True,
        method="SLSQP",
        bounds=[(1e-15, 1.0)] * KEYS,
        constraints=LinearConstraint(np.ones(KEYS), 1.0, 1.0),
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    np.testing.assert_allclose(ours, found.x, atol=2e-7)
    least, _ = loss_and_slope(ours)
    assert least <= found.fun + 1e-12
    # and strictly so: any other point of the simplex is worse
    for other in rng.dirichlet(np.ones(KEYS), size=20):
        assert loss_and_slope(other)[0] > least


def threshold_in_numpy(scores, exponent):
    """λ by bisection of its defining equation."""

    def excess(threshold):
        return np.sum(np.maximum(1 + (scores - threshold) / exponent, 0.0) ** exponent) - 1

    return brentq(excess, scores.max() - 1e-12, scores.max() + 50.0, xtol=1e-15, rtol=1e-14)


@pytest.mark.parametrize("alpha", [2.0, 1.5, 4 / 3, 1.01, 1.00001])
def test_entmax_against_a_root_finder(x64, alpha):
    @jax.jit
    def weights_and_thresholds(scores):
        q, k, kernel, rule = jnp.eye(11), scores.T, ak.DotProduct(1.0), ak.Entmax(ak.fixed(alpha))
        _, thresholds = ak.attend(
            q, k, jnp.zeros((13, 1)), kernel=kernel, rule=rule, return_log_mass=True
        )
        return ak.attention_weights(q, k, kernel=kernel, rule=rule), thresholds

    exponent = 1 / (alpha - 1)
    for scale in (1e-3, 1.0, 30.0):
        scores = scale * np.random.default_rng(5).normal(size=(11, 13))
        expected_thresholds = np.array([threshold_in_numpy(row, exponent) for row in scores])
        expected = (
            np.maximum(1 + (scores - expected_thresholds[:, None]) / exponent, 0.0) ** exponent
        )
        weights, thresholds = weights_and_thresholds(scores)
        np.testing.assert_allclose(weights, expected, atol=1e-9 * exponent**0.5)
        np.testing.assert_allclose(thresholds, expected_thresholds, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("exponent", [1, 2, 3])
@pytest.mark.parametrize("method", [ak.Dense(), slow(ak.Blockwise(4, 8))])
def test_entmax_of_a_gaussian_is_a_compact_kernel_of_adaptive_width(x64, exponent, method):
    """The Epanechnikov, the biweight and the triweight: (1 − d² / b²)₊ᵖ."""
    rng = np.random.default_rng(7)
    q, k, v = (rng.normal(size=size) for size in ((5, 2), (29, 2), (29, 3)))
    rule = ak.Entmax(ak.fixed(1 + 1 / exponent))
    attend = functools.partial(ak.attend, kernel=ak.Gaussian(1.0), rule=rule, method=method)
    ours, threshold = attend(q, k, v, return_log_mass=True)
    squared_widths = 2 * (exponent - np.asarray(threshold))[:, None]
    squares = ((q[:, None] - k[None]) ** 2).sum(axis=2)
    weights = np.maximum(1 - squares / squared_widths, 0.0) ** exponent
    expected = weights @ v / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)


def test_entmax_tends_to_softmax_and_its_threshold_to_the_log_mass(x64):
    rng = np.random.default_rng(8)
    q, k, v = (rng.normal(size=s) for s in ((5, 2), (7, 2), (7, 1)))
    near, threshold = ak.attend(
        q, k, v, kernel=ak.Gaussian(0.8), rule=ak.Entmax(1 + 1e-7), return_log_mass=True
    )
    weights = np.exp(-0.5 * ((q[:, None] - k[None]) ** 2).sum(axis=2) / 0.8**2)
    np.testing.assert_allclose(near, weights @ v / weights.sum(axis=1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(threshold, np.log(weights.sum(axis=1)), atol=1e-5)


def test_uniform_is_the_limit_of_high_temperature(x64):
    rng = np.random.default_rng(9)
    q, k, v = (rng.normal(size=s) for s in ((5, 2), (7, 2), (7, 1)))
    prior = ak.Causal() * ak.Alibi(0.3)
    i, j = np.indices((5, 7))
    weights = np.where(j <= i, np.exp(-0.3 * np.abs(i - j)), 0.0)
    expected = weights @ v / weights.sum(axis=1, keepdims=True)
    for rule, tolerance in ((ak.Softmax(1e9), 1e-7), (ak.Uniform(), 1e-12)):
        found = ak.attend(q, k, v, kernel=ak.Gaussian(0.8), prior=prior, rule=rule)
        np.testing.assert_allclose(found, expected, atol=tolerance)
    # over what a compact kernel reaches, its plain mean
    reached = ak.attend(q[:, :1], k[:, :1], v, kernel=ak.Epanechnikov(0.9), rule=ak.Uniform())
    near = np.abs(q[:, :1] - k[:, :1].T) < 0.9
    expected = near @ v / np.maximum(near.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(reached, expected, atol=1e-12)


def test_a_temperature_divides_the_score_and_not_the_prior(x64):
    """The form of KL: a_j ∝ π_j exp(s_j / τ)."""
    rng = np.random.default_rng(10)
    scores, log_prior = rng.normal(size=KEYS), rng.normal(size=KEYS)
    expected = np.exp(log_prior + scores / 0.3)
    ours = weights_of(ak.Softmax(0.3), jnp.asarray(scores), ak.priors.KeyWeights(log_prior))
    np.testing.assert_allclose(ours, expected / expected.sum(), rtol=1e-12)


@pytest.mark.parametrize("alpha", [2.0, 1.5])
def test_entmax_of_extreme_scores_in_float32(alpha):
    scores = np.array([1e4, 1e4 - 0.5, -1e4, 3e38], np.float32)
    hidden = ak.priors.HeldOut(np.ones(4, bool))

    @jax.jit
    def weights(scores):
        one = functools.partial(weights_of, ak.Entmax(ak.fixed(alpha)))
        parts = one(scores[:3]), one(scores[:2] - 2e4), one(scores[3:]), one(scores)
        return parts, one(scores, hidden), one(jnp.zeros(5)), jax.jacobian(one)(scores)

    parts, of_none, ties, slopes = jax.device_get(weights(scores))
    for part in parts:
        assert np.isfinite(part).all()
        np.testing.assert_allclose(part.sum(), 1.0, rtol=1e-4)
    assert (of_none == 0).all()
    np.testing.assert_allclose(ties, 0.2, rtol=1e-6)
    assert np.isfinite(slopes).all()


def test_alpha_can_be_learned(x64):
    scores = np.random.default_rng(11).normal(size=KEYS)

    @jax.jit
    def weight_and_slope(alpha):
        return jax.value_and_grad(lambda a: weights_of(ak.Entmax(a), jnp.asarray(scores))[1])(alpha)

    _, slope = weight_and_slope(1.4)
    step = 1e-6
    numeric = (weight_and_slope(1.4 + step)[0] - weight_and_slope(1.4 - step)[0]) / (2 * step)
    np.testing.assert_allclose(slope, numeric, rtol=1e-6)
    assert abs(slope) > 1e-3


@pytest.mark.parametrize("make", [ak.Softmax, lambda tau: ak.Entmax(1.5, tau)])
def test_a_temperature_is_learned_beside_keys_without_weight(x64, make):
    scores = np.array([0.3, -np.inf, 1.1, -0.4, -np.inf, 0.9])

    @jax.jit
    def weight_and_slope(tau):
        return jax.value_and_grad(lambda t: weights_of(make(t), jnp.asarray(scores))[2])(tau)

    _, slope = weight_and_slope(1.4)
    numeric = (weight_and_slope(1.4 + 1e-6)[0] - weight_and_slope(1.4 - 1e-6)[0]) / 2e-6
    np.testing.assert_allclose(slope, numeric, rtol=1e-6)
    assert abs(slope) > 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ak.Entmax(1.0), r"alpha.*above 1.*below 2.*1\.0.*ak\.Softmax"),
        (lambda: ak.Entmax(ak.fixed(2.5)), r"alpha.*above 1.*at most 2.*2\.5"),
        (lambda: ak.Entmax(2.0), r"alpha.*below 2.*2\.0.*ak\.fixed\(2\.0\)"),
        (lambda: ak.Entmax(1.5, -1.0), r"temperature.*positive.*-1\.0"),
        (lambda: ak.Softmax(0.0), r"temperature.*positive.*0\.0"),
    ],
)
def test_parameters_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
