"""Bands of local likelihood fits: their formula in NumPy, locfit's standard errors, coverage; and
the degrees of freedom and GCV of nearest-neighbour fits in locfit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimates import fitted_and_leverage, prediction_variance
from known_fits import known_fit
from local_likelihoods import FAMILIES, MEANS, locfit_cases, locfit_results, newton
from marks import slow
from refusals import assert_raises
from scipy.special import expit
from scipy.stats import norm

import attnkernel as ak
from attnkernel.data import load

N, LENGTHSCALE = 60, 0.6
AT = np.linspace(-1.5, 1.5, 7)
WEIGHTS = (1.0 + np.arange(N) % 3) * (np.arange(N) % 7 > 0)
KEPT = WEIGHTS > 0
# of μ: dμ/dη and V(μ)
SCALES = {
    "binomial": lambda mean: (mean * (1 - mean), mean * (1 - mean)),
    "poisson": lambda mean: (mean, mean),
    "gamma": lambda mean: (mean, mean**2),
}
LABELS = {
    "binomial": lambda rng, eta: rng.binomial(1, expit(eta)) * 1.0,
    "poisson": lambda rng, eta: rng.poisson(np.exp(eta)) * 1.0,
    "gamma": lambda rng, eta: rng.gamma(4.0, np.exp(eta) / 4.0),
}


def sample(name, n=N):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, n)
    return x, LABELS[name](rng, np.sin(2 * x))


def fitted(name, order=1, rows=slice(None)):
    model = ak.LocalLikelihood(ak.Gaussian(LENGTHSCALE), family=FAMILIES[name], order=order)
    x, y = sample(name)
    return known_fit(model, x[rows], y[rows], WEIGHTS[rows])


def influence(name, at, x, weights, beta, lengthscale):
    """ℓ_j of each query, and the means of the local polynomials at all keys."""
    of_label, means = [], []
    for q, coefficients in zip(at, beta, strict=True):
        w = weights * np.exp(-0.5 * ((x - q) / lengthscale) ** 2)
        terms = (x - q)[:, None] ** np.arange(len(coefficients))
        mean = MEANS[name](terms @ coefficients)
        slope, variance = SCALES[name](mean)
        information = (terms.T * (w * slope**2 / variance)) @ terms
        of_label.append(w * slope / variance * (terms @ np.linalg.inv(information)[0]))
        means.append(mean)
    return np.array(of_label), np.array(means)


@functools.cache
def by_formula(name, noise, corrected):
    """η at the inputs, its standard error, the effective counts, and the standardised weights."""
    (x, y), weights = (part[KEPT] for part in sample(name)), WEIGHTS[KEPT]
    lengthscale = LENGTHSCALE * (len(x) ** (1 / 5 - 1 / 4) if corrected else 1.0)
    beta = newton(name, AT, x, y, lengthscale, 2 if corrected else 1, weights)
    of_label, means = influence(name, AT, x, weights, beta, lengthscale)
    own_beta = newton(name, x, x, y, LENGTHSCALE, 1, weights)
    own, own_means = influence(name, x, x, weights, own_beta, LENGTHSCALE)
    fitted_means = MEANS[name](own_beta[:, 0])
    slope, variance = SCALES[name](fitted_means)
    dispersion = 1.0
    if noise == "rows":
        sd = np.empty(len(x))
        for i in range(len(x)):
            others = weights * (np.arange(len(x)) != i)
            left_out = newton(name, x[[i]], x, y, LENGTHSCALE, 1, others)[0, 0]
            sd[i] = np.abs(y[i] - MEANS[name](left_out))
    else:
        sd = np.sqrt(SCALES[name](means)[1] / weights)
    if name == "gamma" or noise == "constant":
        leverage = np.diag(own) * slope
        at_own = np.sqrt(SCALES[name](own_means)[1] / weights)
        norms = weights * slope**2 / variance * np.sum((own * at_own) ** 2, axis=1)
        squares = weights * (y - fitted_means) ** 2 / variance
        dispersion = np.sum(squares) / np.sum(1 - 2 * leverage + norms)
    rows = np.sqrt(dispersion) * of_label * sd
    on_link = of_label * SCALES[name](means)[0]
    return beta[:, 0], np.sqrt(np.sum(rows**2, axis=1)), 1 / np.sum(on_link**2, axis=1), rows


@pytest.mark.parametrize(
    ("name", "noise", "corrected"),
    [
        ("binomial", None, True),
        ("gamma", None, False),
        slow("poisson", "rows", False),
        slow("binomial", "constant", False),
    ],
)
def test_bands_are_symmetric_on_the_scale_of_the_link(x64, programs, name, noise, corrected):
    """With the standard error of the formula; rows of weight 0 are none."""
    options = {"level": 0.9, "noise": noise, "corrected": corrected}
    found = ak.bands(fitted(name), AT, **options)
    eta, error, count, _ = by_formula(name, noise, corrected)
    mean, c = MEANS[name], norm.ppf(0.95)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-7)
    close(found.centre, mean(eta))
    close(found.lower, mean(eta - c * error))
    close(found.upper, mean(eta + c * error))
    close(found.standard_error, SCALES[name](mean(eta))[0] * error)
    close(found.effective_count, count)
    assert np.all(found.reliable)
    assert found.is_bias_corrected == corrected
    programs.clear()
    dropped = ak.bands(fitted(name, rows=KEPT), AT[:5], **options)
    assert programs == []
    close(dropped.upper, np.asarray(found.upper)[:5], rtol=1e-10)


@pytest.mark.parametrize("order", [0, slow(1), slow(2)])
def test_standard_errors_equal_those_of_locfit(x64, order):
    x, y, trials, kernel = locfit_cases()["binomial"]
    model = ak.LocalLikelihood(kernel, family=ak.Binomial(), order=order)
    expected = locfit_results("binomial", order)
    found = ak.bands(known_fit(model, x, y, trials), x[expected["row"]], corrected=False)
    centre = np.asarray(found.centre)
    on_link = np.asarray(found.standard_error) / (centre * (1 - centre))
    # locfit's Newton steps of order 1 and 2 end with an error of 1e-6
    np.testing.assert_allclose(on_link, expected["se"], rtol=2e-6 if order else 1e-12)


def test_bands_where_labels_are_all_zero_or_out_of_reach(x64):
    """There the band is all of (0, 1), and not reliable; out of reach it is NaN."""
    x = np.linspace(0.0, 4.0, 41)
    y = np.where(x > 2, np.arange(41) % 2, 0) * 1.0
    options = {"family": ak.Binomial(), "order": 1, "on_empty": "nearest"}
    model = ak.LocalLikelihood(ak.Epanechnikov(0.8), **options)
    found = ak.bands(known_fit(model, x, y), np.array([0.8, 3.2, 9.0]), corrected=False)
    lower, centre, upper = map(np.asarray, (found.lower, found.centre, found.upper))
    np.testing.assert_allclose([lower[0], centre[0], upper[0]], [0.0, 0.0, 1.0], atol=1e-12)
    np.testing.assert_array_equal(found.reliable, [False, True, False])
    assert np.isnan(lower[2])
    assert np.isfinite(centre[2])
    assert 0.0 < lower[1] < centre[1] < upper[1] < 1.0


def test_noise_that_a_model_does_not_have_is_refused(x64):
    linear = known_fit(ak.KernelRegression(ak.Gaussian(0.5)), *sample("gamma"))
    assert_raises("linear smoother", ak.noise_variance, fitted("gamma"), AT)
    assert_raises("linear smoother", ak.conformal, fitted("gamma"), AT, local=True)
    assert np.all(np.isfinite(ak.conformal(fitted("gamma"), AT, level=0.5).upper))
    x, y = sample("gamma")
    several = known_fit(ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Gamma()), x, np.c_[y, y])
    assert_raises("one label per row", ak.degrees_of_freedom, several)
    for fit, noise, message in (
        (fitted("gamma"), "local", "noise must be one of 'family', 'constant', 'rows'"),
        (linear, "family", "noise must be one of 'local', 'rows', 'constant'"),
        (fitted("gamma", order=2), None, "of order 0 or 1; this fit is local quadratic, Gamma"),
    ):
        assert_raises(message, ak.bands, fit, AT, noise=noise)


@pytest.mark.slow
def test_nearest_neighbour_bandwidths_equal_those_of_locfit(x64):
    """locfit(NOx ~ lp(E, nn = 0.5, deg = 2)) on ethanol, evaluated at the data.

    By least squares written out our numbers are right to 1e-12: locfit's own are to 1e-8.
    """
    data = load("ethanol")
    model = ak.KernelRegression(ak.NearestNeighbours(ak.kernels.Tricube(1.0), 0.5), order=2)

    @jax.jit
    def computed(x, y):
        squares = prediction_variance(model, x, x, jnp.ones(88))
        return fitted_and_leverage(model, x, y), squares, ak.GCV()(model, x, y)

    (fitted, hat), squares, gcv = computed(data.x, data.y)
    expected = [3.724563838, 2.228357873, 1.390548111, 2.86848759, 0.7439582319]
    np.testing.assert_allclose(fitted[:5], expected, rtol=2e-8)
    np.testing.assert_allclose(jnp.sum(hat), 6.8892386828, rtol=1e-8)
    np.testing.assert_allclose(jnp.sum(squares), 6.3565850885, rtol=1e-8)
    np.testing.assert_allclose(gcv, 0.1195527313, rtol=1e-8)
