"""Local likelihood against Newton's method in NumPy, and removal of rows."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

import attnkernel as ak
from attnkernel.priors import ExcludeSelf

FAMILIES = {"binomial": ak.Binomial(), "poisson": ak.Poisson(), "gamma": ak.Gamma()}
N, M = 61, 11


def labels_of(name, eta, rng):
    """Labels of a family whose linear predictor is η."""
    if name == "binomial":
        return rng.binomial(3, 1.0 / (1.0 + np.exp(-eta))) / 3.0
    return rng.poisson(np.exp(eta)) * 1.0 if name == "poisson" else rng.gamma(2.0, np.exp(eta) / 2)


def sample(name, dim=2, n=N, m=M):
    rng = np.random.default_rng(len(name) + dim)
    x = rng.uniform(-2, 2, (n, dim))
    y = labels_of(name, 0.5 + np.sin(x[:, 0]), rng)
    weights = rng.integers(1, 4, n) * (rng.uniform(size=n) < 0.9)
    return x, y, weights.astype(float), rng.uniform(-1.8, 1.8, (m, dim))


# ---------------------------------------------------------------------------- the formula


def design(differences, order):
    """The monomials of k - q up to a degree, along a new last axis."""
    terms = [np.ones(differences.shape[:-1])]
    for degree in range(1, order + 1):
        for columns in itertools.combinations_with_replacement(
            range(differences.shape[-1]), degree
        ):
            terms.append(np.prod(differences[..., columns], axis=-1))
    return np.stack(terms, axis=-1)


# of y and η: the score, its negative derivative; of η: the mean
FORMULAS = {
    "binomial": (
        lambda y, eta: (y - 1 / (1 + np.exp(-eta)), 1 / (2 + 2 * np.cosh(eta))),
        lambda eta: 1 / (1 + np.exp(-eta)),
        lambda mean: np.log(mean / (1 - mean)),
    ),
    "poisson": (lambda y, eta: (y - np.exp(eta), np.exp(eta)), np.exp, np.log),
    "gamma": (lambda y, eta: (y * np.exp(-eta) - 1, y * np.exp(-eta)), np.exp, np.log),
}


def newton(name, x_new, x, y, lengthscale, order, weights):
    """Coefficients at new inputs, (queries, terms); `weights` broadcast against (queries, keys)."""
    derivatives, _, link = FORMULAS[name]
    weights = np.broadcast_to(weights, (len(x_new), len(x)))
    found = []
    for point, w in zip(x_new, weights, strict=True):
        w = w * np.exp(-0.5 * np.sum(((x - point) / lengthscale) ** 2, axis=1))
        terms = design(x - point, order)
        beta = np.zeros(terms.shape[1])
        beta[0] = link(np.sum(w * y) / np.sum(w))
        for _ in range(60):
            score, curvature = derivatives(y, terms @ beta)
            step = np.linalg.solve((terms.T * (w * curvature)) @ terms, terms.T @ (w * score))
            beta = beta + min(1.0, 1.0 / np.max(np.abs(step))) * step
        found.append(beta)
    return np.array(found)


@pytest.mark.parametrize(
    ("name", "order"),
    [("binomial", 1), ("poisson", 2), slow("binomial", 2), slow("poisson", 1), ("gamma", 1)],
)
def test_coefficients_maximise_the_local_likelihood(x64, name, order):
    """At new inputs, at rows with each left out, and with weights of rows, 0 among them."""
    x, y, weights, x_new = sample(name)
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=FAMILIES[name], order=order)

    @jax.jit
    def computed(x_new, x, y, weights):
        at_new = model.local_fit(x_new, x, y, weights=weights)
        left_out = model.local_fit(x, x, y, prior=ExcludeSelf(), weights=weights)
        loss = ak.LeaveOneOut(weights=weights)(model, x, y)
        return at_new, left_out, model(x_new, x, y, weights=weights), loss

    at_new, left_out, mean, loss = computed(x_new, x, y, weights)
    expected = newton(name, x_new, x, y, 0.9, order, weights)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-10)
    close(at_new.coefficients[..., 0], expected)
    close(mean, FORMULAS[name][1](expected[:, 0]))
    others = weights * (1 - np.eye(N))
    removed = newton(name, x, x, y, 0.9, order, others)
    close(left_out.coefficients[..., 0], removed)
    deviance = FAMILIES[name].deviance(
        jnp.asarray(FORMULAS[name][1](removed[:, 0])), jnp.asarray(y)
    )
    close(loss, np.average(deviance, weights=weights))
    assert not np.any(at_new.deficient | at_new.empty)


# ---------------------------------------------------------------------------- properties


@pytest.mark.parametrize("name", FAMILIES)
def test_order_0_is_the_local_mean(x64, name):
    x, y, weights, x_new = sample(name)
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=FAMILIES[name])
    mean = ak.KernelRegression(ak.Gaussian(0.9))(x_new, x, y, weights=weights)
    np.testing.assert_allclose(model(x_new, x, y, weights=weights), mean, rtol=1e-14)
    eta = model.local_fit(x_new, x, y, weights=weights).coefficients[:, 0, 0]
    np.testing.assert_allclose(FAMILIES[name].mean(eta), mean, rtol=1e-12)


def test_a_weight_of_k_is_k_equal_rows_and_of_0_none(x64):
    x, y, weights, x_new = sample("binomial")
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=ak.Binomial(), order=1)
    found = model(x_new, x, y, weights=weights)
    repeated = np.repeat(np.arange(N), weights.astype(int))
    np.testing.assert_allclose(found, model(x_new, x[repeated], y[repeated]), rtol=1e-10)
    others = np.where(weights > 0, y, 1.0 - y)
    np.testing.assert_array_equal(found, model(x_new, x, others, weights=weights))
    kept = weights > 0
    np.testing.assert_allclose(found, model(x_new, x[kept], y[kept], weights=weights[kept]))


def test_labels_and_queries_are_fitted_one_by_one(x64):
    x, y, _, x_new = sample("poisson")
    both = np.stack([y, y[::-1] + 1.0], axis=1)
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=ak.Poisson(), order=1)
    found = model(x_new, x, both)
    assert found.shape == (M, 2)
    for column in range(2):
        np.testing.assert_allclose(found[:, column], model(x_new, x, both[:, column]), rtol=1e-12)
    assert model(x_new[:0], x, both).shape == (0, 2)


def test_chunks_of_queries_do_not_change_the_fit(x64, monkeypatch):
    x, y, _, x_new = sample("gamma")
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=ak.Gamma(), order=1)
    whole = model(x_new, x, y)
    monkeypatch.setattr("attnkernel.attention._windows.MAX_CHUNK_NUMBERS", 1000)
    jax.clear_caches()
    np.testing.assert_allclose(model(x_new, x, y), whole, rtol=1e-13)
    jax.clear_caches()


@pytest.mark.parametrize(("name", "order"), [("binomial", 1), ("gamma", 1), slow("poisson", 2)])
def test_derivatives_equal_finite_differences(x64, name, order):
    """First in the lengthscale, inputs, labels and queries; second in the lengthscale."""
    x, y, _, x_new = sample(name)
    y = 0.1 + 0.8 * y

    @jax.jit
    def computed(log_lengthscale, x, y, x_new):
        def loss(log_lengthscale, x, y, x_new):
            kernel = ak.Gaussian(jnp.exp(log_lengthscale))
            model = ak.LocalLikelihood(kernel, family=FAMILIES[name], order=order)
            return jnp.sum(jnp.sin(model(x_new, x, y)))

        arguments = log_lengthscale, x, y, x_new
        return jax.grad(loss, (0, 1, 2, 3))(*arguments), jax.hessian(loss)(*arguments)

    def expected_loss(log_lengthscale, x, y, x_new):
        beta = newton(name, x_new, x, y, np.exp(log_lengthscale), order, 1.0)
        return np.sum(np.sin(FORMULAS[name][1](beta[:, 0])))

    at = (np.float64(0.1), x, y, x_new)
    slopes, curvature = computed(*map(jnp.asarray, at))
    rng = np.random.default_rng(1)
    for argument, slope in enumerate(slopes):
        direction = rng.normal(size=np.shape(at[argument]))

        def moved(step, argument=argument, direction=direction):
            changed = list(at)
            changed[argument] = at[argument] + step * direction
            return expected_loss(*changed)

        expected = (moved(1e-5) - moved(-1e-5)) / 2e-5
        np.testing.assert_allclose(np.sum(slope * direction), expected, rtol=1e-6, atol=1e-8)
    low, middle, high = (expected_loss(0.1 + step, x, y, x_new) for step in (-1e-3, 0, 1e-3))
    np.testing.assert_allclose(curvature, (low - 2 * middle + high) / 1e-6, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------- hard windows


def test_float32_is_near_float64(x64):
    x, y, _, x_new = sample("binomial")
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=ak.Binomial(), order=1)
    single = model(*(part.astype(np.float32) for part in (x_new, x, y)))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, model(x_new, x, y), atol=1e-5)
