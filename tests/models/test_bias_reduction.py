"""Several passes: what the smooth leaves over is smoothed again, by the plain sums of matrices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
import attnkernel.plot
from attnkernel.fit._noise import RowVariance
from attnkernel.priors import HeldOut, LeaveOneOut
from attnkernel.sklearn import KernelClassifier, KernelRegressor

N, K = 24, 5


@pytest.fixture
def data(x64):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (N, 2))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 3.0, rng.uniform(-2, 2, (K, 2))


def model_of(order=0, passes=4, kernel=None, **options):
    kernel = ak.Gaussian(np.array([0.9, 1.4])) if kernel is None else kernel
    return ak.KernelRegression(kernel, order=order, passes=passes, **options)


def weights_of(order, q, x, lengthscale=(0.9, 1.4), counts=None):
    """Weights of one pass, by least squares at each query."""
    rows = []
    for point in q:
        away = (x - point) / lengthscale
        w = np.exp(-0.5 * np.sum(away**2, axis=1)) * (1.0 if counts is None else counts)
        terms = [np.ones(len(x))]
        if order:
            terms += list(away.T)
        if order == 2:
            terms += [away[:, 0] ** 2, away[:, 0] * away[:, 1], away[:, 1] ** 2]
        design, root = np.stack(terms, axis=1), np.sqrt(w)[:, None]
        rows.append((np.linalg.pinv(root * design) * root.T)[0])
    return np.array(rows)


def by_matrices(order, passes, q, x, y, **options):
    """The fit as the sum of powers, and its weights."""
    left = np.eye(len(x)) - weights_of(order, x, x, **options)
    powers = sum(np.linalg.matrix_power(left, i) for i in range(passes))
    weights = weights_of(order, q, x, **options) @ powers
    return weights @ y, weights


@pytest.mark.parametrize(("order", "passes"), [(0, 1), (0, 2), (0, 9), (1, 4), (2, 3)])
def test_passes_sum_powers_of_what_is_left_over(data, order, passes):
    x, y, q = data
    model = model_of(order, passes)
    expected, weights = by_matrices(order, passes, q, x, y)
    np.testing.assert_allclose(model(q, x, y), expected, rtol=1e-9)
    variance = np.linspace(0.5, 2, N)
    np.testing.assert_allclose(model.noise(q, x, variance), weights**2 @ variance, rtol=1e-8)
    fitted, hat = model.smooth(x, y)
    expected, weights = by_matrices(order, passes, x, x, y)
    np.testing.assert_allclose(fitted, expected, rtol=1e-9)
    np.testing.assert_allclose(hat, np.diag(weights), rtol=1e-8)


def test_several_labels_are_each_its_own(data):
    x, y, q = data
    many = np.stack([y, y**2, -y] * 8, axis=1)  # more than a polynomial sums by moments
    for order in (0, 1):
        found = model_of(order)(q, x, many)
        each = [model_of(order)(q, x, labels) for labels in many.T]
        np.testing.assert_allclose(found, np.stack(each, axis=1), rtol=1e-9)


MIXED = ak.Gaussian(0.8).on(0) * ak.AitchisonAitken(0.2, 3).on(1)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (MIXED, {"order": 1}),
        (ak.NearestNeighbours(ak.Tricube(1.0), fraction=0.6), {}),
        (ak.Gaussian(0.8), {"rule": ak.Softmax(sink_mass=2.0)}),
        (ak.Gaussian(0.8), {"rule": ak.Softmax(sink_mass=2.0), "order": 1}),
        (ak.Gaussian(0.8), {"rule": ak.Entmax(1.5)}),
        (ak.Gaussian(0.8), {"method": ak.Blockwise()}),
    ],
)
def test_passes_of_any_kernel_rule_and_method(data, kernel, options):
    x, y, q = data
    if kernel is MIXED:
        x, q = (np.column_stack([part[:, 0], np.arange(len(part)) % 3]) for part in (x, q))
    once, eye = ak.KernelRegression(kernel, **options), np.eye(N)
    left, powers = eye - once(x, x, eye), eye
    for _ in range(3):
        powers = eye + left @ powers
    found = ak.KernelRegression(kernel, passes=4, **options)(q, x, y)
    np.testing.assert_allclose(found, once(q, x, eye) @ powers @ y, rtol=1e-8)


@pytest.mark.parametrize("order", [0, 1])
def test_a_row_of_weight_two_counts_twice_and_of_none_not_at_all(data, order):
    x, y, q = data
    counts = np.array([2.0, 0.0, 1.0] * (N // 3))
    rows = np.repeat(np.arange(N), counts.astype(int))
    model, given = model_of(order), {"weights": counts}
    spoilt = np.where(counts > 0, y, 1e300)
    expected = model(q, x[rows], y[rows])
    np.testing.assert_allclose(model(q, x, spoilt, **given), expected, rtol=1e-9)
    np.testing.assert_allclose(
        by_matrices(order, 4, q, x, y, counts=counts)[0], expected, rtol=1e-9
    )
    fitted, hat = model.smooth(x, y, **given)
    repeated, shares = model.smooth(x[rows], y[rows])
    np.testing.assert_allclose(fitted[rows], repeated, rtol=1e-9)
    sums = np.zeros(N)
    np.add.at(sums, rows, shares)  # copies share what one row of their weight has
    np.testing.assert_allclose(hat, sums, atol=1e-10)
    assert hat[1] == 0


def test_a_row_out_of_reach_of_all_but_itself_spoils_nothing(x64):
    x, y = np.array([0.0, 0.1, 0.3, 9.0, 9.1]), np.array([1.0, 2.0, 4.0, 7.0, 5.0])
    model = model_of(kernel=ak.Epanechnikov(0.5))
    weights = np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    found, slope = jax.value_and_grad(lambda y: model(x[:3], x, y, weights=weights).sum())(y)
    np.testing.assert_allclose(found, model(x[:3], x[:3], y[:3]).sum(), rtol=1e-12)
    assert np.isfinite(slope).all()
    assert np.all(slope[3:] == 0)


@pytest.mark.parametrize("order", [0, 1])
def test_what_a_prior_hides_is_in_no_pass(data, order):
    x, y, q = data
    model = model_of(order)
    left_out = model(x, x, y, prior=LeaveOneOut())
    for i in range(0, N, 5):
        others = np.arange(N) != i
        alone = model(x[i : i + 1], x[others], y[others])
        np.testing.assert_allclose(left_out[i], alone[0], rtol=1e-8)
    hidden = np.arange(N) < 4
    found = model(q, x, np.where(hidden, 1e3, y), prior=HeldOut(hidden))
    np.testing.assert_allclose(found, model(q, x[4:], y[4:]), rtol=1e-8)
    counts = np.linspace(0.5, 2, N)
    found = model(q, x, np.where(hidden, 1e3, y), prior=HeldOut(hidden), weights=counts)
    np.testing.assert_allclose(found, model(q, x[4:], y[4:], weights=counts[4:]), rtol=1e-8)


def test_leave_one_out_and_folds_are_those_of_fits_without_the_rows(data):
    x, y, _ = data
    model = model_of(1, 3)
    of_one = [model(x[i : i + 1], *(np.delete(part, i, 0) for part in (x, y)))[0] for i in range(N)]
    expected = np.mean((np.array(of_one) - y) ** 2)
    np.testing.assert_allclose(
        ak.LeaveOneOut()(model, jnp.asarray(x), jnp.asarray(y)), expected, rtol=1e-8
    )
    np.testing.assert_allclose(
        ak.KFold(N)(model, jnp.asarray(x), jnp.asarray(y)), expected, rtol=1e-8
    )


@pytest.mark.parametrize("objective", [ak.AICc(), ak.GCV(), ak.LeaveOneOut()])
def test_slopes_of_criteria_are_those_of_differences(data, objective):
    x, y, _ = data

    def loss(log):
        return objective(model_of(1, 3, ak.Gaussian(jnp.exp(log))), jnp.asarray(x), jnp.asarray(y))

    step, at = 1e-5, jnp.array(0.2)
    difference = (loss(at + step) - loss(at - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(loss)(at), difference, rtol=1e-6)


def test_a_wave_keeps_what_no_pass_left_over(x64):
    """A Gaussian smooths waves of frequency w by g = exp(-(w h)² / 2): 1 - (1 - g)^k is kept."""
    x, inside = np.linspace(-3, 3, 1201), np.array([0.1, 0.4])
    for passes in (1, 2, 3):
        for lengthscale in (0.05, 0.2):
            found = model_of(0, passes, ak.Gaussian(lengthscale))(inside, x, np.sin(6 * x))
            kept = 1 - (1 - np.exp(-18 * lengthscale**2)) ** passes
            np.testing.assert_allclose(found, kept * np.sin(6 * inside), rtol=1e-9)


def test_many_passes_of_a_positive_definite_kernel_go_to_the_labels(x64):
    x = np.linspace(0, 1, 10)
    y = np.sin(6 * x)
    errors = [
        np.abs(model_of(0, passes, ak.Laplace(0.3))(x, x, y) - y).max()
        for passes in (1, 8, 128, 1024)
    ]
    assert np.all(np.diff(errors) < 0)
    assert errors[-1] < 1e-6


def test_a_fit_reports_its_passes_and_can_be_chosen(data):
    x, y, q = data
    y = y + 0.2 * np.random.default_rng(1).standard_normal(N)
    models = [ak.KernelRegression(ak.Gaussian(1.0), passes=k) for k in (1, 2, 4, 8)]
    choice = ak.choose(models, x, y, objective=ak.AICc(), starts=1)
    assert "order 0, 4 passes" in str(choice)
    scales = [float(fit.model.kernel.lengthscale) for fit in choice.fits]
    assert np.all(np.diff(scales) > 0)  # more passes, longer lengthscales
    fit = choice.fits[2]
    report = ak.summarise(fit)
    assert "local constant in 4 passes" in str(report)
    fitted, hat = fit.model.smooth(x, y)
    np.testing.assert_allclose(report.trace, hat.sum())
    np.testing.assert_allclose(report.residual_sd, np.sqrt(np.mean((y - fitted) ** 2)))
    band = ak.bands(fit, q, corrected=False, noise="constant")
    freedom = ak.degrees_of_freedom(fit)
    of_noise = np.sum((y - fitted) ** 2) / freedom.residual
    weights = by_matrices(0, 4, q, x, y, lengthscale=(scales[2],) * 2)[1]
    np.testing.assert_allclose(
        band.standard_error, np.sqrt(of_noise * np.sum(weights**2, axis=1)), rtol=1e-6
    )
    np.testing.assert_allclose(ak.effective_count(fit, q), 1 / np.sum(weights**2, axis=1))


def test_what_several_passes_cannot_is_said(data):
    x, y, q = data
    fit = ak.fit(model_of(0, 2), x, y, objective=ak.AICc(), starts=1)
    with pytest.raises(ValueError, match="corrected=False"):
        ak.bands(fit, q)
    with pytest.raises(ValueError, match="2 passes"):
        ak.quantiles(fit, q, 0.5)
    with pytest.raises(ValueError, match="variance must be of one pass"):
        ak.MeanVarianceRegression(model_of(), model_of())
    for passes in (0, -1, True):
        with pytest.raises(ValueError, match="passes must be a whole number from 1"):
            model_of(passes=passes)
    for labels in (y[:1], y[:-1]):
        with pytest.raises(ValueError, match="same number of rows; got 24 inputs and"):
            model_of()(q, x, labels)


@pytest.mark.parametrize("order", [0, 1])
def test_out_of_reach_nothing_is_known(x64, order):
    x = np.linspace(0, 1, 40)
    model = model_of(order, 2, ak.Epanechnikov(0.5))
    away = np.array([0.5, 9.0])
    assert np.isnan(model(away, x, x)[1])
    assert model.noise(away, x, np.ones(40))[1] == 0
    near = x < 0.3
    spoilt = np.where(near, np.sin(9 * x), 1e8)
    narrow = model_of(order, 3, ak.Epanechnikov(0.04))
    fitted, hat = narrow.smooth(x, spoilt, weights=near.astype(float))
    expected, shares = narrow.smooth(x[near], spoilt[near])
    np.testing.assert_allclose(fitted[near], expected, atol=1e-12)
    np.testing.assert_allclose(
        hat, np.concatenate([shares, np.zeros(40 - len(shares))]), atol=1e-12
    )


@pytest.mark.parametrize("order", [0, 1])
def test_weights_that_are_not_kept_give_the_same(data, order, monkeypatch):
    x, y, q = data
    model, many = model_of(order, 5), np.stack([y, y**2] * 8, axis=1)
    labels = np.float32(y)  # of another precision than x
    kept = model(q, x, y), model(q, x, many), model(q, x, labels)
    monkeypatch.setattr("attnkernel.models._regression._DENSE", 0)
    jax.clear_caches()
    summed = model(q, x, y), model(q, x, many), model(q, x, labels)
    jax.clear_caches()
    for one, other, close in zip(kept, summed, (1e-12, 1e-12, 1e-6), strict=True):
        np.testing.assert_allclose(one, other, rtol=close)


def test_residuals_of_rows_are_left_out(data):
    x, y, _ = data
    fit = ak.fit(model_of(0, 2), x, y, objective=ak.AICc(), starts=1)
    found = RowVariance.of(fit, "rows").residuals(fit.y)
    np.testing.assert_allclose(found, y - fit.model(x, x, y, prior=LeaveOneOut()), rtol=1e-12)


def test_derivatives_of_leaving_out_keep_no_matrix_for_each_query(x64):
    x = jnp.linspace(0, 1, 200)

    def loss(log):
        model = model_of(0, 4, ak.Gaussian(jnp.exp(log)))
        return jnp.sum(model(x, x, x, prior=LeaveOneOut()) ** 2)

    needed = jax.jit(jax.grad(loss)).lower(jnp.array(-2.0)).compile().memory_analysis()
    assert needed.temp_size_in_bytes < 30 * 200 * 200 * 8  # and not 200 of them


def test_the_estimator_takes_passes(data):
    x, y, q = data
    estimator = KernelRegressor(passes=3, objective="aicc", starts=1).fit(x, y)
    mean, sd = estimator.predict(q, return_std=True)
    model = estimator.model_
    assert (model.order, model.passes) == (0, 3)
    np.testing.assert_allclose(mean, model(q, x, y), rtol=1e-10)
    left_out = y - model(x, x, y, prior=LeaveOneOut())
    np.testing.assert_allclose(sd, np.sqrt(model.noise(q, x, left_out**2)), rtol=1e-8)
    classes = KernelClassifier(passes=3, lengthscale=0.7).fit(x, y > 3)
    found = classes.predict_proba(q)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert found.min() >= 0


def test_plots_take_passes(data):
    x, y, _ = data
    fit = ak.fit(model_of(0, 3), x, y, objective=ak.AICc(), starts=1)
    ax = ak.plot.partial(fit, 0)
    (line,) = (line for line in ax.lines if line.get_label() == "fit")
    at = np.column_stack([line.get_xdata(), np.full(len(line.get_xdata()), np.median(x[:, 1]))])
    np.testing.assert_allclose(line.get_ydata(), fit(at), rtol=1e-6)


def test_jitted_vmapped_and_saved(data, tmp_path):
    x, y, q = data
    model = model_of(1, 3)
    expected = model(q, x, y)
    np.testing.assert_allclose(eqx.filter_jit(model)(q, x, y), expected, rtol=1e-12)
    many = jax.vmap(lambda y: model(q, x, y))(jnp.stack([y, 2 * y]))
    np.testing.assert_allclose(many, np.stack([expected, 2 * expected]), rtol=1e-10)
    ak.save(tmp_path / "model.ak", model)
    np.testing.assert_array_equal(ak.load(tmp_path / "model.ak")(q, x, y), expected)


def test_far_from_zero_in_single_precision():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 60).astype("float32")
    y = np.sin(6 * x)
    model = model_of(1, 4, ak.Gaussian(0.2))
    near, far = model(x, x, y), model(x + 1000, x + 1000, y + 1000) - 1000
    np.testing.assert_allclose(far, near, atol=2e-3)
