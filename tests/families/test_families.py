"""Families: their derivatives, links and deviances, against NumPy, SciPy and statsmodels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm
from local_likelihoods import MEANS as INVERSE_LINKS, SCORES
from scipy import stats

import attnkernel as ak
from attnkernel.families import Family

FAMILIES = {"Binomial": ak.Binomial(), "Poisson": ak.Poisson(), "Gamma": ak.Gamma()}
MEANS = {"Binomial": np.array([0.02, 0.3, 0.9]), "Poisson": np.array([0.1, 2.0, 40.0])}
LABELS = {"Binomial": np.array([0.0, 0.25, 1.0]), "Poisson": np.array([0.0, 3.0, 2.5])}
MEANS["Gamma"], LABELS["Gamma"] = MEANS["Poisson"], np.array([0.3, 3.0, 2.5])


@pytest.mark.parametrize("name", FAMILIES)
def test_figures_equal_those_of_statsmodels_and_their_formulas(x64, name):
    family, theirs = FAMILIES[name], getattr(sm.families, name)()

    @jax.jit
    def computed(y, eta, mean):
        of_eta = family.mean(eta)
        link = family.link(of_eta)
        slopes = family.mean_slope(eta), family.mean_slope(link)
        scores = family.score_and_curvature(y, eta)
        return scores, link, slopes, family.deviance(mean, y), family.variance(mean)

    mean, y, eta = MEANS[name], LABELS[name], np.array([-2.0, 0.3, 4.0])
    scores, link, slopes, deviance, variance = computed(y, eta, mean)
    by_formula = SCORES[name.lower()](y, INVERSE_LINKS[name.lower()](eta))
    np.testing.assert_allclose(scores, by_formula, rtol=1e-12)
    np.testing.assert_allclose(link, eta, rtol=1e-12)
    np.testing.assert_allclose(*slopes, rtol=1e-12)
    np.testing.assert_allclose(deviance, theirs.resid_dev(y, mean) ** 2, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(variance, theirs.variance(mean), rtol=1e-12)


def test_scores_of_extreme_logits_keep_their_digits(x64):
    """1 − μ would be 0 from η = 37 on."""
    computed = jax.jit(ak.Binomial().score_and_curvature)
    score, curvature = computed(np.ones(2), np.array([40.0, -40.0]))
    np.testing.assert_allclose(score, [np.exp(-40.0), 1.0], rtol=1e-12)
    np.testing.assert_allclose(curvature, np.full(2, np.exp(-40.0)), rtol=1e-12)


def test_deviance_is_a_difference_of_log_likelihoods(x64):
    y, mean = np.array([1.0, 4.0]), np.array([2.0, 3.5])
    expected = 2 * (stats.poisson.logpmf(y, y) - stats.poisson.logpmf(y, mean))
    np.testing.assert_allclose(jax.jit(ak.Poisson().deviance)(mean, y), expected)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_means_at_the_ends_of_their_range(x64, dtype):
    """A label of 1 where the mean is 0 costs a bounded deviance, whose derivative is finite; the
    nearest mean inside the range has a finite link."""

    @jax.jit
    def computed(zero, one, means):
        found = {}
        for name, family in FAMILIES.items():
            inside = family.valid_mean(means)
            eta, variance = family.link(inside), family.variance(inside)
            information = family.mean_slope(eta) ** 2 / variance
            found[name] = [inside, eta, variance, information]
            if name != "Gamma":
                total = lambda *at, of=family: jnp.sum(of.deviance(*at))  # noqa: E731
                found[name].append(jax.value_and_grad(total, (0, 1))(zero, one))
        return found

    arrays = (np.zeros(1), np.ones(1), np.array([0.0, 0.5, 1.0]))
    found = jax.device_get(computed(*(array.astype(dtype) for array in arrays)))
    digits = -np.log(np.finfo(dtype).eps)
    for name, (inside, eta, variance, information, *deviance) in found.items():
        np.testing.assert_array_equal(inside[1], 0.5)
        assert np.all(np.isfinite(eta))
        assert np.all(variance > 0)
        assert np.all(np.isfinite(information))
        for cost, slopes in deviance:
            expected = 2 * digits if name == "Binomial" else 2 * (digits - 1)
            np.testing.assert_allclose(cost, expected, rtol=1e-3)
            assert np.all(np.isfinite(slopes))


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

    def valid_mean(self, mean):
        return jnp.maximum(mean, 1e-30)


def test_a_family_of_ones_own_is_fitted_by_newton_steps_from_its_likelihood(x64):
    """With a kernel that hardly varies: the coefficients are those of statsmodels' GLM."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 40)
    y = rng.poisson(np.exp(1 + x)) * 1.0
    own = NegativeBinomial(jax.device_put(np.array(2.0)))
    model = ak.LocalLikelihood(ak.Gaussian(1e5), family=own, order=1)
    found = np.asarray(model.local_fit(np.zeros(1), x, y).coefficients)[0, :, 0]
    family = sm.families.NegativeBinomial(alpha=0.5)
    glm = sm.GLM(y, sm.add_constant(x), family=family).fit(tol=1e-14)
    np.testing.assert_allclose(found, glm.params, rtol=1e-7)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        *(("Binomial", [0.0, 1.5], "from 0 to 1"), ("Binomial", [1.0, -0.5], "from 0 to 1")),
        *(("Poisson", [0.0, -1.0], "at least 0"), ("Gamma", [0.1, 0.0], "above 0")),
    ],
)
def test_a_label_that_the_distribution_does_not_have_is_named(name, labels, expected):
    FAMILIES[name].check(np.array(labels[:1]))
    sentence = rf"y must be {expected} for the family {name}; row 1 .* has {labels[1]}\."
    with pytest.raises(ValueError, match=sentence):
        FAMILIES[name].check(np.array(labels))
