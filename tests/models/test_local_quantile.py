"""Local quantiles against linear programs (HiGHS), R's quantreg, and quantiles of order 0."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from estimates import local_fit
from known_fits import known_fit
from least_squares import monomials
from scipy.optimize import linprog

import attnkernel as ak
from attnkernel.models import Rows
from attnkernel.models._smoother import with_weights
from attnkernel.priors import ExcludeSelf

N, M = 41, 7
LEVELS = np.array([0.1, 0.5, 0.8])


def sample(dim=1):
    rng = np.random.default_rng(dim)
    x = rng.uniform(-1, 1, (N, dim))
    y = np.sin(3 * x[:, 0]) + 0.3 * rng.standard_t(2, N)
    weights = rng.integers(1, 4, N) * (rng.uniform(size=N) < 0.9)
    return x, y, weights * 1.0, rng.uniform(-0.9, 0.9, (M, dim))


def gaussian_weights(x_new, x, lengthscale):
    return np.exp(-0.5 * np.sum(((x - x_new[:, None]) / lengthscale) ** 2, axis=2))


def check_loss(residuals, weights, level):
    return np.sum(weights * np.where(residuals < 0, level - 1, level) * residuals)


def highs(terms, y, weights, level):
    """Coefficients of the least check loss by the simplex method, to 1e-10, and this loss."""
    terms, y, weights = (part[weights > 1e-12] for part in (terms, y, weights))
    n, count = terms.shape
    scale = np.max(weights)
    cost = np.r_[np.zeros(2 * count), level * weights, (1 - level) * weights] / scale
    equal = np.hstack([terms, -terms, np.eye(n), -np.eye(n)])
    options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(cost, A_eq=equal, b_eq=y, method="highs", options=options)
    return found.x[:count] - found.x[count : 2 * count], found.fun * scale


def at_levels(model, levels, *data, prior=None):
    """The local fits at several levels."""
    return jax.vmap(lambda level: model.fitted(*data, prior, level)[1])(levels)


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "order"), [(1, 1), (1, 2), (2, 1)])
def test_coefficients_are_those_of_the_linear_program(x64, dim, order):
    """At the rows, each left out, and at new inputs, at three levels, with weights of rows. The
    loss of the criterion is that of the left-out quantiles."""
    x, y, weights, x_new = sample(dim)
    at = np.r_[x, x_new]
    model = ak.LocalQuantile(ak.Gaussian(0.4), level=LEVELS[0], order=order)

    @jax.jit
    def computed(at, x, y, weights):
        prior = with_weights(ExcludeSelf(), Rows(x, y[:, None], weights))
        fits = at_levels(model, LEVELS, at, x, y[:, None], prior=prior)
        return fits, ak.LeaveOneOut(weights=weights)(model, x, y)

    fits, loss = jax.device_get(computed(at, x, y, weights))
    assert np.max(fits.gap) < 4e-12
    visible = weights * np.r_[1 - np.eye(N), np.ones((M, N))] * gaussian_weights(at, x, 0.4)
    terms = monomials(x - at[:, None], order)
    for level, coefficients in zip(LEVELS, fits.coefficients[..., 0], strict=True):
        for w, basis, beta in zip(visible, terms, coefficients, strict=True):
            expected, least = highs(basis, y, w, level)
            assert check_loss(y - basis @ beta, w, level) <= least * (1 + 1e-12)
            np.testing.assert_allclose(beta, expected, rtol=1e-9, atol=1e-9)
    left_out = fits.coefficients[0, :N, 0, 0]
    np.testing.assert_allclose(loss, check_loss(y - left_out, weights, 0.1) / weights.sum())


@pytest.mark.slow
def test_local_linear_quantiles_of_quantreg(x64):
    """quantreg's simplex method ends at a vertex too."""
    data = ak.data.load("mcycle")
    # levels, inputs, (level, x, fit, slope)
    rows = pd.read_csv(Path(__file__).with_name("lprq.csv")).to_numpy().reshape(3, 25, 4)
    x, y = (np.asarray(part, float).reshape(-1, 1) for part in (data.x, data.y))
    model, levels, at = ak.LocalQuantile(ak.Gaussian(2.5)), rows[:, 0, 0], rows[0, :, 1:2]
    np.testing.assert_array_equal(rows[:, :, 1], np.tile(at.T, (3, 1)))
    fits = jax.jit(functools.partial(at_levels, model))(levels, at, x, y)
    found = np.asarray(fits.coefficients)[..., 0]
    np.testing.assert_allclose(found, rows[:, :, 2:], rtol=0, atol=1e-8)


@pytest.mark.slow
def test_many_ties_reach_the_least_loss(x64):
    """Eleven inputs, integer labels, a kernel of equal weights: many polynomials are minima."""
    rng = np.random.default_rng(0)
    x, at = np.round(rng.uniform(-1, 1, (200, 1)) * 5) / 5, np.linspace(-0.7, 0.7, 5)[:, None]
    y = np.round(2 * x[:, 0] + rng.normal(size=200))
    weights = 1.0 * (np.abs(at - x.T) <= 0.51)  # no distance of an input is the width
    model = ak.LocalQuantile(ak.kernels.Boxcar(0.51), level=0.3, order=1)
    coefficients = np.asarray(local_fit(model, at, x, y).coefficients)[..., 0]
    parts = monomials(x - at[:, None], 1), coefficients, weights
    for terms, beta, w in zip(*parts, strict=True):
        loss = check_loss(y - terms @ beta, w, 0.3)
        assert loss <= highs(terms, y, w, 0.3)[1] * (1 + 1e-11)


def test_order_0_is_the_quantile_of_weights(x64):
    x, y, weights, x_new = sample()
    model = ak.LocalQuantile(ak.Gaussian(0.3), order=0)

    @jax.jit
    def computed(x_new, x, y, weights):
        return at_levels(model, LEVELS, x_new, x, y, prior=with_weights(None, Rows(x, y, weights)))

    fits = computed(x_new, x, y[:, None], weights)
    order = np.argsort(y)
    share = np.cumsum((weights * gaussian_weights(x_new, x, 0.3))[:, order], axis=1)
    share = share / share[:, -1:]
    assert np.min(np.abs(share - LEVELS[:, None, None])) > 1e-9  # no level is a tie
    expected = y[order][np.argmax(share > LEVELS[:, None, None], axis=2)]
    np.testing.assert_allclose(np.asarray(fits.coefficients)[:, :, 0, 0], expected, rtol=1e-12)


def test_quantiles_of_a_fit_of_order_1_are_local_linear(x64):
    """With weights of rows. Those of a `LocalQuantile` have all levels too."""
    x, y, weights, x_new = sample()
    kernel = ak.Gaussian(0.3)
    fit = known_fit(ak.KernelRegression(kernel, order=1), x, y, weights)
    found = ak.quantiles(fit, x_new, LEVELS)
    of_pairs = weights * gaussian_weights(x_new, x, 0.3)
    for ours, at, w in zip(np.asarray(found), x_new, of_pairs, strict=True):
        expected = [highs(monomials(x - at, 1), y, w, level)[0][0] for level in LEVELS]
        np.testing.assert_allclose(ours, expected, rtol=1e-9)
    own = known_fit(ak.LocalQuantile(kernel), x, y, weights)
    np.testing.assert_allclose(ak.quantiles(own, x_new, LEVELS), found, rtol=1e-12)


@pytest.mark.slow
def test_derivatives_are_those_of_the_polynomial_through_its_labels(x64):
    x, y, _, x_new = sample()

    @jax.jit
    def total_and_slopes(q, lengthscale, y):
        def total(q, lengthscale, y):
            fit = ak.LocalQuantile(ak.Gaussian(lengthscale), level=0.3).local_fit(q, x, y)
            return jnp.sum(fit.coefficients[:, 0]), fit.coefficients[:, 1, 0]

        return jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)(q, lengthscale, y)

    at = (x_new, np.float64(0.3))
    (value, slopes), (by_query, by_lengthscale, by_label) = jax.device_get(total_and_slopes(*at, y))
    np.testing.assert_allclose(by_query[:, 0], slopes, rtol=1e-9)
    assert by_lengthscale == 0
    assert np.sum(by_label != 0) <= 2 * M
    np.testing.assert_allclose(np.sum(by_label), M, rtol=1e-9)  # a constant is reproduced
    (ahead, _), _ = jax.device_get(total_and_slopes(*at, y + 1e-6 * by_label))
    np.testing.assert_allclose(ahead - value, 1e-6 * np.sum(by_label**2), rtol=1e-4)


def test_windows_without_labels_and_with_one_input(x64):
    x = np.r_[np.zeros(5), 4.0, 4.5]
    y = np.r_[1.0, 5.0, 2.0, 3.0, 4.0, 7.0, 8.0]
    model = ak.LocalQuantile(ak.kernels.Boxcar(1.0))
    with pytest.warns(ak.local.ExtrapolationWarning, match="do not determine all terms"):
        found = model(np.array([0.2, 9.0, 4.25]), x, y)
    np.testing.assert_allclose(found, [3.0, np.nan, 7.5], rtol=1e-9)


@pytest.mark.slow
def test_several_labels_in_float32(x64):
    x, y, _, x_new = sample()
    both = np.stack([y, -y], axis=1)
    model = ak.LocalQuantile(ak.Gaussian(0.3), level=0.7)
    found = model(*(part.astype(np.float32) for part in (x_new, x, both)))
    assert found.dtype == np.float32
    weights = gaussian_weights(x_new, x, 0.3)
    for ours, at, w in zip(found, x_new, weights, strict=True):
        expected = [highs(monomials(x - at, 1), label, w, 0.7)[0][0] for label in (y, -y)]
        np.testing.assert_allclose(ours, expected, atol=1e-4)
