"""Mean and variance of labels, and the likelihood by which they are fitted."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import attnkernel as ak
from attnkernel.priors import HeldOut

N = 41
rng = np.random.default_rng(2)
X = np.sort(rng.uniform(-2, 2, N))
Y = np.sin(2 * X) + (0.1 + 0.2 * np.abs(X)) * rng.normal(size=N)


def model(mean=0.3, variance=0.7, order=0):
    return ak.MeanVarianceRegression(
        ak.KernelRegression(ak.Gaussian(mean), order=order),
        ak.KernelRegression(ak.Gaussian(variance)),
    )


def by_loops(x_new, x, y, mean=0.3, variance=0.7, weights=None):
    weights = np.ones(len(x)) if weights is None else weights

    def average(q, x, y, lengthscale, weights):
        w = weights * np.exp(-0.5 * ((q - x) / lengthscale) ** 2)
        return w @ y / w.sum()

    left_out = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        left_out.append(average(x[i], x[others], y[others], mean, weights[others]))
    squares = (y - left_out) ** 2
    return tuple(
        np.array([average(q, x, labels, ell, weights) for q in x_new])
        for labels, ell in ((y, mean), (squares, variance))
    )


@pytest.mark.parametrize("weights", [None, rng.uniform(size=N)])
def test_both_are_means_of_loops(x64, weights):
    x_new = np.linspace(-2, 2, 7)
    found = model()(x_new, X, Y, weights=weights)
    for ours, loop in zip(found, by_loops(x_new, X, Y, weights=weights), strict=True):
        np.testing.assert_allclose(ours, loop, rtol=1e-10)


def test_the_likelihood_of_held_out_rows_sees_none_of_them(x64):
    key = jax.random.PRNGKey(4)
    objective = ak.HoldOut(9, score=ak.log_score)
    rows = np.asarray(jax.random.permutation(key, N)[:9])
    others = np.setdiff1d(np.arange(N), rows)
    mean, variance = by_loops(X[rows], X[others], Y[others])
    expected = -np.mean(stats.norm.logpdf(Y[rows], mean, np.sqrt(variance)))
    np.testing.assert_allclose(
        objective(model(), jnp.asarray(X)[:, None], jnp.asarray(Y), key=key), expected, rtol=1e-10
    )
    hidden = jnp.zeros(N, bool).at[rows].set(True)
    other = np.where(hidden, 1e6, Y)
    for ours, same in zip(
        model()(X, X, Y, prior=HeldOut(hidden)),
        model()(X, X, other, prior=HeldOut(hidden)),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, same)


def test_a_row_with_no_other_in_reach_says_nothing_of_the_variance(x64):
    kernels = ak.Epanechnikov(0.5), ak.Gaussian(0.7)
    both = ak.MeanVarianceRegression(*map(ak.KernelRegression, kernels))
    x, y = np.append(X, 9.0), np.append(Y, 1e3)
    variances = both(X, x, y)[1], both(X, X, Y)[1]
    np.testing.assert_allclose(*variances, rtol=1e-12)


def test_the_likelihood_finds_how_the_noise_grows(x64):
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    x = jax.random.uniform(keys[0], (600,), minval=-3.0, maxval=3.0)
    sd = 0.1 + 0.3 * np.abs(x)
    y = np.sin(2 * x) + sd * jax.random.normal(keys[1], (600,))
    fit = ak.fit(
        model(1.0, 0.05, order=1),
        x,
        y,
        objective=ak.HoldOut(60, score=ak.log_score),
        optimizer=optax.adam(0.1),
        steps=80,
        key=keys[2],
    )
    at = np.linspace(-2.5, 2.5, 41)
    mean, variance = fit(at)
    truth = 0.1 + 0.3 * np.abs(at)
    assert np.sqrt(np.mean(((mean - np.sin(2 * at)) / truth) ** 2)) < 0.25
    away = np.log(np.sqrt(variance) / truth)
    assert np.sqrt(np.mean(away**2)) < 0.2 < 0.4 * np.ptp(np.log(truth))
    assert float(fit.model.variance.kernel.lengthscale) > 0.15


def test_what_has_no_likelihood():
    with pytest.raises(ValueError, match=r"a mean and a variance.*got an array of shape \(5,\)"):
        ak.log_score(jnp.zeros(5), jnp.zeros(5))
    with pytest.raises(ValueError, match="variance must be of order 0"):
        ak.MeanVarianceRegression(
            ak.KernelRegression(ak.Gaussian(1.0)), ak.KernelRegression(ak.Gaussian(1.0), order=1)
        )
