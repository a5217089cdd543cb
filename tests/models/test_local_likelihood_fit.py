"""Fits of local likelihood: their criterion, their programs, and labels that are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import xlogy

import attnkernel as ak
from attnkernel.priors import ExcludeSelf


@pytest.mark.slow
def test_a_fit_minimises_the_left_out_deviance(x64, programs):
    """Another number of rows in a bucket compiles nothing, and results equal those unpadded."""
    jax.clear_caches()
    model = ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Poisson(), order=1)
    for n in (50, 53):
        rng = np.random.default_rng(n)
        x, x_new = rng.uniform(-2, 2, n), rng.uniform(-2, 2, n - 40)
        y = rng.poisson(np.exp(1.0 + np.sin(3 * x))).astype(float)
        before = len(programs)
        fit = ak.fit(model, x, y)
        predicted = fit(x_new)
        assert n == 50 or programs[before:] == []
    assert len(programs) > 0
    (best, least), *_ = jax.device_get(fit.minima())
    fitted = np.asarray(fit.model.kernel.lengthscale)
    np.testing.assert_allclose(np.exp(best.kernel.lengthscale_parameter.z), fitted, rtol=1e-12)

    @jax.jit
    @jax.vmap
    def unpadded(lengthscale):
        model = ak.LocalLikelihood(ak.Gaussian(lengthscale), family=ak.Poisson(), order=1)
        squares = ak.LeaveOneOut(score=ak.squared_error)
        at = np.r_[x, x_new]
        return (
            model(at, x, y, prior=ExcludeSelf()),
            squares(model, jnp.asarray(x[:, None]), jnp.asarray(y)),
        )

    at = np.r_[fitted, np.geomspace(0.1, 4.0, 30)]
    mean, squares = map(np.asarray, unpadded(at))
    left_out, new = mean[:, :n], mean[0, n:]
    deviance = 2 * (xlogy(y, y / left_out) - y + left_out)
    loss, *losses = np.mean(deviance, axis=1)
    assert fit.loss <= min(losses) * (1 + 1e-9)
    assert min(losses) < min(losses[0], losses[-1])
    np.testing.assert_allclose([fit.loss, least], [loss, loss], rtol=1e-10)
    np.testing.assert_allclose(predicted, new, rtol=1e-10)
    expected = np.mean((y - left_out) ** 2, axis=1)
    np.testing.assert_allclose(squares, expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("family", "bad", "words"),
    [
        (ak.Binomial(), 1.5, r"from 0 to 1 for the family Binomial; row 3 .* has 1.5"),
        (ak.Poisson(), -1.0, r"at least 0 for the family Poisson; row 3 .* has -1.0"),
        (ak.Gamma(), 0.0, r"above 0 for the family Gamma; row 3 .* has 0.0"),
    ],
)
def test_labels_that_a_family_does_not_have_are_refused(x64, family, bad, words):
    x, y = np.linspace(0.0, 1.0, 9), np.where(np.arange(9) == 3, bad, np.linspace(0.2, 0.8, 9))
    model = ak.LocalLikelihood(ak.Gaussian(0.5), family=family)
    for call in (
        lambda: ak.fit(model, x, y),
        lambda: model(x, x, y),
        lambda: model.local_fit(x, x, y),
        lambda: ak.LeaveOneOut()(model, jnp.asarray(x[:, None]), jnp.asarray(y)),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    weights = (np.arange(9) != 3).astype(float)  # a row of weight 0 is not there
    assert np.all(np.isfinite(np.asarray(model(x, x, y, weights=weights))))


def test_a_family_is_an_object(as_users_run_it):
    with pytest.raises(ValueError, match="family must be a Family"):
        ak.LocalLikelihood(ak.Gaussian(0.5), family="binomial")
    model = ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Binomial())
    with pytest.raises(ValueError, match="needs the hat matrix"):
        ak.AICc()(model, jnp.asarray(np.ones((4, 1))), jnp.asarray(np.ones(4)))
