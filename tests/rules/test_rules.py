"""Law 5: each rule is the maximum of its objective; entmax is a compact kernel that adapts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import LinearConstraint, brentq, minimize

import attnkernel as ak

KEYS = 7
RULES = {
    "softmax": ak.Softmax(0.7),
    "uniform": ak.Uniform(),
    "sparsemax": ak.Entmax(2.0, temperature=1.3),
    "entmax 1.5": ak.Entmax(1.5),
    "entmax near softmax": ak.Entmax(1.05),
}


class Scores(ak.Kernel):
    """Scores that are given, as keys: one query alone."""

    def log_pair(self, q, k):
        return k[0] + 0.0 * q[0]


def weights_of(rule, scores, prior=None):
    one = jnp.zeros((1, 1))
    return ak.attention_weights(one, scores[:, None], kernel=Scores(), prior=prior, rule=rule)[0]


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("with_prior", [False, True])
def test_weights_are_the_maximum_of_the_objective(x64, rule, with_prior):
    """Against a numerical optimiser on the simplex."""
    rng = np.random.default_rng(3)
    scores, log_prior = jnp.asarray(rng.normal(size=KEYS)), jnp.asarray(rng.normal(size=KEYS))
    rule = RULES[rule]
    prior = ak.priors.KeyWeights(log_prior) if with_prior else None
    ours = weights_of(rule, scores, prior)

    @jax.jit
    def loss(a):
        return -rule.objective(a, scores, log_prior if with_prior else None)

    found = minimize(
        loss,
        np.full(KEYS, 1.0 / KEYS),
        jac=jax.jit(jax.grad(loss)),
        method="SLSQP",
        bounds=[(1e-15, 1.0)] * KEYS,
        constraints=LinearConstraint(np.ones(KEYS), 1.0, 1.0),
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    np.testing.assert_allclose(ours, found.x, atol=2e-7)
    assert -loss(ours) >= -found.fun - 1e-12
    # and strictly so: any other point of the simplex is worse
    for other in rng.dirichlet(np.ones(KEYS), size=20):
        assert loss(jnp.asarray(other)) > loss(ours)


def level_in_numpy(scores, power):
    """λ by bisection of its defining equation."""

    def excess(level):
        return np.sum(np.maximum(1 + (scores - level) / power, 0.0) ** power) - 1

    return brentq(excess, scores.max() - 1e-12, scores.max() + 50.0, xtol=1e-15, rtol=1e-14)


@pytest.mark.parametrize("alpha", [2.0, 1.5, 4 / 3, 1.01, 1.00001])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_entmax_against_a_root_finder(x64, alpha, scale):
    scores = scale * np.random.default_rng(5).normal(size=(11, 13))
    power = 1 / (alpha - 1)
    levels = np.array([level_in_numpy(row, power) for row in scores])
    expected = np.maximum(1 + (scores - levels[:, None]) / power, 0.0) ** power
    q = jnp.eye(11)
    _, log_mass = ak.attend(
        q,
        jnp.asarray(scores.T),
        jnp.zeros((13, 1)),
        kernel=ak.DotProduct(1.0),
        rule=ak.Entmax(alpha),
        return_log_mass=True,
    )
    ours = ak.attention_weights(
        q, jnp.asarray(scores.T), kernel=ak.DotProduct(1.0), rule=ak.Entmax(alpha)
    )
    np.testing.assert_allclose(ours, expected, atol=1e-9 * power**0.5)
    np.testing.assert_allclose(log_mass, levels, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("power", "kernel"), [(1, ak.Epanechnikov), (2, ak.Biweight), (3, ak.Triweight)]
)
@pytest.mark.parametrize("method", [ak.Dense(), ak.Blockwise(4, 8)])
def test_entmax_of_a_gaussian_is_a_compact_kernel_of_adaptive_width(x64, power, kernel, method):
    rng = np.random.default_rng(7)
    q, k = jnp.asarray(rng.normal(size=(5, 2))), jnp.asarray(rng.normal(size=(29, 2)))
    v = jnp.asarray(rng.normal(size=(29, 3)))
    rule = ak.Entmax(1 + 1 / power)
    ours, level = ak.attend(
        q, k, v, kernel=ak.Gaussian(1.0), rule=rule, method=method, return_log_mass=True
    )
    widths = jnp.sqrt(2 * (power - level))
    for i, width in enumerate(widths):
        compact = ak.attend(q[i : i + 1], k, v, kernel=kernel(width))
        np.testing.assert_allclose(ours[i : i + 1], compact, rtol=1e-12, atol=1e-12)


def test_entmax_tends_to_softmax_and_its_level_to_the_log_mass(x64):
    rng = np.random.default_rng(8)
    q, k, v = (jnp.asarray(rng.normal(size=s)) for s in ((5, 2), (7, 2), (7, 1)))

    def both(rule):
        return ak.attend(q, k, v, kernel=ak.Gaussian(0.8), rule=rule, return_log_mass=True)

    for near, exact in zip(both(ak.Entmax(1 + 1e-7)), both(ak.Softmax()), strict=True):
        np.testing.assert_allclose(near, exact, atol=1e-5)


def test_uniform_is_the_limit_of_high_temperature(x64):
    rng = np.random.default_rng(9)
    q, k, v = (jnp.asarray(rng.normal(size=s)) for s in ((5, 2), (7, 2), (7, 1)))
    prior = ak.Causal() + ak.Alibi(0.3)
    hot, uniform = (
        ak.attend(q, k, v, kernel=ak.Gaussian(0.8), prior=prior, rule=rule)
        for rule in (ak.Softmax(1e9), ak.Uniform())
    )
    np.testing.assert_allclose(hot, uniform, atol=1e-7)
    # over what a compact kernel reaches, its plain mean
    reached = ak.attend(q[:, :1], k[:, :1], v, kernel=ak.Epanechnikov(0.9), rule=ak.Uniform())
    near = np.abs(np.asarray(q)[:, :1] - np.asarray(k)[:, :1].T) < 0.9
    expected = near @ np.asarray(v) / np.maximum(near.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(reached, expected, atol=1e-12)


def test_a_temperature_divides_the_score_and_not_the_prior(x64):
    """The form of KL: a_j ∝ π_j exp(s_j / τ)."""
    rng = np.random.default_rng(10)
    scores, log_prior = rng.normal(size=KEYS), rng.normal(size=KEYS)
    expected = np.exp(log_prior + scores / 0.3)
    ours = weights_of(
        ak.Softmax(0.3), jnp.asarray(scores), ak.priors.KeyWeights(jnp.asarray(log_prior))
    )
    np.testing.assert_allclose(ours, expected / expected.sum(), rtol=1e-12)


@pytest.mark.parametrize("alpha", [2.0, 1.5])
def test_entmax_of_extreme_scores_in_float32(alpha):
    scores = jnp.array([1e4, 1e4 - 0.5, -1e4, 3e38])
    for part in (scores[:3], scores[:2] - 2e4, scores[3:], scores):
        weights = weights_of(ak.Entmax(alpha), part)
        assert np.isfinite(weights).all()
        np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-4)
    hidden = ak.priors.HeldOut(np.ones(4, bool))
    assert (weights_of(ak.Entmax(alpha), scores, hidden) == 0).all()
    # ties share
    np.testing.assert_allclose(weights_of(ak.Entmax(alpha), jnp.zeros(5)), 0.2, rtol=1e-6)
    slopes = jax.grad(lambda s: weights_of(ak.Entmax(alpha), s)[0])(scores)
    assert np.isfinite(slopes).all()


def test_alpha_can_be_learned(x64):
    rng = np.random.default_rng(11)
    scores = jnp.asarray(rng.normal(size=KEYS))

    def first(alpha):
        return weights_of(ak.Entmax(alpha), scores)[1]

    slope = jax.grad(first)(jnp.asarray(1.4))
    step = 1e-6
    numeric = (first(jnp.asarray(1.4 + step)) - first(jnp.asarray(1.4 - step))) / (2 * step)
    np.testing.assert_allclose(slope, numeric, rtol=1e-6)
    assert abs(slope) > 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ak.Entmax(1.0), "alpha must be above 1, and at most 2, .*For 1 use ak.Softmax"),
        (lambda: ak.Entmax(2.5), "alpha must be above 1, and at most 2"),
        (lambda: ak.Entmax(1.5, -1.0), "temperature must be positive.*divides the scores"),
        (lambda: ak.Softmax(0.0), "temperature must be positive.*divides the scores"),
    ],
)
def test_rules_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()
