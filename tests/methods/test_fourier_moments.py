"""Local polynomials by `Fourier`: the moments within their bounds, the fits within the tolerance.

The reference is the normal equations in NumPy, in extended precision.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimates import prediction_variance
from fourier_error import error_in_tolerances
from marks import needs_finufft

import attnkernel as ak
from attnkernel.methods import Blockwise, Dense, Fourier
from attnkernel.models._regression import MIN_LABELS_BY_WEIGHTS
from attnkernel.priors import ExcludeSelf

pytestmark = needs_finufft

N, M = 2003, 311
TOL = 1e-6


def sample(shift=0.0):
    """Inputs with ties, a gap and lonely points, in no order; queries at, between and beyond."""
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.uniform(-3, 1, N - 43), rng.uniform(1.6, 3, 20), 5.0 + np.arange(23)])
    x[:60] = x[60:120]
    x = rng.permutation(x)
    y = np.sin(3 * x) + 0.3 * rng.normal(size=N)
    q = np.concatenate([x[:200], np.linspace(-3.2, 3.3, M - 200)])
    hidden = rng.uniform(size=N) < 0.1
    y[hidden] = 1e9
    return q + shift, x + shift, y, hidden


def reference(q, x, y, hidden, lengthscale, order, excludes_self=True):
    """β, $S^{-1} e_1$, the log-mass, $\\sum_j L_j^2$ and the condition of S of each query.

    No query sees a hidden row, nor its own if `excludes_self`.
    """
    difference = (x - q[:, None]).astype(np.longdouble)
    log = -0.5 * (difference / lengthscale) ** 2
    log[:, hidden] = -np.inf
    if excludes_self:
        np.fill_diagonal(log, -np.inf)
    highest = log.max(axis=1, keepdims=True)
    share = np.exp(log - highest)
    mass = share.sum(axis=1, keepdims=True)
    share /= mass
    u = difference / lengthscale
    terms = np.stack([u**a for a in range(order + 1)])
    gram = np.einsum("aij,bij,ij->iab", terms, terms, share)
    right = np.einsum("aij,ij,j->ia", terms, share, np.where(hidden, 0, y))
    first = np.zeros((len(q), order + 1))
    first[:, 0] = 1
    with np.errstate(all="ignore"):
        solved = solve(gram, np.stack([right, first], axis=2))
        norms = np.sum((share * np.einsum("ia,aij->ij", solved[:, :, 1], terms)) ** 2, axis=1)
    units = lengthscale ** np.arange(order + 1)
    found = *(solved[:, :, i] / units for i in (0, 1)), np.log(mass[:, 0]) + highest[:, 0], norms
    return *(part.astype(float) for part in found), condition_of(gram.astype(float))


def condition_of(gram):
    """The sum of the inverse eigenvalues of S, scaled to a diagonal of 1."""
    size = np.sqrt(np.diagonal(gram, axis1=1, axis2=2))
    size = np.where(size > 0, size, 1.0)
    scaled = gram / size[:, :, None] / size[:, None, :]
    return np.sum(1.0 / np.maximum(np.linalg.eigvalsh(scaled), 1e-17), axis=1)


def solve(gram, right):
    """Gauss elimination without pivots in extended precision, which LAPACK has not."""
    gram, right = gram.copy(), right.copy()
    for a in range(gram.shape[1]):
        right[:, a] /= gram[:, a, a, None]
        gram[:, a] /= gram[:, a, a, None]
        for b in set(range(gram.shape[1])) - {a}:
            factor = gram[:, b, a, None].copy()
            gram[:, b] -= factor * gram[:, a]
            right[:, b] -= factor * right[:, a]
    return right


@eqx.filter_jit
def evaluate(log_lengthscale, q, x, y, hidden, method, order):
    """The local fit and its data, and the derivative of a number in log ℓ."""

    def number(log_lengthscale):
        kernel = ak.Gaussian(jnp.exp(log_lengthscale))
        model = ak.KernelRegression(kernel, order=order, method=method)
        local = model.local_fit(q, x, y, prior=ExcludeSelf(), weights=~hidden)
        is_good = jax.lax.stop_gradient(local.condition < 1e5)
        value = jnp.sin(local.coefficients[:, 0, 0]) + jnp.log(local.influence[:, 0])
        return jnp.sum(jnp.where(is_good, value, 0.0)), local

    (_, local), slope = jax.value_and_grad(number, has_aux=True)(log_lengthscale)
    return local, slope


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2])
def test_fits_leverages_and_slopes_are_within_the_tolerance(x64, order):
    """At all queries that the data determine in float64; near gaps S is close to singular."""
    for lengthscale, shift in ((0.05, 0.0), (0.05, 1e4), (0.004, 0.0), (30.0, 0.0)):
        q, x, y, hidden = sample(shift)
        at = np.log(lengthscale)
        local, slope = jax.device_get(evaluate(at, q, x, y, hidden, Fourier(TOL), order))
        beta, influence, log_mass, _, condition = reference(q, x, y, hidden, lengthscale, order)
        np.testing.assert_allclose(local.log_mass, log_mass, rtol=1e-9, atol=TOL)
        # beyond, rounding in float64 exceeds the tolerance: no method does better
        known = condition < 1e8
        assert np.mean(known) > 0.7
        found, exact = local.coefficients[known, 0, 0], beta[known, 0]
        assert error_in_tolerances(found, exact, y[~hidden], TOL) < 1
        np.testing.assert_allclose(local.influence[known, 0], influence[known, 0], rtol=TOL)
        if lengthscale == 0.05:
            step, is_good = 1e-4, condition < 1e5
            scaled = (lengthscale * np.exp(move) for move in (-step, step))
            numbers = (reference(q, x, y, hidden, each, order) for each in scaled)
            good = ((beta[is_good, 0], share[is_good, 0]) for beta, share, *_ in numbers)
            low, high = (np.sum(np.sin(b) + np.log(s)) for b, s in good)  # as `evaluate`
            np.testing.assert_allclose(slope, (high - low) / (2 * step), rtol=1e-6)


@pytest.mark.slow
def test_variances_are_sums_of_squared_weights(x64):
    """Also where the terms of a square cancel, in the gap and beyond the data."""
    q, x, _, _ = sample()
    no, variance = np.zeros(N, bool), np.ones((N, 2)) * np.array([1.0, 4.0])

    @jax.jit
    def variances(lengthscale):
        kernel = ak.Gaussian(lengthscale)
        model = ak.KernelRegression(kernel, order=2, method=Fourier(TOL))
        return prediction_variance(model, q, x, variance)

    for lengthscale in (0.05, 0.01, 1.0):
        *_, norms, condition = reference(q, x, x, no, lengthscale, 2, excludes_self=False)
        known = condition < 1e8
        found = np.asarray(variances(lengthscale))[known]
        np.testing.assert_allclose(found[:, 0], norms[known], rtol=4 * TOL)
        np.testing.assert_allclose(found[:, 1], 4 * found[:, 0], rtol=4 * TOL)


@pytest.mark.slow
def test_many_labels_are_summed_by_the_weights_of_the_fit(x64):
    """Fits and slopes of many labels, and variances of slopes, equal those of pairs."""
    q, x, _, _ = sample()
    q, labels = q[:100], np.random.default_rng(1).normal(size=(N, MIN_LABELS_BY_WEIGHTS))

    @eqx.filter_jit
    def both(method):
        model = ak.KernelRegression(ak.Gaussian(0.2), order=1, method=method)
        found = model.derivative(1).estimate(q, ak.models.Rows.read(x, labels))
        slopes, squares = found.value, found.variance_of(np.ones(N))
        return model(q, x, labels), slopes, squares

    for found, expected in zip(both(Fourier(TOL)), both(Dense()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_auto_takes_moments_above_a_number_of_pairs():
    def selected(n, dim, order, kernel=ak.Gaussian(0.3)):
        shape = jax.ShapeDtypeStruct((n, dim), jnp.float32)
        return ak.attention.select_method(shape, shape, shape, kernel=kernel, order=order)

    assert selected(2048, 1, 1).method == Blockwise()
    for order in (1, 2):
        assert selected(2049, 1, order).method == Fourier()
    assert "one dimension, not 2" in str(selected(10**6, 2, 1))
    assert "no moments" in str(selected(10**6, 1, 1, ak.Laplace(0.3)))
