"""Fits of local likelihood: their criterion, their programs, and labels that are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
from attnkernel.priors import ExcludeSelf


def test_fit_minimises_the_leave_one_out_deviance(x64):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 90)
    y = rng.binomial(1, 1 / (1 + np.exp(-2.5 * np.sin(2 * x)))).astype(float)
    fit = ak.fit(ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Binomial(), order=1), x, y)
    lengthscales = np.geomspace(0.1, 4.0, 60)
    losses = ak.objectives.profile(fit.model, fit.x, fit.y, lengthscales, objective=fit.objective)
    assert fit.loss <= np.min(losses) + 1e-9
    assert np.min(losses) < min(losses[0], losses[-1])
    (best, loss), *_ = fit.minima()
    np.testing.assert_allclose(best.kernel.lengthscale, fit.model.kernel.lengthscale)
    np.testing.assert_allclose(loss, ak.LeaveOneOut()(fit.model, fit.x, fit.y))
    squared = ak.LeaveOneOut(score=ak.squared_error)(fit.model, fit.x, fit.y)
    left_out = fit.model(x, x, y, prior=ExcludeSelf())
    np.testing.assert_allclose(squared, np.mean((y - left_out) ** 2))


def test_another_number_of_rows_in_a_bucket_compiles_nothing(x64, programs):
    """A fit and a prediction, which equal those without padding."""
    model = ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Poisson(), order=1)
    found = []
    for n in (50, 53):
        rng = np.random.default_rng(n)
        x, x_new = rng.uniform(-2, 2, n), rng.uniform(-2, 2, n - 40)
        y = rng.poisson(np.exp(2.0 + np.sin(2 * x))).astype(float)
        before = len(programs)
        fit = ak.fit(model, x, y)
        found.append(fit(x_new))
        assert n == 50 or programs[before:] == []
    unpadded = jax.jit(lambda x, y: fit.model(x_new, x, y))(x, y)
    np.testing.assert_allclose(found[1], unpadded, rtol=1e-10)
    loss = jax.jit(lambda *data: ak.LeaveOneOut()(fit.model, *data))(fit.x, fit.y)
    np.testing.assert_allclose(fit.loss, loss, rtol=1e-10)


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
    model = ak.LocalLikelihood(ak.Gaussian(0.5), family=family, order=1)
    for call in (
        lambda: ak.fit(model, x, y),
        lambda: model(x, x, y),
        lambda: model.local_fit(x, x, y),
        lambda: ak.LeaveOneOut()(model, jnp.asarray(x)[:, None], jnp.asarray(y)),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    weights = (np.arange(9) != 3).astype(float)  # a row of weight 0 is not there
    assert np.all(np.isfinite(model(x, x, y, weights=weights)))


def test_a_family_is_an_object(as_users_run_it):
    with pytest.raises(ValueError, match="family must be a Family"):
        ak.LocalLikelihood(ak.Gaussian(0.5), family="binomial")
    model = ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Binomial())
    with pytest.raises(ValueError, match="needs the hat matrix"):
        ak.AICc()(model, jnp.ones((4, 1)), jnp.ones(4))
