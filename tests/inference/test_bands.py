"""Standard errors, bands, variances and conformal intervals, against their formulas in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow
from scipy import stats

import attnkernel as ak

N, M = 61, 7
LENGTHSCALE = 0.35
X_NEW = np.linspace(-2, 2, M)


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


@functools.cache
def fitted(order):
    """A fit whose lengthscale is known, 0.35: the optimiser does not move it."""
    x, y = sample()
    model = ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=order)
    return ak.fit(model, x, y, objective=ak.GCV(), optimizer=optax.sgd(0.0), steps=1)


@pytest.mark.parametrize("order", [slow(0), 1])
def test_degrees_of_freedom_and_effective_counts(x64, order):
    fit = fitted(order)
    x, _ = sample()
    hat = hat_matrix(x, x, LENGTHSCALE, order)
    found = ak.degrees_of_freedom(fit)
    np.testing.assert_allclose(found.trace, np.trace(hat), rtol=1e-9)
    np.testing.assert_allclose(found.trace_of_squares, np.sum(hat**2), rtol=1e-9)
    expected = np.trace((np.eye(N) - hat).T @ (np.eye(N) - hat))
    np.testing.assert_allclose(found.residual, expected, rtol=1e-9)
    rows = hat_matrix(X_NEW, x, LENGTHSCALE, order)
    counts = ak.effective_count(fit, X_NEW)
    np.testing.assert_allclose(counts, 1 / np.sum(rows**2, axis=1), rtol=1e-9)


def test_degrees_of_freedom_ignore_rows_of_weight_zero(x64):
    part = fitted(1)
    x, y = sample()
    more = {"x": jnp.asarray(np.r_[x, x + 0.1][:, None]), "y": jnp.asarray(np.r_[y, y])}
    weights = jnp.asarray(np.r_[np.ones(N), np.zeros(N)])
    whole = dataclasses.replace(part, **more, objective=part.objective.with_weights(weights))
    both = map(jax.tree.leaves, map(ak.degrees_of_freedom, (whole, part)))
    np.testing.assert_allclose(*both, rtol=1e-9)


@pytest.mark.parametrize(
    ("corrected", "noise"),
    [
        pytest.param(True, "rows", id="corrected, noise of rows"),
        pytest.param(False, "constant", id="not corrected, constant noise"),
        slow(True, "constant", id="corrected, constant noise"),
        slow(False, "rows", id="not corrected, noise of rows"),
    ],
)
def test_pointwise_bands(x64, corrected, noise):
    fit, lengthscale, (x, y) = fitted(1), LENGTHSCALE, sample()
    hat = hat_matrix(x, x, lengthscale, 1)  # residuals are those of the fit itself
    order = 2 if corrected else 1
    lengthscale *= N ** (1 / 5 - 1 / 4) if corrected else 1.0
    rows = hat_matrix(X_NEW, x, lengthscale, order)
    residuals = y - hat @ y
    variance = (residuals / (1 - np.diag(hat))) ** 2
    if noise == "constant":
        variance = np.sum(residuals**2) / np.trace((np.eye(N) - hat).T @ (np.eye(N) - hat))
    se = np.sqrt(rows**2 @ (variance * np.ones(N)))
    found = ak.bands(fit, X_NEW, level=0.9, noise=noise, corrected=corrected)
    np.testing.assert_allclose(found.centre, rows @ y, rtol=1e-8)
    np.testing.assert_allclose(found.standard_error, se, rtol=1e-8)
    np.testing.assert_allclose(found.upper - found.centre, stats.norm.ppf(0.95) * se, rtol=1e-8)
    np.testing.assert_allclose(found.centre - found.lower, stats.norm.ppf(0.95) * se, rtol=1e-8)


@pytest.mark.slow
def test_simultaneous_bands_cover_all_inputs_at_once(x64):
    """c is a quantile of the largest of M correlated Student t variables, drawn here by NumPy."""
    fit, (x, _) = fitted(0), sample()
    key = jax.random.PRNGKey(0)
    found = ak.bands(fit, X_NEW, kind="simultaneous", noise="constant", draws=20000, key=key)
    rows = hat_matrix(X_NEW, x, N ** (1 / 5 - 1 / 4) * LENGTHSCALE, 2)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    noise = np.random.default_rng(1).normal(size=(N, 20000))
    left = np.eye(N) - hat_matrix(x, x, LENGTHSCALE, 0)
    sd = np.sqrt(np.sum((left @ noise) ** 2, axis=0) / np.trace(left.T @ left))
    expected = np.quantile(np.max(np.abs(units @ noise), axis=0) / sd, 0.95)
    assert expected > 1.01 * np.quantile(np.max(np.abs(units @ noise), axis=0), 0.95)
    c = (found.upper - found.centre) / found.standard_error
    np.testing.assert_allclose(c, np.full(M, expected), rtol=0.02)
    of_matrix = dataclasses.replace(fit, y=fit.y[:, None])
    simulation = {"kind": "simultaneous", "draws": 100, "key": key}
    column, row = (ak.bands(each, X_NEW, **simulation).upper for each in (of_matrix, fit))
    np.testing.assert_allclose(column, row[:, None], rtol=1e-9)
    with pytest.raises(ValueError, match="key="):
        ak.bands(fit, X_NEW, kind="simultaneous")


@pytest.mark.parametrize(
    ("order", "options"),
    [
        pytest.param(0, {"corrected": False, "noise": "constant"}, id="pointwise, not corrected"),
        slow(1, {}, id="pointwise, corrected"),
        slow(1, {"kind": "simultaneous"}, id="simultaneous"),
    ],
)
def test_bands_are_nan_where_no_label_has_weight(x64, order, options):
    model = ak.KernelRegression(ak.Epanechnikov(0.8), order=order, on_empty="nearest")
    fit = dataclasses.replace(fitted(1), model=model)
    found = ak.bands(fit, np.array([0.0, 9.0]), key=jax.random.PRNGKey(0), **options)
    assert np.all(np.isfinite(found.centre))
    np.testing.assert_array_equal(np.isnan(found.lower), [False, True])
    np.testing.assert_array_equal(np.isnan(found.standard_error), [False, True])


@pytest.mark.parametrize("noise", ["of x", "constant"])
def test_noise_variance_is_a_ratio_of_local_means(x64, noise):
    """Constant noise is averaged over all rows: residuals are compared with those of others."""
    fit, lengthscale, (x, y) = fitted(1), LENGTHSCALE, sample()
    if noise == "constant":
        y = np.sin(2 * x) + 0.1 * np.random.default_rng(3).normal(size=N)
        fit = dataclasses.replace(fit, y=jnp.asarray(y))
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
    assert best == (64.0 if noise == "constant" else 2.0)
    weights = np.exp(-0.5 * ((X_NEW[:, None] - x[None, :]) / (best * lengthscale)) ** 2)
    np.testing.assert_allclose(ak.noise_variance(fit, X_NEW), ratio(weights), rtol=1e-8)


@pytest.mark.parametrize("corrected", [True, False])
def test_wild_bootstrap_has_the_centre_and_the_variance_of_the_band(x64, corrected):
    fit, (x, y) = fitted(1), sample()
    given = {"corrected": corrected, "draws": 20000, "key": jax.random.PRNGKey(3)}
    draws = ak.wild_bootstrap(fit, X_NEW, **given)
    hat = hat_matrix(x, x, LENGTHSCALE, 1)
    shorter = LENGTHSCALE * N ** (1 / 5 - 1 / 4)
    rows = hat_matrix(X_NEW, x, *((shorter, 2) if corrected else (LENGTHSCALE, 1)))
    sd = (y - hat @ y) / (1 - np.diag(hat))
    assert draws.shape == (20000, M)
    np.testing.assert_allclose(np.mean(draws, axis=0), rows @ y, atol=0.01)
    np.testing.assert_allclose(np.var(draws, axis=0), rows**2 @ sd**2, rtol=0.05)


def test_bands_tell_where_they_are_not_reliable(x64):
    """35 inputs in [-2, 0] and 5 in [1.5, 2]: the effective count is small between and outside."""
    rng = np.random.default_rng(0)
    x = np.sort(np.r_[rng.uniform(-2, 0, 35), rng.uniform(1.5, 2, 5)])
    y = np.sin(2 * x) + 0.1 * rng.normal(size=40)
    fit = dataclasses.replace(fitted(1), x=jnp.asarray(x)[:, None], y=jnp.asarray(y))
    at = np.array([-1.0, -0.5, 0.75, 1.75, 3.0])
    with pytest.warns(ak.ExtrapolationWarning, match="at 5 queries: at 1 it extrapolates"):
        found = ak.bands(fit, at)
    rows = hat_matrix(at, x, LENGTHSCALE * 40 ** (1 / 5 - 1 / 4), 2)
    np.testing.assert_allclose(found.effective_count, 1 / np.sum(rows**2, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(
        found.reliable, [True, True, False, found.effective_count[3] >= 3, False]
    )
    assert found.frame()["reliable"].tolist() == found.reliable.tolist()
    assert ak.conformal(fit, at[:2]).reliable is None


@pytest.mark.parametrize(
    ("inputs", "at"),
    [
        pytest.param(np.linspace(0, 2, 21)[:, None], np.array([[1.0], [2.38]]), id="extrapolates"),
        # two equal columns: S is singular, and yet nothing extrapolates along their line
        pytest.param(np.linspace([0, 0], [2, 2], 21), np.array([[1.0, 1.0]]), id="deficient"),
    ],
)
def test_bands_of_many_labels_are_not_reliable_where_the_polynomial_is_not(x64, inputs, at):
    x = np.repeat(inputs, 90, axis=0)
    y = np.random.default_rng(0).normal(size=len(x))
    model = ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=2)
    fit = dataclasses.replace(fitted(1), model=model, x=jnp.asarray(x), y=jnp.asarray(y))
    with pytest.warns(ak.ExtrapolationWarning):
        found = ak.bands(fit, at, corrected=False, noise="constant")
    assert np.all(found.effective_count > 3)
    np.testing.assert_array_equal(found.reliable, [True] * (len(at) - 1) + [False])


@pytest.mark.parametrize(
    "local",
    [
        pytest.param(False, id="one width"),
        slow(True, id="local widths"),
    ],
)
def test_conformal_intervals_by_their_definition(x64, local):
    """At the rows themselves, those within the width are as many as the rank of the quantile."""
    fit, (x, y) = fitted(1), sample()
    found = ak.conformal(fit, x, level=0.8, local=local)
    left_out = []
    for i in range(N):
        others = np.arange(N) != i
        left_out.append(hat_matrix(x[i : i + 1], x[others], LENGTHSCALE, 1)[0] @ y[others])
    half = 0.5 * (found.upper - found.lower)
    inside = np.sum(np.abs(y - left_out) <= half * (1 + 1e-9))
    rank = int(np.ceil((N + 1) * 0.8))
    assert inside == rank if not local else abs(inside - rank) <= 4
    assert np.all(np.isinf(ak.conformal(fit, x, level=0.999, local=local).upper))


@pytest.mark.slow
@pytest.mark.parametrize("local", [False, True], ids=["one width", "local widths"])
def test_split_conformal_intervals_cover_about_their_level(x64, local):
    fit, (x, y) = fitted(1), sample()
    split = ak.conformal(fit, x, level=0.8, kind="split", local=local, key=jax.random.PRNGKey(1))
    assert 0.6 < np.mean((split.lower <= y) & (y <= split.upper)) < 0.97


def test_arguments_of_bands_that_are_refused(x64):
    fit = fitted(0)
    with pytest.raises(ValueError, match=r"level.*between 0 and 1.*got 95"):
        ak.bands(fit, jnp.zeros(1), level=95.0)
    with pytest.raises(ValueError, match=r"kind.*simultaneous.*uniform"):
        ak.bands(fit, jnp.zeros(1), kind="uniform")
    with pytest.raises(ValueError, match=r"noise.*constant.*white"):
        ak.bands(fit, jnp.zeros(1), noise="white")
    heads = ak.MultiheadKernelRegression(ak.PerHead(ak.Gaussian(jnp.array([0.3, 0.5]))))
    of_heads = dataclasses.replace(fit, model=heads)
    with pytest.raises(ValueError, match=r"linear smoother.*MultiheadKernelRegression"):
        ak.bands(of_heads, jnp.zeros(1))


@pytest.mark.filterwarnings("ignore::attnkernel.ExtrapolationWarning")
def test_a_band_prints_its_first_and_last_rows(x64):
    band = ak.bands(fitted(1), np.linspace(-2.0, 9.0, 23), noise="constant")
    lines = str(band).splitlines()
    assert lines[0] == "95 % pointwise, bias-corrected, 23 inputs"
    assert lines[1].split() == ["x", "centre", "lower", "upper", "reliable"]
    assert len(lines) == 13
    first, last = lines[2].split(), lines[-1].split()
    numbers = [band.x[0, 0], band.centre[0], band.lower[0], band.upper[0]]
    assert first == [*(f"{float(number):.6g}" for number in numbers), "no"]
    assert [line.split()[-1] for line in lines[2:7]] == [
        "yes" if reliable else "no" for reliable in band.reliable[:5]
    ]
    assert band.reliable[:5].any()
    assert lines[7].split() == ["..."] * 5
    assert (last[0], last[-1]) == ("9", "no")
    assert len({len(line) for line in lines[1:]}) == 1


def test_a_conformal_interval_prints_all_of_few_rows(x64):
    interval = ak.conformal(dataclasses.replace(fitted(1), x_names=("age",)), np.array([0.0, 1.0]))
    lines = str(interval).splitlines()
    assert lines[0] == "95 % conformal, 2 inputs"
    assert lines[1].split() == ["age", "centre", "lower", "upper"]
    assert len(lines) == 4
    assert "Bands(" in str(jax.eval_shape(lambda: interval))  # no numbers to print


def test_the_conformal_rank_is_not_raised_by_rounding(x64):
    """100 · 0.55 is 55, and 55.000000000000007 in floating point."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, 99)
    y = np.sin(6.0 * x) + 0.1 * rng.normal(size=99)
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(0.1)), x, y, objective=ak.LeaveOneOut(), starts=1)
    residuals = np.sort(np.abs(y - fit.model(x, x, y, prior=ak.priors.ExcludeSelf())))
    band = ak.conformal(fit, x[:1], level=0.55)
    np.testing.assert_allclose(band.upper - band.centre, residuals[54], rtol=1e-10)
