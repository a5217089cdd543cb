"""Weights are inverse variances up to a factor, in every number: against R's loess and NumPy."""

import jax
import numpy as np
import optax
import pytest
from marks import slow

import attnkernel as ak

ROW = np.arange(60)
X = np.sqrt(ROW / 59)
Y = np.sin(6 * X) + 0.3 * np.cos(37 * X**2)
WEIGHTS = 1.0 + ROW % 3
AT = np.array([0.2, 0.5, 0.8])
STILL = optax.sgd(0.0)  # the lengthscales of a fit are those given


def fitted(weights):
    """Local lines with the tricube weights of the 30 nearest of 60 rows."""
    kernel = ak.NearestNeighbours(ak.Tricube(1.0), fraction=0.5)
    model = ak.KernelRegression(kernel, order=1)
    options = {"weights": weights, "optimizer": STILL, "steps": 1}
    return ak.fit(model, X, Y, objective=ak.LeaveOneOut(), **options)


def hat_matrix(fit):
    smooth = jax.vmap(lambda y: fit.model.fitted_and_leverage(X, y, weights=WEIGHTS)[0], out_axes=1)
    return np.asarray(jax.jit(smooth)(np.eye(60)))


# R 4.2: loess(y ~ x, weights = w, span = 0.5, degree = 1,
#              control = loess.control(surface = "direct", statistics = "exact"))
FIT = (0.889444971711, 0.13900228676, -0.931929747714)
ERROR = (0.0889709405335, 0.0550068079301, 0.0535593055692)
DELTA, TRACE = 55.5405571734, 4.57786968757


def test_standard_errors_are_those_of_loess(x64):
    """But for R's divisor, the trace of (I - L)(I - L)ᵀ: with weights it is not the mean of the
    weighted sum of squares, by which ours divides it."""
    fit = fitted(WEIGHTS)
    left = np.eye(60) - hat_matrix(fit)
    np.testing.assert_allclose(np.trace(left @ left.T), DELTA, rtol=1e-9)
    freedom = ak.degrees_of_freedom(fit)
    np.testing.assert_allclose(freedom.trace, TRACE, rtol=1e-9)
    covariance = left @ np.diag(1 / WEIGHTS) @ left.T
    np.testing.assert_allclose(freedom.residual, WEIGHTS @ np.diag(covariance), rtol=1e-9)
    found = ak.bands(fit, AT, noise="constant", corrected=False)
    np.testing.assert_allclose(found.centre, FIT, rtol=1e-9)
    ours = found.standard_error * np.sqrt(freedom.residual / DELTA)
    np.testing.assert_allclose(ours, ERROR, rtol=1e-9)
    assert 0.005 < abs(float(freedom.residual) / DELTA - 1) < 0.03


SCALED = {
    "bands": lambda fit: ak.bands(fit, AT, corrected=False),
    "bands, constant noise": lambda fit: ak.bands(fit, AT, noise="constant", corrected=False),
    "conformal": lambda fit: ak.conformal(fit, AT, level=0.8),
    "degrees_of_freedom": ak.degrees_of_freedom,
    "effective_count": lambda fit: ak.effective_count(fit, AT),
    "predictions": lambda fit: fit(AT),
    "criteria": lambda fit: [
        kind(weights=fit.objective.weights)(fit.model, fit.x, fit.y)
        for kind in (ak.LeaveOneOut, ak.KFold, ak.GCV, ak.AICc)
    ],
}


DEFAULT = {"bands, constant noise", "criteria"}


@pytest.mark.parametrize("name", [n if n in DEFAULT else slow(n) for n in SCALED])
def test_a_factor_of_all_weights_changes_nothing(x64, name):
    leaves = (jax.tree.leaves(SCALED[name](fitted(weights))) for weights in (WEIGHTS, 7 * WEIGHTS))
    for found, expected in zip(*leaves, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-14)


def test_the_noise_is_that_of_a_label_of_weight_one(x64):
    one, seven = (ak.noise_variance(fitted(weights), AT) for weights in (WEIGHTS, 7 * WEIGHTS))
    np.testing.assert_allclose(seven, 7 * one, rtol=1e-9)


def test_the_noise_far_from_all_labels_is_constant(x64):
    """Within 64 lengthscales of 0.25 the mean is local; beyond, each label counts alike."""
    model = ak.KernelRegression(ak.Epanechnikov(0.25))
    fit = ak.fit(model, X, Y, objective=ak.GCV(), weights=WEIGHTS, optimizer=STILL, steps=1)
    kernel = np.maximum(0.0, 1 - ((X[:, None] - X) / 0.25) ** 2) * WEIGHTS
    hat = kernel / kernel.sum(axis=1, keepdims=True)
    squares = WEIGHTS * (Y - hat @ Y) ** 2
    expected = 1 - 2 * np.diag(hat) + WEIGHTS * np.sum(hat**2 / WEIGHTS, axis=1)
    near, far = ak.noise_variance(fit, np.array([0.5, 20.0]))
    np.testing.assert_allclose(far, squares.sum() / expected.sum(), rtol=1e-9)
    assert abs(near / far - 1) > 0.01
