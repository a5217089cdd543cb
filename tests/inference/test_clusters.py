"""Variances HC0 to HC3 and clustered ones, by their definitions in NumPy and as in nprobust."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow
from scipy import stats

import attnkernel as ak

N, M, LENGTHSCALE = 48, 5, 0.35
X_NEW = np.linspace(-1.8, 1.8, M)
CLUSTERS = np.random.default_rng(1).integers(0, 11, N)
STILL = {"optimizer": optax.sgd(0.0), "steps": 1}  # a fit whose lengthscale is known
ADJUSTED = {
    "hc0": lambda own, trace, n: np.ones_like(own),
    "hc1": lambda own, trace, n: n / (n - trace) * np.ones_like(own),
    "hc2": lambda own, trace, n: 1 / (1 - own),
    "hc3": lambda own, trace, n: 1 / (1 - own) ** 2,
}


def sample():
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(-2, 2, N))
    return x, np.sin(2 * x) + 0.1 * rng.normal(size=N) + 0.2 * rng.normal(size=11)[CLUSTERS]


def rows_of(x_new, x, lengthscale, order, term=0):
    rows = []
    for q in x_new:
        root = np.exp(-0.25 * ((x - q) / lengthscale) ** 2)
        basis = root[:, None] * (x - q)[:, None] ** np.arange(order + 1)
        rows.append(np.linalg.pinv(basis)[term] * root)
    return np.array(rows)


@functools.cache
def fitted():
    x, y = sample()
    model = ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=1)
    return ak.fit(model, x, y, **STILL)


def clustered(rows, errors):
    """$\\sum_g (\\sum_{i in g} L_i e_i)^2$ at each input."""
    own = CLUSTERS[:, None] == np.arange(11)[None, :]
    return np.sum(((rows * errors) @ own) ** 2, axis=1)


@pytest.mark.parametrize("noise", ["hc0", slow("hc1"), "hc2", slow("hc3")])
@pytest.mark.parametrize("term", [0, slow(1)], ids=["mean", "derivative"])
def test_variances_by_their_definitions(x64, noise, term):
    x, y = sample()
    rows, hat = rows_of(X_NEW, x, LENGTHSCALE, 1, term), rows_of(x, x, LENGTHSCALE, 1)
    own, trace = np.diag(hat), np.trace(hat)
    squares = (y - hat @ y) ** 2 * ADJUSTED[noise](own, trace, N)
    options = {"noise": noise, "corrected": False, "derivative": term or None}
    found = ak.bands(fitted(), X_NEW, **options)
    np.testing.assert_allclose(found.standard_error, np.sqrt(rows**2 @ squares), rtol=1e-9)
    errors = np.sign(y - hat @ y) * np.sqrt(squares)
    factor = 11 / 10 * (N - 1) / (N - trace)
    found = ak.bands(fitted(), X_NEW, clusters=CLUSTERS, **options)
    expected = np.sqrt(factor * clustered(rows, errors))
    np.testing.assert_allclose(found.standard_error, expected, rtol=1e-9)
    c = (found.upper - found.centre) / found.standard_error
    np.testing.assert_allclose(c, np.full(M, stats.t.ppf(0.975, 10)), rtol=1e-9)


def without_own_cluster():
    """Each label less its prediction from all other clusters."""
    x, y = sample()
    errors = np.empty(N)
    for i in range(N):
        others = CLUSTERS[i] != CLUSTERS
        errors[i] = y[i] - rows_of(x[i : i + 1], x[others], LENGTHSCALE, 1)[0] @ y[others]
    return errors


def test_the_default_error_is_of_a_prediction_from_other_clusters(x64):
    x, _ = sample()
    shorter = LENGTHSCALE * N ** (1 / 5 - 1 / 4)
    expected = np.sqrt(clustered(rows_of(X_NEW, x, shorter, 2), without_own_cluster()))
    words = [f"village {cluster}" for cluster in CLUSTERS]
    found = ak.bands(fitted(), X_NEW, clusters=words)
    np.testing.assert_allclose(found.standard_error, expected, rtol=1e-8)


def test_average_derivatives_of_clustered_rows(x64):
    x, _ = sample()
    average = np.mean(rows_of(x, x, LENGTHSCALE, 1, 1), axis=0, keepdims=True)
    options = {"clusters": CLUSTERS, "undersmoothed": False}
    found = ak.inference.average_derivative(fitted(), **options)
    expected = np.sqrt(clustered(average, without_own_cluster()))
    np.testing.assert_allclose(found.standard_error, expected, rtol=1e-9)
    c = (found.upper - found.estimate) / found.standard_error
    np.testing.assert_allclose(c, [stats.t.ppf(0.975, 10)], rtol=1e-9)


# lprobust(accel, times, eval=[10, 30], p=1, h=1000.0, kernel="uni", bwcheck=None, vce=, cluster=)
# of nprobust 0.5.0 on mcycle: standard errors without and with the clusters round(times) // 5.
# Its residuals are those of the polynomial at the input; with all rows in reach, so are ours.
NPROBUST = {
    "hc0": ([5.8395375850912155, 3.8127471598235148], [16.743025473774097, 10.630491699029884]),
    "hc1": ([5.88394535461154, 3.841741852407562], [16.87035069524548, 10.71133310442874]),
    "hc2": ([5.884233265918918, 3.833510434038108], [16.85664557729283, 10.682644379106955]),
    "hc3": ([5.929464849766985, 3.8544382279475577], [16.971494725428514, 10.735108112131378]),
}


@pytest.mark.parametrize("noise", [slow("hc0"), "hc1", slow("hc2"), slow("hc3")])
def test_standard_errors_of_a_line_equal_those_of_nprobust(x64, noise):
    data, (independent, by_cluster) = ak.data.load("mcycle"), NPROBUST[noise]
    fit = ak.fit(ak.KernelRegression(ak.Boxcar(1000.0), order=1), data.x, data.y, **STILL)
    clusters = np.round(data.x[:, 0]) // 5
    options = {"noise": noise, "corrected": False}
    found = ak.bands(fit, np.array([10.0, 30.0]), **options)
    np.testing.assert_allclose(found.standard_error, independent, rtol=1e-12)
    found = ak.bands(fit, np.array([10.0, 30.0]), clusters=clusters, **options)
    np.testing.assert_allclose(found.standard_error, by_cluster, rtol=1e-12)


def test_clusters_that_are_refused(x64):
    fit = fitted()
    with pytest.raises(ValueError, match="each of the 48 rows of the fit; got 11 of 47 rows"):
        ak.bands(fit, X_NEW, clusters=CLUSTERS[1:])
    with pytest.raises(ValueError, match="got 1 of 48 rows"):
        ak.inference.average_derivative(fit, clusters=np.zeros(N))
    with pytest.raises(ValueError, match=r"noise must be one of 'rows', 'hc0'.*got 'local'"):
        ak.bands(fit, X_NEW, clusters=CLUSTERS, noise="local")
    with pytest.raises(ValueError, match=r'pass kind="pointwise"'):
        ak.bands(fit, X_NEW, clusters=CLUSTERS, kind="simultaneous", key=jax.random.PRNGKey(0))


@pytest.mark.slow
def test_clustered_bands_cover_where_others_do_not(x64):
    """40 clusters of 5 rows with nearly equal inputs, and half of the variance of the error shared.

    Over 200 data sets, nominal 95 % bands covered .91 with clusters, and .71 without (HC3).
    """
    clusters = np.repeat(np.arange(40), 5)
    x = np.repeat(np.linspace(-1, 1, 40), 5)
    x = x + 0.02 * np.random.default_rng(0).uniform(-1, 1, 200)
    at = np.linspace(-0.95, 0.95, 21)

    @jax.jit
    @jax.vmap
    def covered(key):
        of_cluster, own = jax.random.split(key)
        errors = jax.random.normal(of_cluster, (40,))[clusters] + jax.random.normal(own, (200,))
        y = jnp.sin(3 * x) + 0.4 * np.sqrt(0.5) * errors
        model = ak.KernelRegression(ak.Gaussian(0.134), order=1)
        fit = ak.fit(model, x, y, **STILL)
        bands = [ak.bands(fit, at, noise="hc3"), ak.bands(fit, at, clusters=clusters)]
        truth = jnp.sin(3 * at)
        return [jnp.mean((band.lower <= truth) & (truth <= band.upper)) for band in bands]

    found = covered(jax.random.split(jax.random.PRNGKey(0), 40))
    independent, by_cluster = (np.mean(np.asarray(each)) for each in found)
    assert independent < 0.8
    assert 0.88 < by_cluster < 0.97
