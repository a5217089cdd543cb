"""Bias-reduced models are chosen, reported, drawn, saved, and estimators of scikit-learn."""

import jax
import numpy as np
import pytest
from bias_reduction import N, by_matrices, left_out_by_matrices, model_of, sample
from known_fits import known_fit
from marks import slow

import attnkernel as ak
import attnkernel.plot
from attnkernel.sklearn import KernelClassifier, KernelRegressor


@pytest.fixture
def data(x64):
    return sample()


@pytest.fixture(scope="module")
def choice():
    """Fits without and with 4 iterations to noisy labels, the better one chosen."""
    x, y, _ = sample()
    y = y + 0.2 * np.random.default_rng(1).standard_normal(N)
    with jax.enable_x64(True):
        model = ak.KernelRegression(ak.Gaussian(1.0))
        models = [model, ak.models.BiasReduced(model, iterations=4)]
        return ak.choose(models, x, y, objective=ak.AICc(), starts=1)


@pytest.mark.slow
def test_iterations_are_chosen_and_reported(data, choice):
    q = data[2]
    assert "local constant, 4 iterations of bias reduction, Gaussian(" in str(choice)
    scales = [float(fit.model.kernel.lengthscale) for fit in choice.fits]
    assert np.all(np.diff(scales) > 0)  # more iterations, longer lengthscales
    fit = choice.fits[1]
    x, y = np.asarray(fit.x), np.asarray(fit.y)
    report = ak.summarise(fit)
    assert report.smoother == "local constant, 4 iterations of bias reduction"
    assert report.smoother in str(report)
    options = {"lengthscale": (scales[1],) * 2}
    fitted, hat = by_matrices(0, 4, x, x, y, **options)
    np.testing.assert_allclose(report.trace, np.trace(hat), rtol=1e-7)
    np.testing.assert_allclose(report.residual_sd, np.sqrt(np.mean((y - fitted) ** 2)), rtol=1e-7)
    band = ak.bands(fit, q, corrected=False, noise="constant")
    freedom = N - 2 * np.trace(hat) + np.sum(hat**2)
    variance = np.sum((y - fitted) ** 2) / freedom
    np.testing.assert_allclose(ak.degrees_of_freedom(fit).residual, freedom, rtol=1e-7)
    _, weights = by_matrices(0, 4, q, x, y, **options)
    norms = np.sum(weights**2, axis=1)
    np.testing.assert_allclose(band.standard_error, np.sqrt(variance * norms), rtol=1e-6)
    np.testing.assert_allclose(ak.inference.effective_count(fit, q), 1 / norms, rtol=1e-7)
    residuals = fit.model.estimate(None, fit.rows).loo_residuals
    expected = y - left_out_by_matrices(0, 4, x, y, **options)
    np.testing.assert_allclose(residuals, expected, rtol=1e-8)


def test_unsupported_uses_are_refused(data):
    x, y, q = data
    fit = known_fit(model_of(), x, y)
    with pytest.raises(ValueError, match=r"4.*corrected=False"):
        ak.bands(fit, q)
    with pytest.raises(
        ValueError, match=r"a LocalQuantile, or a smoother whose weights.*4 iterations"
    ):
        ak.quantiles(fit, q, 0.5)
    with pytest.raises(ValueError, match=r"variance.*4 iterations"):
        ak.MeanVarianceRegression(model_of(), model_of())
    for iterations in (1, 0, -1, True):
        with pytest.raises(ValueError, match=f"iterations.*at least 2.*{iterations}"):
            ak.models.BiasReduced(model_of(iterations=1), iterations)
    for labels in (y[:1], y[:-1]):
        with pytest.raises(ValueError, match=rf"same n; got x \(24, 2\) and y \({len(labels)},\)"):
            model_of()(q, x, labels)


@pytest.mark.parametrize("lengthscale", [slow(0.7), slow(None)])
def test_estimators_take_iterations(data, lengthscale):
    """With a lengthscale that is given, and one that is fitted."""
    x, y, q = data
    parts = {"iterations": 3, "objective": "aicc", "starts": 1, "lengthscale": lengthscale}
    estimator = KernelRegressor(order=0, per_dimension=True, **parts)
    mean, sd = estimator.fit(x, y).predict(q, return_std=True)
    model = estimator.model_
    assert (model.model.order, model.iterations) == (0, 3)
    assert lengthscale or estimator.fit_.model.iterations == 3
    options = {"lengthscale": np.broadcast_to(model.kernel.lengthscale, 2)}
    expected, weights = by_matrices(0, 3, q, x, y, **options)
    np.testing.assert_allclose(mean, expected, rtol=1e-9)
    left_out = y - left_out_by_matrices(0, 3, x, y, **options)
    np.testing.assert_allclose(sd, np.sqrt(weights**2 @ left_out**2), rtol=1e-8)


def test_a_classifier_takes_iterations(data):
    x, y, q = data
    found = KernelClassifier(iterations=3, lengthscale=0.7).fit(x, y > 3).predict_proba(q)
    expected, _ = by_matrices(0, 3, q, x, 1.0 * (y > 3), lengthscale=(0.7, 0.7))
    np.testing.assert_allclose(found[:, 1], np.clip(expected, 0, 1), rtol=1e-8)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)


def test_bias_reduced_models_are_called_vmapped_and_saved(data, tmp_path):
    x, y, q = data
    model = model_of(0, 3)
    expected, _ = by_matrices(0, 3, q, x, y)
    found = model(q, x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    many = jax.jit(jax.vmap(lambda y: model(q, x, y)))(np.stack([y, 2 * y]))
    np.testing.assert_allclose(many, np.stack([expected, 2 * expected]), rtol=1e-9)
    ak.save(tmp_path / "model.ak", model)
    np.testing.assert_array_equal(ak.load(tmp_path / "model.ak")(q, x, y), found)
