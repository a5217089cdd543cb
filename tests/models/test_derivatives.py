"""Derivatives of kernel regressions, against least squares in NumPy, JAX, locfit and nprobust."""

import math

import jax
import numpy as np
import pytest
from least_squares import local_polynomial
from marks import slow
from refusals import assert_raises

import attnkernel as ak

N, M, LENGTHSCALE = 61, 7, 0.35
X_NEW = np.linspace(-1.8, 1.8, M)
EPS = np.finfo(np.float64).eps


def sample():
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(-2, 2, N))
    return x, 1e3 + np.sin(2 * x) + 0.1 * rng.normal(size=N), rng.uniform(0.5, 2.0, N)


def derivative_weights(x_new, x, order, degree, weights=1.0):
    """Rows $D_j(x)$: by weighted least squares, for order 0 by the quotient rule."""
    if order > 0:
        rows = local_polynomial(x_new, x, LENGTHSCALE, order, degree, weights)
        return math.factorial(degree) * rows
    away = x - x_new[:, None]
    kernel = weights * np.exp(-0.5 * (away / LENGTHSCALE) ** 2)
    share, score = kernel / kernel.sum(axis=1, keepdims=True), away / LENGTHSCALE**2
    return share * (score - np.sum(share * score, axis=1, keepdims=True))


@pytest.mark.parametrize(("order", "degree"), [slow(0, 1), slow(1, 1), (2, 1), (2, 2)], ids=str)
def test_derivatives_and_their_variances_equal_least_squares(x64, order, degree):
    x, y, weights = sample()
    derivative = ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=order).derivative(degree)
    rows = derivative_weights(X_NEW, x, order, degree, weights)
    variance = 0.1 + x**2
    of_rows = ak.models.Rows.read(x, y, weights)

    @jax.jit
    def estimate(at):
        found = derivative.estimate(at, of_rows)
        return found.value, found.variance_of(variance)

    out, squares = estimate(X_NEW)
    np.testing.assert_allclose(out, rows @ (y - 1e3), rtol=1e-9)
    np.testing.assert_allclose(squares, rows**2 @ variance, rtol=1e-9)


@pytest.mark.parametrize("degree", [1, slow(2)])
def test_order_zero_is_the_derivative_of_the_curve_by_jax(x64, degree):
    x, y, _ = sample()
    model = ak.KernelRegression(ak.Matern52(LENGTHSCALE))

    def curve(at):
        return model(at[None], x, y)[0]

    expected = jax.grad(curve) if degree == 1 else jax.grad(jax.grad(curve))
    found = model.derivative(degree)(X_NEW, x, y)
    np.testing.assert_allclose(found, jax.jit(jax.vmap(expected))(X_NEW), rtol=1e-8)


@pytest.mark.parametrize("derivative", [(1, 1), slow((1, 0)), slow((0, 2))], ids=str)
def test_partial_derivatives_of_a_quadratic_are_exact(x64, derivative):
    """A category shifts the mean and has no derivative."""
    rng = np.random.default_rng(0)
    a, b, group = rng.normal(size=(2, 80)), None, rng.integers(0, 2, 80)
    a, b = a
    y = 1.0 + 2.0 * a - b + 3.0 * a * b + 0.5 * b**2
    kernel = ak.Gaussian(np.array([0.8, 0.8])).on((0, 1)) * ak.kernels.LiRacine(0.2).on(2)
    model = ak.KernelRegression(kernel, order=2)
    x = np.stack([a, b, group], axis=1)
    expected = {(1, 0): 2.0 + 3.0 * b, (1, 1): 3.0 + 0.0 * b, (0, 2): 1.0 + 0.0 * b}[derivative]
    found = model.derivative((*derivative, 0))(x[:M], x, y)
    np.testing.assert_allclose(found, expected[:M], rtol=1e-8)
    message = r"Column 2 holds categories.*got derivative=\(0, 0, 1\)"
    assert_raises(message, model.derivative((0, 0, 1)), x[:M], x, y)


# locfit.raw(lp(times, h = 10, deg = p), accel, kern = "gauss", deriv = 1, ev = c(10, 20, 30, 40))
# of R's locfit 1.5, on mcycle: estimates, and standard errors for a noise of 1
LOCFIT = {
    1: (
        [-4.93244195896459, -2.79353398130945, 8.58088843759153, -1.97450307743292],
        [0.0329588465020340, 0.0257662349071990, 0.0295647049535384, 0.0376282992421885],
    ),
    2: (
        [-2.65218265950931, -3.86057638960520, 8.07913943680358, -1.85537260158990],
        [0.0372079262999768, 0.0263957526347906, 0.0298637836274689, 0.0393637858396181],
    ),
}
# lprobust(accel, times, eval=[10, 20, 30, 40], p=p, deriv=v, h=8.0, kernel="epa", bwcheck=None)
# of nprobust 0.5.0, by p and v
NPROBUST = {
    (1, 1): [-3.9849642674867765, -4.092110790713426, 9.086088212878135, -1.761382043260437],
    (2, 2): [-1.5644998153067038, 5.043702340359257, -4.165786390512722, 0.6602749374523937],
}


@pytest.mark.parametrize("order", [slow(1), slow(2)])
def test_slopes_and_standard_errors_equal_those_of_locfit(x64, order):
    """Those of order 2 are right to 1e-14 by least squares written out: locfit's own to 5e-8."""
    data, (fit, error) = ak.data.load("mcycle"), LOCFIT[order]
    slope = ak.KernelRegression(ak.Gaussian(10 / 2.5), order=order).derivative(1)
    at = np.array([10.0, 20.0, 30.0, 40.0])

    @jax.jit
    def computed(x, y):
        found = slope.estimate(at, ak.models.Rows.read(x, y))
        return found.value, found.variance_of(np.ones(len(x)))

    out, squares = jax.device_get(computed(data.x, data.y))
    rtol = 1e4 * EPS if order == 1 else 1e-7
    np.testing.assert_allclose(out, fit, rtol=rtol)
    np.testing.assert_allclose(np.sqrt(squares), error, rtol=rtol)


@pytest.mark.parametrize(("order", "degree"), [slow(1, 1), slow(2, 2)], ids=str)
def test_derivatives_equal_those_of_nprobust(x64, order, degree):
    data, at = ak.data.load("mcycle"), np.array([10.0, 20.0, 30.0, 40.0])
    derivative = ak.KernelRegression(ak.Epanechnikov(8.0), order=order).derivative(degree)
    expected = NPROBUST[order, degree]
    np.testing.assert_allclose(derivative(at, data.x, data.y), expected, rtol=1e-12)


def test_derivatives_are_nan_where_the_data_do_not_determine_them(x64):
    """Where no label is in reach, and along two equal columns."""
    x, y, _ = sample()
    constant = ak.KernelRegression(ak.Epanechnikov(LENGTHSCALE)).derivative(1)
    np.testing.assert_array_equal(np.isnan(constant(np.array([0.0, 9.0]), x, y)), [False, True])
    linear = ak.KernelRegression(ak.Gaussian(1.0), order=1).derivative((1, 0))
    twice = np.stack([x, x], axis=1)
    with pytest.warns(ak.local.ExtrapolationWarning, match=r"derivative \(1, 0\) of local linear"):
        assert np.all(np.isnan(linear(twice[:3], twice, y)))


def test_orders_that_are_refused():
    x, y, _ = sample()
    model = ak.KernelRegression(ak.Gaussian(1.0), order=1)
    assert_raises("order 1 has no derivative of order 2", model.derivative, 2)
    assert_raises("add up to 1 or 2; got", model.derivative, (0,))
    assert_raises(r"each of 1 columns, such .*\(0, 1\)", model.derivative((0, 1)), X_NEW, x, y)
