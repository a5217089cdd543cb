"""Families: their derivatives, links and deviances, against autodiff, SciPy and statsmodels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

import attnkernel as ak
from attnkernel.families import Family

FAMILIES = {"Binomial": ak.Binomial(), "Poisson": ak.Poisson(), "Gamma": ak.Gamma()}
MEANS = {"Binomial": np.array([0.02, 0.3, 0.9]), "Poisson": np.array([0.1, 2.0, 40.0])}
LABELS = {"Binomial": np.array([0.0, 0.25, 1.0]), "Poisson": np.array([0.0, 3.0, 2.5])}
MEANS["Gamma"], LABELS["Gamma"] = MEANS["Poisson"], np.array([0.3, 3.0, 2.5])
ETA = np.array([-30.0, -2.0, 0.3, 4.0])


@pytest.mark.parametrize("name", FAMILIES)
def test_derivatives_equal_those_of_the_log_likelihood(x64, name):
    family = FAMILIES[name]

    @jax.jit
    def computed(y, eta):
        ours = family.score_and_curvature(y, eta)
        return ours, Family.score_and_curvature(family, y, eta), family.mean_slope(eta)

    eta = jnp.asarray(ETA)[1:]
    ours, by_autodiff, slope = computed(jnp.asarray(LABELS[name]), eta)
    np.testing.assert_allclose(ours, by_autodiff, rtol=1e-12)
    mean = family.mean(eta)
    np.testing.assert_allclose(family.link(mean), eta, rtol=1e-12)
    np.testing.assert_allclose(family.mean_slope(family.link(mean)), slope)


def test_scores_of_extreme_logits_keep_their_digits(x64):
    """1 − μ would be 0 from η = 37 on."""
    score, curvature = ak.Binomial().score_and_curvature(jnp.ones(2), jnp.array([40.0, -40.0]))
    np.testing.assert_allclose(score, [np.exp(-40.0), 1.0], rtol=1e-12)
    np.testing.assert_allclose(curvature, np.full(2, np.exp(-40.0)), rtol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_deviance_and_variance_are_those_of_statsmodels(x64, name):
    family, theirs = FAMILIES[name], getattr(sm.families, name)()
    mean, y = MEANS[name], LABELS[name]
    ours = family.deviance(jnp.asarray(mean), jnp.asarray(y))
    np.testing.assert_allclose(ours, theirs.resid_dev(y, mean) ** 2, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(family.variance(jnp.asarray(mean)), theirs.variance(mean))


def test_deviance_is_a_difference_of_log_likelihoods(x64):
    y, mean = np.array([1.0, 4.0]), np.array([2.0, 3.5])
    expected = 2 * (stats.poisson.logpmf(y, y) - stats.poisson.logpmf(y, mean))
    np.testing.assert_allclose(ak.Poisson().deviance(jnp.asarray(mean), jnp.asarray(y)), expected)


@pytest.mark.parametrize(("dtype", "digits"), [("float64", 36.04), ("float32", 15.94)])
@pytest.mark.parametrize("name", ["Binomial", "Poisson"])
def test_an_excluded_label_costs_a_bounded_deviance(x64, name, dtype, digits):
    """A label of 1 where the mean is 0; its derivative is finite too."""
    family = FAMILIES[name]
    arguments = jnp.zeros(1, dtype), jnp.ones(1, dtype)
    found = family.deviance(*arguments)
    expected = 2 * digits if name == "Binomial" else 2 * (digits - 1)
    np.testing.assert_allclose(found, [expected], rtol=1e-3)
    slopes = jax.grad(lambda *at: jnp.sum(family.deviance(*at)), (0, 1))(*arguments)
    assert np.all(np.isfinite(slopes))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_nearest_mean_inside_has_a_finite_link(x64, name):
    family = FAMILIES[name]
    for dtype in ("float32", "float64"):
        mean = family.inside(jnp.asarray([0.0, 0.5, 1.0], dtype))
        np.testing.assert_array_equal(mean[1], 0.5)
        eta = family.link(mean)
        assert np.all(np.isfinite(eta))
        assert np.all(family.variance(mean) > 0)
        assert np.all(np.isfinite(family.mean_slope(eta) ** 2 / family.variance(mean)))


class NegativeBinomial(Family):
    """Counts of variance μ + μ² / size, with the logarithmic link; ℓ alone is written out."""

    size: jax.Array

    def log_likelihood(self, y, eta):
        return y * eta - (y + self.size) * jnp.logaddexp(eta, jnp.log(self.size))

    def link(self, mean):
        return jnp.log(mean)

    def mean(self, eta):
        return jnp.exp(eta)

    def variance(self, mean):
        return mean + mean**2 / self.size

    def deviance(self, mean, y):
        likelihood = lambda mean: self.log_likelihood(y, jnp.log(mean))  # noqa: E731
        return 2 * (likelihood(jnp.maximum(y, 1e-9)) - likelihood(mean))

    def inside(self, mean):
        return jnp.maximum(mean, 1e-30)


def test_a_family_of_ones_own_is_fitted_by_newton_steps_from_its_likelihood(x64):
    """With a kernel that hardly varies: the coefficients are those of statsmodels' GLM."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 40)
    y = rng.poisson(np.exp(1 + x)) * 1.0
    model = ak.LocalLikelihood(ak.Gaussian(1e5), family=NegativeBinomial(jnp.asarray(2.0)), order=1)
    found = model.local_fit(np.zeros(1), x, y).coefficients[0, :, 0]
    family = sm.families.NegativeBinomial(alpha=0.5)
    glm = sm.GLM(y, sm.add_constant(x), family=family).fit(tol=1e-14)
    np.testing.assert_allclose(found, glm.params, rtol=1e-7)


WRONG_LABELS = [
    ("Binomial", [0.0, 1.5], "from 0 to 1"),
    ("Binomial", [1.0, -0.5], "from 0 to 1"),
    ("Poisson", [0.0, -1.0], "at least 0"),
    ("Gamma", [0.1, 0.0], "above 0"),
]


@pytest.mark.parametrize(("name", "labels", "expected"), WRONG_LABELS)
def test_a_label_that_the_distribution_does_not_have_is_named(name, labels, expected):
    FAMILIES[name].check(np.array(labels[:1]))
    sentence = rf"y must be {expected} for the family {name}; row 1 .* has {labels[1]}\."
    with pytest.raises(ValueError, match=sentence):
        FAMILIES[name].check(np.array(labels))
