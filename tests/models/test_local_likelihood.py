"""Local likelihood against Newton's method in NumPy and R's locfit: means, criteria, programs, and
where windows do not determine a fit."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from least_squares import left_out, local_polynomial
from local_likelihoods import FAMILIES, MEANS, locfit_cases, locfit_results, newton
from marks import slow
from refusals import assert_raises
from scipy.special import xlogy
from slopes import assert_slopes

import attnkernel as ak
from attnkernel.priors import ExcludeSelf

N, M = 61, 11


class OneOfFamilies(ak.families.Family):
    """The family of the given index: all of them are one program."""

    index: jax.Array

    def _call(self, name, *arguments):
        branches = [getattr(family, name) for family in FAMILIES.values()]
        return jax.lax.switch(self.index, branches, *arguments)

    def log_likelihood(self, y, eta):
        return self._call("log_likelihood", y, eta)

    def score_and_curvature(self, y, eta):
        return self._call("score_and_curvature", y, eta)

    def link(self, mean):
        return self._call("link", mean)

    def mean(self, eta):
        return self._call("mean", eta)

    def variance(self, mean):
        return self._call("variance", mean)

    def deviance(self, mean, y):
        return self._call("deviance", mean, y)

    def valid_mean(self, mean):
        return self._call("valid_mean", mean)


def labels_of(name, eta, rng):
    """Labels of a family whose linear predictor is η."""
    if name == "binomial":
        return rng.binomial(3, 1.0 / (1.0 + np.exp(-eta))) / 3.0
    return rng.poisson(np.exp(eta)) * 1.0 if name == "poisson" else rng.gamma(2.0, np.exp(eta) / 2)


def sample(name):
    """Inputs, labels, weights with 0 among them, new inputs."""
    rng = np.random.default_rng(len(name) + 2)
    x = rng.uniform(-2, 2, (N, 2))
    y = labels_of(name, 0.5 + np.sin(x[:, 0]), rng)
    weights = rng.integers(1, 4, N) * (rng.uniform(size=N) < 0.9)
    return x, y, weights.astype(float), rng.uniform(-1.8, 1.8, (M, 2))


DEVIANCES = {
    "binomial": lambda y, mean: 2 * (xlogy(y, y / mean) + xlogy(1 - y, (1 - y) / (1 - mean))),
    "poisson": lambda y, mean: 2 * (xlogy(y, y / mean) - y + mean),
    "gamma": lambda y, mean: 2 * (y / mean - 1 - np.log(y / mean)),
}


@eqx.filter_jit
def local_fit(order, index, x_new, x, y, weights):
    """The fit at the rows, each left out, and at new inputs."""
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=OneOfFamilies(index), order=order)
    at = jnp.concatenate([x, x_new])
    return model.local_fit(at, x, y, prior=ExcludeSelf(), weights=weights)


@pytest.mark.parametrize("order", [1, slow(2)])
def test_coefficients_maximise_the_local_likelihood(x64, order):
    """Two columns of labels; rows with zero weight are ignored, whatever their labels."""
    for index, name in enumerate(FAMILIES):
        x, y, weights, x_new = sample(name)
        labels = np.stack([y, y[::-1]], axis=1)
        spoilt = np.where(weights[:, None] > 0, labels, 1.0)
        found = jax.device_get(local_fit(order, np.array(index), x_new, x, spoilt, weights))
        assert not np.any(found.deficient | found.empty)
        visible = weights * np.r_[1 - np.eye(N), np.ones((M, N))]
        for column in range(2):
            expected = newton(name, np.r_[x, x_new], x, labels[:, column], 0.9, order, visible)
            ours, tolerances = found.coefficients[..., column], {"rtol": 1e-9, "atol": 1e-10}
            np.testing.assert_allclose(ours, expected, **tolerances, err_msg=name)


@pytest.mark.slow
def test_an_estimate_has_the_derivatives_of_means_in_labels(x64):
    """The logistic link is canonical: expected and observed information are equal."""
    x, y = np.linspace(0.0, 1.0, N), np.random.default_rng(2).integers(0, 2, N).astype(float)
    model = ak.LocalLikelihood(ak.Gaussian(0.2), family=ak.Binomial(), order=1)
    at, variances = np.array([0.11, 0.5, 0.93]), np.stack([np.ones(N), 1.0 + x], axis=1)

    @jax.jit
    def measure(y):
        of_rows = model.estimate(None, ak.models.Rows.read(x, y))
        elsewhere = model.estimate(at, ak.models.Rows.read(x, y))
        found = elsewhere.weights, elsewhere.variance_of(variances), of_rows.leverage
        known = jax.jacobian(lambda y: model(np.concatenate([at, x]), x, y))(y)
        left_out = y - model(x, x, y, prior=ExcludeSelf())
        return found, of_rows.loo_residuals - left_out, known

    found, difference, known = measure(y)
    L = np.asarray(known)[: len(at)]
    expected = L, L**2 @ variances, np.diagonal(known[len(at) :])
    for part, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(part, reference, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(difference, 0.0, atol=1e-10)


def test_order_0_is_the_local_mean_and_its_criterion_the_deviance(x64):
    @jax.jit
    def computed(samples):
        found = {}
        for name, (x, y, weights, x_new) in samples.items():
            model = ak.LocalLikelihood(ak.Gaussian(0.9), family=FAMILIES[name])
            eta = model.local_fit(x_new, x, y, weights=weights).coefficients[:, 0, 0]
            loss = ak.LeaveOneOut(weights=weights)(model, x, y)
            found[name] = model(x_new, x, y, weights=weights), eta, loss
        return found

    samples = {name: sample(name) for name in FAMILIES}
    for name, (mean, eta, loss) in jax.device_get(computed(samples)).items():
        x, y, weights, x_new = samples[name]
        expected = local_polynomial(x_new, x, 0.9, weights=weights) @ y
        np.testing.assert_allclose(mean, expected, rtol=1e-12)
        np.testing.assert_allclose(MEANS[name](eta), mean, rtol=1e-12)
        deviance = DEVIANCES[name](y, left_out(x, y, 0.9, weights=weights))
        np.testing.assert_allclose(loss, np.average(deviance, weights=weights), rtol=1e-12)


def test_float32_in_chunks_of_queries(x64, monkeypatch):
    """The number of queries is one of its own: what is compiled knows how many go at a time."""
    monkeypatch.setattr("attnkernel.local._windows.MAX_CHUNK_NUMBERS", 1000)
    x, y, _, x_new = sample("gamma")
    x_new = np.r_[x_new, 0.5 * x_new]
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=ak.Gamma(), order=1)
    found = model(*(part.astype(np.float32) for part in (x_new, x, y)))
    assert found.dtype == np.float32
    expected = np.exp(newton("gamma", x_new, x, y, 0.9, 1, 1.0)[:, 0])
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@eqx.filter_jit
def derivatives(order, index, log_lengthscale, x, y, x_new):
    """Slopes of a loss in its last four arguments, and the second derivative in the first."""

    def slopes(log_lengthscale):
        def loss(log_lengthscale, x, y, x_new):
            kernel = ak.Gaussian(jnp.exp(log_lengthscale))
            model = ak.LocalLikelihood(kernel, family=OneOfFamilies(index), order=order)
            return jnp.sum(jnp.sin(model(x_new, x, y)))

        return jax.grad(loss, (0, 1, 2, 3))(log_lengthscale, x, y, x_new)

    found, along = jax.jvp(slopes, (log_lengthscale,), (jnp.ones_like(log_lengthscale),))
    return found, along[0]


@pytest.mark.slow
def test_derivatives_equal_finite_differences(x64):
    """First in the lengthscale, inputs, labels and queries; second in the lengthscale."""
    for index, name in enumerate(FAMILIES):
        x, y, _, x_new = sample(name)
        at = (np.float64(0.1), x, 0.1 + 0.8 * y, x_new)

        def loss(log_lengthscale, x, y, x_new, name=name):
            beta = newton(name, x_new, x, y, np.exp(log_lengthscale), 1, 1.0)
            return np.sum(np.sin(MEANS[name](beta[:, 0])))

        slopes, curvature = jax.device_get(derivatives(1, np.array(index), *at))
        assert_slopes(slopes, loss, at, rtol=1e-6, atol=1e-8)
        low, middle, high = (loss(0.1 + step, *at[1:]) for step in (-1e-3, 0, 1e-3))
        second = (low - 2 * middle + high) / 1e-6
        np.testing.assert_allclose(curvature, second, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------- hard windows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "least", "order"),
    [("float32", 1e-5, 1), slow("float64", 1e-13, 1), slow("float64", 1e-13, 2)],
)
def test_separated_labels_have_a_bounded_fit_and_finite_derivatives(x64, dtype, least, order):
    """Labels 0 left of 1 and 1 right of it, within a hole of the design: the maximum is at
    infinity in windows of both, and where all labels are equal. Left-out rows too."""
    x = np.concatenate([np.linspace(0.0, 0.8, 9), np.linspace(1.2, 2.0, 9)]).astype(dtype)
    y = (x > 1).astype(dtype)
    x_new = np.array([0.0, 0.9, 1.1, 2.0], dtype)

    @jax.jit
    def computed(lengthscale, y):
        def mean_and_loss(lengthscale, y):
            kernel = ak.Epanechnikov(lengthscale)
            model = ak.LocalLikelihood(kernel, family=ak.Binomial(), order=order)
            mean = model(np.r_[x, x_new], x, y, prior=ExcludeSelf())
            loss = jnp.mean(model.deviance(mean[: len(x)], y))
            return jnp.append(mean[len(x) :], loss), mean[len(x) :]

        return jax.jacrev(mean_and_loss, (0, 1), has_aux=True)(lengthscale, y)

    slopes, mean = jax.device_get(computed(np.asarray(0.7, dtype), y))
    assert mean.dtype == dtype
    assert 0.0 <= mean[0] < least
    assert mean[1] < 0.5 < mean[2]
    assert 1.0 - least < mean[3] <= 1.0
    assert all(np.all(np.isfinite(part)) for part in slopes)


@pytest.mark.slow
def test_windows_that_do_not_determine_a_fit(x64):
    """Counts that are all 0 in reach predict 0; two rows at one input their mean, with a flag and
    a warning; no row in reach the label of the nearest one."""
    x = np.r_[np.linspace(0.0, 4.0, 41), 8.0, 8.0, 9.0]
    y = np.r_[np.where(x[:41] > 2, 5.0, 0.0), 2.0, 4.0, 1.0]
    at = np.array([1.0, 3.0, 8.0, 12.0])
    options = {"family": ak.Poisson(), "order": 1, "on_empty": "nearest"}
    model = ak.LocalLikelihood(ak.Epanechnikov(0.5), **options)
    with pytest.warns(ak.local.ExtrapolationWarning, match="local linear, Poisson"):
        mean = model(at, x, y)
    np.testing.assert_allclose(mean, [0.0, 5.0, 3.0, 1.0], rtol=1e-12, atol=1e-100)

    @jax.jit
    def fit_and_loss(x, y):
        return model.local_fit(at, x, y), ak.LeaveOneOut()(model, x[:, None], y)

    fit, loss = jax.device_get(fit_and_loss(x, y))
    assert np.isfinite(loss)
    assert (fit.deficient[2], fit.empty.tolist()) == (True, [False, False, False, True])
    least = np.log(np.asarray(ak.Poisson().valid_mean(jnp.asarray(0.0))))
    np.testing.assert_allclose(fit.coefficients[0, :, 0], [least, 0.0], rtol=1e-14)
    np.testing.assert_allclose(fit.coefficients[2, 0, 0], np.log(3.0), rtol=1e-12)


def test_empty_windows_of_order_0_follow_the_policy(x64):
    x, y = np.linspace(0.0, 1.0, 11), np.linspace(1.0, 2.0, 11)

    def model(on_empty):
        return ak.LocalLikelihood(ak.kernels.Boxcar(0.25), family=ak.Gamma(), on_empty=on_empty)

    policies = ("nan", "nearest", "mean")
    at = np.array([0.5, 7.0])
    found = jax.jit(lambda: [model(on_empty)(at, x, y) for on_empty in policies])()
    np.testing.assert_allclose(found, [[1.5, np.nan], [1.5, 2.0], [1.5, 1.5]], rtol=1e-12)
    with pytest.raises(Exception, match="no label within reach"):
        jax.block_until_ready(model("raise")(at, x, y))


@pytest.mark.slow
def test_a_fit_minimises_the_left_out_deviance(x64):
    """Results, of rows that are padded, equal those unpadded."""
    n, rng = 53, np.random.default_rng(53)
    x, x_new = rng.uniform(-2, 2, n), rng.uniform(-2, 2, 13)
    y = rng.poisson(np.exp(1.0 + np.sin(3 * x))).astype(float)
    fit = ak.fit(ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Poisson(), order=1), x, y)
    predicted = fit(x_new)
    fitted = np.asarray(fit.model.kernel.lengthscale)

    @jax.jit
    @jax.vmap
    def unpadded(lengthscale):
        model = ak.LocalLikelihood(ak.Gaussian(lengthscale), family=ak.Poisson(), order=1)
        return model(np.r_[x, x_new], x, y, prior=ExcludeSelf())

    mean = np.asarray(unpadded(np.r_[fitted, np.geomspace(0.1, 4.0, 30)]))
    of_others, new = mean[:, :n], mean[0, n:]
    deviance = 2 * (xlogy(y, y / of_others) - y + of_others)
    loss, *losses = np.mean(deviance, axis=1)
    assert fit.loss <= min(losses) * (1 + 1e-9)
    assert min(losses) < min(losses[0], losses[-1])
    np.testing.assert_allclose(fit.loss, loss, rtol=1e-10)
    np.testing.assert_allclose(predicted, new, rtol=1e-10)


def test_labels_that_a_family_does_not_have_are_refused(x64):
    words = r"from 0 to 1 for the family Binomial; row 3 .* has 1.5"
    x, y = np.linspace(0.0, 1.0, 9), np.where(np.arange(9) == 3, 1.5, np.linspace(0.2, 0.8, 9))
    model = ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Binomial())
    assert_raises(words, ak.fit, model, x, y)
    assert_raises(words, model, x, x, y)
    weights = (np.arange(9) != 3).astype(float)  # a row of weight 0 is not there
    assert np.all(np.isfinite(np.asarray(model(x, x, y, weights=weights))))


def test_a_family_is_an_object(as_users_run_it):
    rows, model = np.ones((4, 1)), functools.partial(ak.LocalLikelihood, ak.Gaussian(0.5))
    assert_raises("family must be a Family", model, family="binomial")
    binomial = model(family=ak.Binomial())
    assert_raises("needs the hat matrix", ak.AICc(), binomial, *jax.device_put((rows, rows[:, 0])))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "order"),
    [("binomial", 0), ("binomial", 1), ("poisson", 1), ("poisson", 2), ("gamma", 1), ("gamma", 2)],
)
def test_means_and_left_out_means_equal_those_of_locfit(x64, name, order):
    """locfit stops its Newton steps at a relative 1e-6. Order 0 needs none."""
    x, y, weights, kernel = locfit_cases()[name]
    expected = locfit_results(name, order)
    model = ak.LocalLikelihood(kernel, family=FAMILIES[name], order=order)

    @jax.jit
    def computed(x, y, weights):
        of_others = model(x, x, y, prior=ExcludeSelf(), weights=weights)
        return model(x, x, y, weights=weights), of_others

    found = np.asarray(computed(x, y, weights))[:, expected["row"]]
    rtol = 2e-6 if order else 1e-13
    np.testing.assert_allclose(found.T, expected[["fit", "left_out"]], rtol=rtol)
