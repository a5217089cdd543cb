"""Law 5: a rule maximises its objective; entmax is a compact kernel of adaptive bandwidth; sinks
given by their logarithm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_formulas import elu
from marks import needs_finufft, slow
from refusals import assert_raises
from scipy.optimize import LinearConstraint, brentq, minimize

import attnkernel as ak
from attnkernel.kernels import EluFeatures
from attnkernel.methods import Blockwise, Dense, Fourier, Linear, Sharded, Sorted

KEYS = 7
RULES = {
    "softmax": ak.Softmax(ak.fixed(0.7)),
    "uniform": ak.rules.Uniform(),
    "sparsemax": ak.Entmax(ak.fixed(2.0), temperature=1.3),
    "entmax 1.5": ak.Entmax(1.5),
    "entmax near softmax": ak.Entmax(1.05),
}


SIMPLEX = {
    "bounds": [(1e-15, 1.0)] * KEYS,
    "constraints": LinearConstraint(np.ones(KEYS), 1.0, 1.0),
    "options": {"ftol": 1e-15, "maxiter": 1000},
}


class GivenScores(ak.kernels.Kernel):
    """log K = the key itself: scores of one query, given as keys."""

    def log_pair(self, q, k):
        return k[0] + 0.0 * q[0]


def weights_of(rule, scores, prior=None):
    one = jnp.zeros((1, 1), scores.dtype)
    parts = {"kernel": GivenScores(), "prior": prior, "rule": rule}
    return ak.attention_weights(one, scores[:, None], **parts)[0]


@pytest.mark.parametrize("rule", list(RULES))
def test_weights_are_the_maximum_of_the_objective(x64, rule):
    """Against a numerical optimiser on the simplex, with a prior and without."""
    rng, rule = np.random.default_rng(3), RULES[rule]
    scores, log_prior = rng.normal(size=KEYS), rng.normal(size=KEYS)

    @jax.jit
    def weights_and_losses(a, scores, log_prior):
        priors = ((None, None), (log_prior, ak.priors.KeyWeights(log_prior)))
        losses = [lambda a, of=of: -rule.objective(a, scores, of) for of, _ in priors]
        weights = [weights_of(rule, scores, prior) for _, prior in priors]
        return weights, [jax.value_and_grad(loss)(a) for loss in losses]

    def computed(a):
        return jax.device_get(weights_and_losses(a, scores, log_prior))

    for with_prior, ours in enumerate(computed(scores)[0]):

        def loss(a, with_prior=with_prior):
            return computed(a)[1][with_prior]

        found = minimize(loss, np.full(KEYS, 1.0 / KEYS), jac=True, method="SLSQP", **SIMPLEX)
        np.testing.assert_allclose(ours, found.x, atol=2e-7)
        least, _ = loss(ours)
        assert least <= found.fun + 1e-12
        # and strictly so: any other point of the simplex is worse
        for other in rng.dirichlet(np.ones(KEYS), size=20):
            assert loss(other)[0] > least


def threshold_in_numpy(scores, exponent):
    """λ by bisection of its defining equation."""

    over = lambda at: np.sum(np.maximum(1 + (scores - at) / exponent, 0.0) ** exponent) - 1  # noqa: E731
    return brentq(over, scores.max() - 1e-12, scores.max() + 50.0, xtol=1e-15, rtol=1e-14)


def test_entmax_against_a_root_finder(x64):
    alphas = (2.0, 1.5, 4 / 3, 1.01, 1.00001)

    @jax.jit
    def weights_and_thresholds(scores):
        found = []
        for alpha in alphas:
            options = {"kernel": ak.DotProduct(1.0), "rule": ak.Entmax(ak.fixed(alpha))}
            parts = np.eye(11), scores.T
            _, thresholds = ak.attend(*parts, jnp.zeros((13, 1)), return_log_mass=True, **options)
            found.append((ak.attention_weights(*parts, **options), thresholds))
        return found

    for scale in (1e-3, 1.0, 30.0):
        scores = scale * np.random.default_rng(5).normal(size=(11, 13))
        results = zip(alphas, weights_and_thresholds(scores), strict=True)
        for alpha, (weights, thresholds) in results:
            exponent = 1 / (alpha - 1)
            expected = np.array([threshold_in_numpy(row, exponent) for row in scores])
            np.testing.assert_allclose(thresholds, expected, rtol=1e-10, atol=1e-10)
            expected = np.maximum(1 + (scores - expected[:, None]) / exponent, 0.0) ** exponent
            np.testing.assert_allclose(weights, expected, atol=1e-9 * exponent**0.5)


def test_entmax_of_a_gaussian_is_a_compact_kernel_of_adaptive_width(x64):
    """The Epanechnikov, the biweight and the triweight: (1 − d² / b²)₊ᵖ."""
    rng, exponents = np.random.default_rng(7), (1, 2, 3)
    q, k, v = (rng.normal(size=size) for size in ((5, 2), (29, 2), (29, 3)))

    @jax.jit
    def computed(q, k, v):
        rules = [ak.Entmax(ak.fixed(1 + 1 / exponent)) for exponent in exponents]
        options = {"kernel": ak.Gaussian(1.0), "return_log_mass": True}
        return [ak.attend(q, k, v, rule=rule, **options) for rule in rules]

    squares = ((q[:, None] - k[None]) ** 2).sum(axis=2)
    for exponent, (ours, threshold) in zip(exponents, computed(q, k, v), strict=True):
        squared_widths = 2 * (exponent - np.asarray(threshold))[:, None]
        weights = np.maximum(1 - squares / squared_widths, 0.0) ** exponent
        expected = weights @ v / weights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-11)


def test_limits_of_rules(x64):
    """Entmax tends to softmax, its threshold to the log-mass. `Uniform` over what a compact kernel
    reaches is its plain mean."""
    rng = np.random.default_rng(8)
    q, k, v = (rng.normal(size=s) for s in ((5, 1), (7, 1), (7, 1)))

    @jax.jit
    def computed(q, k, v):
        attended = functools.partial(ak.attend, q, k, v, return_log_mass=True)
        near = attended(kernel=ak.Gaussian(0.8), rule=ak.Entmax(1 + 1e-7))
        return near, attended(kernel=ak.Epanechnikov(0.9), rule=ak.rules.Uniform())

    (near, threshold), (reached, _) = computed(q, k, v)
    distances = np.abs(q - k.T)
    weights = np.exp(-0.5 * (distances / 0.8) ** 2)
    np.testing.assert_allclose(near, weights @ v / weights.sum(axis=1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(threshold, np.log(weights.sum(axis=1)), atol=1e-5)
    assert np.min(np.abs(distances - 0.9)) > 1e-6
    weights = distances < 0.9
    expected = weights @ v / np.maximum(weights.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(reached, expected, atol=1e-12)


@pytest.mark.parametrize("alpha", [2.0, slow(1.5)])
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
    np.testing.assert_allclose(ties, 0.2, rtol=1e-5)
    assert np.isfinite(slopes).all()


def test_parameters_of_rules_are_learned_as_by_differences(x64):
    """α; temperatures beside keys without weight; a temperature divides no prior, as in KL:
    a_j ∝ π_j exp(s_j / τ)."""
    rng = np.random.default_rng(11)
    scores, log_prior = rng.normal(size=KEYS), rng.normal(size=KEYS)
    hidden = np.array([0.3, -np.inf, 1.1, -0.4, -np.inf, 0.9])

    @jax.jit
    def computed(at, scores, hidden, log_prior):
        functions = (
            lambda alpha: weights_of(ak.Entmax(alpha), scores)[1],
            lambda tau: weights_of(ak.Softmax(tau), hidden)[2],
            lambda tau: weights_of(ak.Entmax(1.5, tau), hidden)[2],
        )
        tempered = weights_of(ak.Softmax(0.3), scores, ak.priors.KeyWeights(log_prior))
        return tempered, [jax.value_and_grad(function)(at) for function in functions]

    step, others = 1e-6, (scores, hidden, log_prior)
    tempered, found = computed(1.4, *others)
    (_, above), (_, below) = (computed(1.4 + sign * step, *others) for sign in (1, -1))
    for (_, slope), (high, _), (low, _) in zip(found, above, below, strict=True):
        numeric = (float(high) - float(low)) / (2 * step)
        np.testing.assert_allclose(slope, numeric, rtol=1e-6)
        assert abs(numeric) > 1e-3
    expected = np.exp(log_prior + scores / 0.3)
    np.testing.assert_allclose(tempered, expected / expected.sum(), rtol=1e-12)


def test_parameters_out_of_range_are_refused():
    assert_raises(r"alpha.*above 1.*below 2.*1\.0.*ak\.Softmax", ak.Entmax, 1.0)
    assert_raises(r"alpha.*above 1.*at most 2.*2\.5", ak.Entmax, ak.fixed(2.5))
    assert_raises(r"alpha.*below 2.*2\.0.*ak\.fixed\(2\.0\)", ak.Entmax, 2.0)
    message = r"one of sink_mass=.*log_sink_mass=.*got both"
    assert_raises(message, ak.Softmax, sink_mass=0.1, log_sink_mass=0.0)
    message = r"log_sink_mass must be a finite number.*leave it out"
    assert_raises(message, ak.Softmax, log_sink_mass=-np.inf)


QUERIES, DIM_V = 5, 2
SINKS = np.array([-1.5, 0.3, 2.0])
RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(QUERIES, 1)), RNG.normal(size=(KEYS, 1))
V, COTANGENT = RNG.normal(size=(KEYS, DIM_V)), RNG.normal(size=(QUERIES, DIM_V))
TWO_DEVICES = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("devices",))


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
    of_sink = [by_hand(scores, sink) for sink in SINKS]
    *expected, by_values = map(np.array, zip(*of_sink, strict=True))
    found = value, log_mass, of_sinks, of_values
    for ours, formula in zip(found, (*expected, by_values.sum(axis=0)), strict=True):
        np.testing.assert_allclose(ours, formula, rtol=1e-9, atol=1e-9)


def test_a_log_sink_is_its_mass(x64):
    learned, fixed = (ak.Softmax(0.7, log_sink_mass=sink) for sink in (0.4, ak.fixed(0.4)))
    mass = ak.Softmax(0.7, sink_mass=ak.fixed(np.exp(0.4)))

    @jax.jit
    def computed(q, k):
        weights = functools.partial(ak.attention_weights, q, k, kernel=ak.DotProduct())
        rules = (learned, fixed, mass)
        return [(rule.sink_mass, rule.log_sink_mass, weights(rule=rule)) for rule in rules]

    figures = jax.device_get(computed(Q, K))
    for found in figures[:2]:
        for part, expected in zip(found, figures[2], strict=True):
            np.testing.assert_allclose(part, expected, rtol=1e-12)
    np.testing.assert_allclose(figures[2][:2], [np.exp(0.4), 0.4], rtol=1e-12)
    assert fixed.without_sink().log_sink() is None
    shown = "Softmax(temperature=fixed(1.0), log_sink_mass=0.4)"
    assert repr(ak.Softmax(log_sink_mass=0.4)) == shown


def test_a_rule_with_a_sink_says_its_rule_without():
    def define():
        class Sunk(ak.rules.Uniform):
            def log_sink(self):
                return jnp.zeros(())

    with pytest.raises(TypeError, match="must define without_sink too"):
        define()


def test_sinks_far_from_the_scores():
    """Those of -inf are none, with a gradient of 0; high ones take all weight; a query that sees
    no key has the mass of its sink."""

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def value(sinks):
        rule = ak.PerHead(ak.Softmax(log_sink_mass=sinks))
        options = {"kernel": ak.DotProduct(), "method": Blockwise(2, 3), "return_log_mass": True}
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
