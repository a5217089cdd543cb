"""Mean and variance of labels, and the likelihood by which they are fitted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimates import predict
from least_squares import left_out, local_polynomial
from marks import slow
from refusals import assert_raises
from scipy import stats

import attnkernel as ak
from attnkernel.priors import HeldOut

N = 41
rng = np.random.default_rng(2)
X = np.sort(rng.uniform(-2, 2, N))
Y = np.sin(2 * X) + (0.1 + 0.2 * np.abs(X)) * rng.normal(size=N)


def model(mean=0.3, variance=0.7, order=0):
    of_mean = ak.KernelRegression(ak.Gaussian(mean), order=order)
    return ak.MeanVarianceRegression(of_mean, ak.KernelRegression(ak.Gaussian(variance)))


def by_loops(x_new, x, y, mean=0.3, variance=0.7, weights=None):
    weights = np.ones(len(x)) if weights is None else weights
    squares = (y - left_out(x, y, mean, weights=weights)) ** 2
    of_mean = local_polynomial(x_new, x, mean, weights=weights) @ y
    return of_mean, local_polynomial(x_new, x, variance, weights=weights) @ squares


@pytest.mark.parametrize("weighted", [True, slow(False)])
def test_mean_and_variance_equal_weighted_means(x64, weighted):
    """Rows of weight 0 are none, whatever their labels."""
    x_new = np.linspace(-2, 2, 7)
    weights = np.where(np.arange(N) % 4 == 1, 0.0, np.random.default_rng(3).uniform(size=N))
    spoilt, of_rows = (np.where(weights > 0, Y, 1e30), weights) if weighted else (Y, None)
    found = predict(model(), x_new, X, spoilt, weights=of_rows)
    for ours, loop in zip(found, by_loops(x_new, X, Y, weights=of_rows), strict=True):
        np.testing.assert_allclose(ours, loop, rtol=1e-10)


def test_the_likelihood_of_held_out_rows_and_its_slopes(x64):
    """Against loops over the other rows and finite differences; held-out labels are not seen."""

    @jax.jit
    def value_and_slopes(logs):
        key = jax.random.PRNGKey(4)

        def loss(logs):
            objective, data = ak.HoldOut(9, score=ak.objectives.log_score), (X[:, None], Y)
            return objective(model(*jnp.exp(logs)), *map(jnp.asarray, data), key=key)

        return jax.value_and_grad(loss)(logs), jax.random.permutation(key, N)[:9]

    def expected(logs):
        mean, variance = by_loops(X[rows], X[others], Y[others], *np.exp(logs))
        return -np.mean(stats.norm.logpdf(Y[rows], mean, np.sqrt(variance)))

    at = np.log([0.3, 0.7])
    (value, slopes), rows = jax.device_get(value_and_slopes(at))
    others = np.setdiff1d(np.arange(N), rows)
    np.testing.assert_allclose(value, expected(at), rtol=1e-10)
    steps = 1e-5 * np.eye(2)
    differences = [(expected(at + step) - expected(at - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(slopes, differences, rtol=1e-6)

    hidden = np.isin(np.arange(N), rows)
    found = predict(model(), X, X, np.where(hidden, 1e6, Y), prior=HeldOut(hidden))
    for ours, loop in zip(found, by_loops(X, X[others], Y[others]), strict=True):
        np.testing.assert_allclose(ours, loop, rtol=1e-10)


def test_a_row_without_neighbours_does_not_change_the_variance(x64):
    @jax.jit
    def variances(x, y):
        kernels = ak.Epanechnikov(0.5), ak.Gaussian(0.7)
        both = ak.MeanVarianceRegression(*map(ak.KernelRegression, kernels))
        return both(X, x, y)[1], both(X, x[:-1], y[:-1])[1]

    found = variances(np.append(X, 9.0), np.append(Y, 1e3))
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_unsupported_scores_and_orders_are_refused():
    labels = map(jnp.asarray, np.zeros((2, 5)))
    assert_raises(r"mean.*variance.*\(5,\)", ak.objectives.log_score, *labels)
    models = (ak.KernelRegression(ak.Gaussian(1.0), order=order) for order in (0, 1))
    assert_raises(r"variance.*order 0.*local linear", ak.MeanVarianceRegression, *models)
