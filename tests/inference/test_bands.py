"""Standard errors, bands, variances and conformal intervals, against their formulas in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import attnkernel as ak
from attnkernel.data import load

N, M = 61, 7


def sample():
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(-2, 2, N))
    return x, np.sin(2 * x) + (0.1 + 0.1 * np.abs(x)) * rng.normal(size=N)


def hat_matrix(x_new, x, lengthscale, order):
    rows = []
    for q in x_new:
        root = np.exp(-0.25 * ((x - q) / lengthscale) ** 2)
        basis = root[:, None] * (x - q)[:, None] ** np.arange(order + 1)
        rows.append(np.linalg.pinv(basis)[0] * root)
    return np.array(rows)


def fitted(order, lengthscale=0.35):
    """A fit whose lengthscale is known: the search may not move it."""
    x, y = sample()
    model = ak.KernelRegression(ak.Gaussian(lengthscale), order=order)
    narrow = [
        ak.KernelRegression(ak.Gaussian(lengthscale * s), order=order) for s in (0.999, 1.001)
    ]
    with pytest.warns(ak.FitWarning):
        fit = ak.fit(model, x, y, objective=ak.GCV(), bounds=tuple(narrow), starts=1)
    return fit, float(fit.model.kernel.lengthscale)


@pytest.mark.parametrize("order", [0, 1])
def test_degrees_of_freedom(x64, order):
    fit, lengthscale = fitted(order)
    x, _ = sample()
    hat = hat_matrix(x, x, lengthscale, order)
    found = ak.degrees_of_freedom(fit)
    np.testing.assert_allclose(found.trace, np.trace(hat), rtol=1e-9)
    np.testing.assert_allclose(found.trace_of_squares, np.sum(hat**2), rtol=1e-9)
    expected = np.trace((np.eye(N) - hat).T @ (np.eye(N) - hat))
    np.testing.assert_allclose(found.residual, expected, rtol=1e-9)
    x_new = np.linspace(-2, 2, M)
    rows = hat_matrix(x_new, x, lengthscale, order)
    np.testing.assert_allclose(
        ak.effective_count(fit, x_new), 1 / np.sum(rows**2, axis=1), rtol=1e-9
    )


def test_degrees_of_freedom_are_of_rows_that_weigh(x64):
    part, _ = fitted(1)
    x, y = sample()
    more = {"x": jnp.asarray(np.r_[x, x + 0.1][:, None]), "y": jnp.asarray(np.r_[y, y])}
    weights = jnp.asarray(np.r_[np.ones(N), np.zeros(N)])
    whole = dataclasses.replace(part, **more, objective=part.objective.weighted(weights))
    both = map(jax.tree.leaves, map(ak.degrees_of_freedom, (whole, part)))
    np.testing.assert_allclose(*both, rtol=1e-9)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("noise", ["rows", "constant"])
def test_pointwise_bands(x64, corrected, noise):
    fit, lengthscale = fitted(1)
    (x, y), x_new = sample(), np.linspace(-2, 2, M)
    hat = hat_matrix(x, x, lengthscale, 1)  # residuals are those of the fit itself
    order = 2 if corrected else 1
    lengthscale *= N ** (1 / 5 - 1 / 4) if corrected else 1.0
    rows = hat_matrix(x_new, x, lengthscale, order)
    residuals = y - hat @ y
    variance = (residuals / (1 - np.diag(hat))) ** 2
    if noise == "constant":
        variance = np.sum(residuals**2) / np.trace((np.eye(N) - hat).T @ (np.eye(N) - hat))
    se = np.sqrt(rows**2 @ (variance * np.ones(N)))
    found = ak.bands(fit, x_new, level=0.9, noise=noise, corrected=corrected)
    np.testing.assert_allclose(found.centre, rows @ y, rtol=1e-8)
    np.testing.assert_allclose(found.standard_error, se, rtol=1e-8)
    np.testing.assert_allclose(found.upper - found.centre, stats.norm.ppf(0.95) * se, rtol=1e-8)
    np.testing.assert_allclose(found.centre - found.lower, stats.norm.ppf(0.95) * se, rtol=1e-8)


def test_simultaneous_bands_hold_all_inputs_at_once(x64):
    """c is a quantile of the greatest of correlated numbers of Student, drawn here another way."""
    fit, lengthscale = fitted(0)
    x, _ = sample()
    x_new = np.linspace(-2, 2, M)
    key = jax.random.PRNGKey(0)
    found = ak.bands(fit, x_new, kind="simultaneous", noise="constant", draws=20000, key=key)
    rows = hat_matrix(x_new, x, N ** (1 / 5 - 1 / 4) * lengthscale, 2)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    noise = np.random.default_rng(1).normal(size=(N, 20000))
    left = np.eye(N) - hat_matrix(x, x, lengthscale, 0)
    sd = np.sqrt(np.sum((left @ noise) ** 2, axis=0) / np.trace(left.T @ left))
    expected = np.quantile(np.max(np.abs(units @ noise), axis=0) / sd, 0.95)
    assert expected > 1.01 * np.quantile(np.max(np.abs(units @ noise), axis=0), 0.95)
    c = (found.upper - found.centre) / found.standard_error
    np.testing.assert_allclose(c, np.full(M, expected), rtol=0.02)
    with pytest.raises(ValueError, match="pass key="):
        ak.bands(fit, x_new, kind="simultaneous")


@pytest.mark.parametrize("kind", ["pointwise", "simultaneous"])
def test_nothing_is_known_where_no_label_has_weight(x64, kind):
    x, y = sample()
    model = ak.KernelRegression(ak.Epanechnikov(0.8), order=1, on_empty="nearest")
    fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=1)
    found = ak.bands(fit, np.array([0.0, 9.0]), kind=kind, key=jax.random.PRNGKey(0))
    assert np.all(np.isfinite(found.centre))
    np.testing.assert_array_equal(np.isnan(found.lower), [False, True])
    np.testing.assert_array_equal(np.isnan(found.standard_error), [False, True])


def test_noise_variance_is_a_ratio_of_local_means(x64):
    fit, lengthscale = fitted(1)
    (x, y), x_new = sample(), np.linspace(-2, 2, M)
    hat = hat_matrix(x, x, lengthscale, 1)
    squares = (y - hat @ y) ** 2
    expected = 1 - 2 * np.diag(hat) + np.sum(hat**2, axis=1)

    def ratio(rows):
        return rows @ squares / (rows @ expected)

    def unlikely(longer):
        weights = np.exp(-0.5 * ((x[:, None] - x[None, :]) / (longer * lengthscale)) ** 2)
        others = ratio(weights * (1 - np.eye(N)))
        return np.mean(np.log(others) + squares / expected / others)

    best = min((2.0, 4.0, 8.0, 16.0, 32.0, 64.0), key=unlikely)
    weights = np.exp(-0.5 * ((x_new[:, None] - x[None, :]) / (best * lengthscale)) ** 2)
    np.testing.assert_allclose(ak.noise_variance(fit, x_new), ratio(weights), rtol=1e-8)


def test_wild_bootstrap_has_the_variance_of_the_fit(x64):
    fit, lengthscale = fitted(1)
    (x, y), x_new = sample(), np.linspace(-2, 2, M)
    draws = ak.wild_bootstrap(fit, x_new, draws=20000, key=jax.random.PRNGKey(3))
    hat, rows = (hat_matrix(q, x, lengthscale, 1) for q in (x, x_new))
    sd = (y - hat @ y) / (1 - np.diag(hat))
    assert draws.shape == (20000, M)
    np.testing.assert_allclose(np.mean(draws, axis=0), rows @ hat @ y, atol=0.01)
    np.testing.assert_allclose(np.var(draws, axis=0), rows**2 @ sd**2, rtol=0.05)


@pytest.mark.parametrize("local", [False, True])
def test_conformal_intervals_by_their_definition(x64, local):
    fit, _ = fitted(1)
    x, y = sample()
    found = ak.conformal(fit, x, level=0.8, local=local)
    left_out = fit.model(x, x, y, prior=ak.priors.LeaveOneOut())
    # at the rows themselves as many are inside as the rank of the quantile, if spreads are alike
    half = 0.5 * (found.upper - found.lower)
    inside = np.sum(np.abs(y - left_out) <= half * (1 + 1e-9))
    rank = int(np.ceil((N + 1) * 0.8))
    assert inside == rank if not local else abs(inside - rank) <= 4
    assert np.all(np.isinf(ak.conformal(fit, x[:3], level=0.999).upper))
    split = ak.conformal(fit, x, level=0.8, kind="split", local=local, key=jax.random.PRNGKey(1))
    assert 0.6 < np.mean((split.lower <= y) & (y <= split.upper)) < 0.97


def test_what_has_no_band(x64):
    fit, _ = fitted(0)
    with pytest.raises(ValueError, match=r"between 0 and 1.*got 95"):
        ak.bands(fit, jnp.zeros(1), level=95.0)
    with pytest.raises(ValueError, match='"pointwise" or "simultaneous"'):
        ak.bands(fit, jnp.zeros(1), kind="uniform")
    with pytest.raises(ValueError, match='"local", "rows" or "constant"'):
        ak.bands(fit, jnp.zeros(1), noise="white")
    x, y = sample()
    heads = ak.MultiheadKernelRegression(ak.Gaussian(jnp.array([0.3, 0.5])))
    of_heads = ak.fit(heads, x, y, objective=ak.LeaveOneOut(), starts=1)
    with pytest.raises(ValueError, match="hat matrix is known; got a MultiheadKernelRegression"):
        ak.bands(of_heads, jnp.zeros(1))


def test_nearest_neighbours_of_locfit(x64):
    """locfit(NOx ~ lp(E, nn = 0.5, deg = 2)) on ethanol, evaluated at the data.

    By least squares written out our numbers are right to 1e-12: locfit's own are to 1e-8.
    """
    data = load("ethanol")
    model = ak.KernelRegression(ak.NearestNeighbours(ak.Tricube(1.0), 0.5), order=2)
    fitted, hat = model.smooth(data.x, data.y)
    expected = [3.724563838, 2.228357873, 1.390548111, 2.86848759, 0.7439582319]
    np.testing.assert_allclose(fitted[:5], expected, rtol=2e-8)
    np.testing.assert_allclose(jnp.sum(hat), 6.8892386828, rtol=1e-8)
    squares = model.noise(data.x, data.x, jnp.ones(88))
    np.testing.assert_allclose(jnp.sum(squares), 6.3565850885, rtol=1e-8)
    np.testing.assert_allclose(ak.GCV()(model, data.x, data.y), 0.1195527313, rtol=1e-8)
