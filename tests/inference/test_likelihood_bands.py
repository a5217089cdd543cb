"""Bands of local likelihood fits: their formula in NumPy, locfit's standard errors, coverage."""

import csv
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow
from scipy.stats import norm

import attnkernel as ak

LOCFIT = Path(__file__).parents[1] / "models" / "locfit.csv"
WAGE = Path(ak.__file__).parent / "data" / "csv" / "wage1.csv"
N, LENGTHSCALE = 60, 0.6
AT = np.linspace(-1.5, 1.5, 7)
FAMILIES = {"binomial": ak.Binomial(), "poisson": ak.Poisson(), "gamma": ak.Gamma()}
WEIGHTS = 1.0 + np.arange(N) % 3


def sample(name, n=N, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, n)
    eta = np.sin(2 * x)
    labels = {
        "binomial": lambda: rng.binomial(1, 1 / (1 + np.exp(-eta))) * 1.0,
        "poisson": lambda: rng.poisson(np.exp(eta)) * 1.0,
        "gamma": lambda: rng.gamma(4.0, np.exp(eta) / 4.0),
    }
    return x, labels[name]()


@functools.cache
def fitted(name, order):
    """A fit with weights whose lengthscale is known: the optimiser does not move it."""
    model = ak.LocalLikelihood(ak.Gaussian(LENGTHSCALE), family=FAMILIES[name], order=order)
    return ak.fit(model, *sample(name), weights=WEIGHTS, optimizer=optax.sgd(0.0), steps=1)


# of μ: dμ/dη and V(μ)
SCALES = {
    "binomial": lambda mean: (mean * (1 - mean), mean * (1 - mean)),
    "poisson": lambda mean: (mean, mean),
    "gamma": lambda mean: (mean, mean**2),
}


def influence(name, x_new, x, beta, lengthscale):
    """ℓ_j of each query, and the means and scales of the local polynomials at all keys."""
    scales = SCALES[name]
    of_label, means = [], []
    for q, coefficients in zip(x_new, beta, strict=True):
        w = WEIGHTS * np.exp(-0.5 * ((x - q) / lengthscale) ** 2)
        terms = (x - q)[:, None] ** np.arange(len(coefficients))
        mean = np.asarray(FAMILIES[name].mean(jnp.asarray(terms @ coefficients)))
        slope, variance = scales(mean)
        information = (terms.T * (w * slope**2 / variance)) @ terms
        of_label.append(w * slope / variance * (terms @ np.linalg.inv(information)[0]))
        means.append(mean)
    return np.array(of_label), np.array(means)


@pytest.mark.parametrize(
    ("name", "noise", "corrected"),
    [
        ("binomial", None, True),
        ("gamma", None, False),
        ("poisson", "rows", False),
        slow("binomial", "constant", False),
        slow("poisson", None, False),
    ],
)
def test_bands_are_symmetric_on_the_scale_of_the_link(x64, name, noise, corrected):
    """With the standard error of the formula, of each kind of noise."""
    fit, (x, y), family = fitted(name, 1), sample(name), FAMILIES[name]
    found = ak.bands(fit, AT, level=0.9, noise=noise, corrected=corrected)
    lengthscale = LENGTHSCALE * (N ** (1 / 5 - 1 / 4) if corrected else 1.0)
    model = ak.LocalLikelihood(ak.Gaussian(lengthscale), family=family, order=2 if corrected else 1)
    beta = np.asarray(model.local_fit(AT, x, y, weights=WEIGHTS).coefficients)[..., 0]
    of_label, means = influence(name, AT, x, beta, lengthscale)
    slope, variance = SCALES[name](np.asarray(fit(x)))
    own_beta = np.asarray(fit.model.local_fit(x, x, y, weights=WEIGHTS).coefficients)[..., 0]
    own, own_means = influence(name, x, x, own_beta, LENGTHSCALE)
    dispersion = 1.0
    if noise == "rows":
        left_out = fit.model(x, x, y, prior=ak.priors.ExcludeSelf(), weights=WEIGHTS)
        sd = np.abs(y - np.asarray(left_out))[None]
    else:
        sd = np.sqrt(SCALES[name](means)[1] / WEIGHTS)
    if name == "gamma" or noise == "constant":
        leverage = np.diag(own) * slope
        at_own = np.sqrt(SCALES[name](own_means)[1] / WEIGHTS)
        norms = WEIGHTS * slope**2 / variance * np.sum((own * at_own) ** 2, axis=1)
        squares = WEIGHTS * (y - np.asarray(fit(x))) ** 2 / variance
        dispersion = np.sum(squares) / np.sum(1 - 2 * leverage + norms)
    error = np.sqrt(dispersion * np.sum((of_label * sd) ** 2, axis=1))
    eta, c = beta[:, 0], norm.ppf(0.95)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-7)
    close(found.centre, family.mean(jnp.asarray(eta)))
    close(found.lower, family.mean(jnp.asarray(eta - c * error)))
    close(found.upper, family.mean(jnp.asarray(eta + c * error)))
    close(found.standard_error, SCALES[name](np.asarray(found.centre))[0] * error)
    on_link = of_label * SCALES[name](means)[0]
    close(found.effective_count, 1 / np.sum(on_link**2, axis=1))
    assert np.all(found.reliable)
    assert found.is_bias_corrected == corrected


@pytest.mark.parametrize("order", [0, 1, slow(2)])
def test_standard_errors_equal_those_of_locfit(x64, order):
    wage = np.genfromtxt(WAGE, delimiter=",", names=True, dtype=None)
    x, group = np.unique(wage["exper"], return_inverse=True)
    trials = np.bincount(group).astype(float)
    y = np.bincount(group, wage["married"] == "Married") / trials
    model = ak.LocalLikelihood(ak.Gaussian(20 / 2.5), family=ak.Binomial(), order=order)
    fit = ak.fit(model, x, y, weights=trials, optimizer=optax.sgd(0.0), steps=1)
    table = [
        (int(line["row"]), float(line["se"]))
        for line in csv.DictReader(LOCFIT.read_text().splitlines())
        if line["family"] == "binomial" and line["order"] == str(order)
    ]
    rows, expected = map(np.array, zip(*table, strict=True))
    found = ak.bands(fit, x[rows], corrected=False)
    on_link = found.standard_error / (found.centre * (1 - found.centre))
    np.testing.assert_allclose(on_link, expected, rtol=2e-6 if order else 1e-12)


def test_simultaneous_bands_are_wider_and_have_the_same_centre(x64):
    """c is a quantile of the largest of correlated normal variables, drawn here by NumPy."""
    fit, (x, y) = fitted("binomial", 1), sample("binomial")
    parts = {"kind": "simultaneous", "key": jax.random.PRNGKey(0), "draws": 20000}
    found = ak.bands(fit, AT, corrected=False, **parts)
    beta = np.asarray(fit.model.local_fit(AT, x, y, weights=WEIGHTS).coefficients)[..., 0]
    of_label, means = influence("binomial", AT, x, beta, LENGTHSCALE)
    rows = of_label * np.sqrt(SCALES["binomial"](means)[1] / WEIGHTS)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    noise = np.random.default_rng(1).normal(size=(N, 20000))
    c = np.quantile(np.max(np.abs(units @ noise), axis=0), 0.95)
    assert c > 1.05 * norm.ppf(0.975)
    link = ak.Binomial().link
    width = link(found.upper) - link(found.centre)
    error = found.standard_error / (found.centre * (1 - found.centre))
    np.testing.assert_allclose(width / error, np.full(len(AT), c), rtol=0.02)


def test_bands_where_labels_are_all_zero_or_out_of_reach(x64):
    """There the band is all of (0, 1), and not reliable; out of reach it is NaN."""
    x = np.linspace(0.0, 4.0, 41)
    y = np.where(x > 2, np.arange(41) % 2, 0) * 1.0
    model = ak.LocalLikelihood(
        ak.Epanechnikov(0.8), family=ak.Binomial(), order=1, on_empty="nearest"
    )
    fit = ak.fit(model, x, y, optimizer=optax.sgd(0.0), steps=1)
    found = ak.bands(fit, np.array([0.8, 3.2, 9.0]), corrected=False)
    np.testing.assert_allclose(found.centre[0], 0.0, atol=1e-12)
    np.testing.assert_allclose([found.lower[0], found.upper[0]], [0.0, 1.0], atol=1e-12)
    np.testing.assert_array_equal(found.reliable, [False, True, False])
    assert np.isnan(found.lower[2])
    assert np.isfinite(found.centre[2])
    assert 0.0 < found.lower[1] < found.centre[1] < found.upper[1] < 1.0


def test_rows_of_weight_zero_and_padding_do_not_change_a_band(x64, programs):
    x, y = sample("poisson")
    weights = WEIGHTS * (np.arange(N) % 7 > 0)
    model = ak.LocalLikelihood(ak.Gaussian(LENGTHSCALE), family=ak.Poisson(), order=1)
    given = {"optimizer": optax.sgd(0.0), "steps": 1}
    whole = ak.bands(ak.fit(model, x, y, weights=weights, **given), AT, noise="constant")
    kept = weights > 0
    fit = ak.fit(model, x[kept], y[kept], weights=weights[kept], **given)
    before = len(programs)
    dropped = ak.bands(fit, AT[:5], noise="constant")
    assert programs[before:] == []
    np.testing.assert_allclose(dropped.upper, whole.upper[:5], rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_bands_cover_about_their_level(x64, name):
    """200 samples of 200 rows: pointwise and bias-corrected."""
    family = FAMILIES[name]
    model = ak.LocalLikelihood(ak.Gaussian(0.35), family=family, order=1)
    truth = family.mean(jnp.sin(2 * jnp.asarray(AT)))
    covered = []
    for seed in range(200):
        fit = ak.fit(model, *sample(name, 200, seed), optimizer=optax.sgd(0.0), steps=1)
        found = ak.bands(fit, AT)
        covered.append((found.lower <= truth) & (truth <= found.upper))
    assert 0.925 < np.mean(covered) < 0.975


def test_noise_that_a_model_does_not_have_is_refused(x64):
    with pytest.raises(ValueError, match="noise must be one of 'family', 'constant', 'rows'"):
        ak.bands(fitted("gamma", 1), AT, noise="local")
    linear = ak.fit(ak.KernelRegression(ak.Gaussian(0.5)), *sample("gamma"), starts=1)
    with pytest.raises(ValueError, match="noise must be one of 'local', 'rows', 'constant'"):
        ak.bands(linear, AT, noise="family")
    with pytest.raises(ValueError, match="linear smoother"):
        ak.degrees_of_freedom(fitted("gamma", 1))
    with pytest.raises(ValueError, match="of order 0 or 1; this fit is local quadratic, Gamma"):
        ak.bands(fitted("gamma", 2), AT)
