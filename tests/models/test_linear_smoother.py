"""`LinearSmoother`: its defaults against known formulas, and a smoother of a user's own; inverses
by blocks, against LAPACK."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimates import fitted_and_leverage
from known_fits import known_fit
from marks import slow
from refusals import assert_raises

import attnkernel as ak
from attnkernel.models import Rows
from attnkernel.models._additive import BLOCK_ROWS, inverse

N = 23
X = np.linspace(-1.0, 1.0, N)
Y = np.sin(3 * X) + 0.1 * np.cos(29 * X)
AT = np.array([-0.7, 0.05, 0.9])


class OnlyTheCall(ak.LinearSmoother):
    """A kernel regression that hides all but its predictions."""

    inner: ak.KernelRegression

    def __call__(self, x_new, x, y, *, prior=None, weights=None):
        return self.inner(x_new, x, y, prior=prior, weights=weights)


class Ridge(ak.LinearSmoother):
    """A quadratic with a penalty on its coefficients."""

    log_penalty: jax.Array

    def __call__(self, x_new, x, y, *, prior=None, weights=None):
        x_new, x, y = (jnp.asarray(part) for part in (x_new, x, y))
        seen = jnp.ones((len(x_new), len(x)))
        if prior is not None:
            seen = jnp.exp(prior.pairwise(jnp.arange(len(x_new)), jnp.arange(len(x))))
        seen = seen if weights is None else seen * jnp.asarray(weights)[None]
        a, penalty = self._design(x), jnp.exp(self.log_penalty) * jnp.eye(3)
        gram = jnp.einsum("qn,ni,nj->qij", seen, a, a) + penalty[None]
        right = jnp.einsum("qn,ni,no->qio", seen, a, y.reshape(len(y), -1))
        fitted = jnp.einsum("qi,qio->qo", self._design(x_new), jnp.linalg.solve(gram, right))
        return fitted.reshape(len(x_new), *y.shape[1:])

    @staticmethod
    def _design(x):
        x = x.reshape(len(x), -1)[:, 0]
        return jnp.stack([jnp.ones_like(x), x, x**2], axis=1)


def matrix(penalty, x_new=X):
    a, b = (np.stack([np.ones_like(x), x, x**2], axis=1) for x in (X, x_new))
    return b @ np.linalg.solve(a.T @ a + penalty * np.eye(3), a.T)


@pytest.mark.parametrize("order", [0, slow(1)])
def test_defaults_equal_the_formulas_of_kernel_regression(x64, order):
    model = ak.KernelRegression(ak.Epanechnikov(0.4), order=order)
    weights = np.where(np.arange(N) % 5 == 2, 0.0, 1.0 + np.arange(N) % 3)
    at, many = np.append(AT, 9.0), np.stack([Y, Y**2], axis=1)

    @eqx.filter_jit
    def results(model):
        new = model.estimate(at, Rows.read(X, Y, weights))
        return {
            "fitted": fitted_and_leverage(model, X, Y, weights=weights),
            "fitted to many": fitted_and_leverage(model, X, many, weights=weights),
            "value": new.value,
            "variance": new.variance_of(1.0 + X**2),
            "weights": new.weights,
            "left out": model.estimate(None, Rows.read(X, Y)).loo_residuals,
            "empty": new.support.empty,
        }

    expected, found = jax.device_get([results(model), results(OnlyTheCall(model))])
    for name, ours in expected.items():
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(found[name]), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-8, atol=1e-12, err_msg=name)
    assert expected["empty"].tolist() == [False, False, False, True]


def test_criteria_and_inference_take_a_smoother_of_a_user(x64):
    fit = known_fit(Ridge(np.log(0.3)), X, Y, objective=ak.AICc)
    hat, rows = matrix(0.3), matrix(0.3, AT)
    residuals, trace = Y - hat @ Y, np.trace(hat)
    freedom = np.trace((np.eye(N) - hat).T @ (np.eye(N) - hat))
    aicc = np.log(np.mean(residuals**2)) + (1 + trace / N) / (1 - (trace + 2) / N)
    np.testing.assert_allclose(jax.jit(ak.AICc())(fit.model, fit.x, fit.y), aicc, rtol=1e-9)
    np.testing.assert_allclose(ak.degrees_of_freedom(fit).residual, freedom, rtol=1e-9)
    counts = 1 / np.sum(rows**2, axis=1)
    np.testing.assert_allclose(ak.inference.effective_count(fit, AT), counts, rtol=1e-9)
    left_out = residuals / (1 - np.diag(hat))  # holds for penalised least squares
    for noise, variance in (("constant", np.sum(residuals**2) / freedom), ("rows", left_out**2)):
        band = ak.bands(fit, AT, noise=noise, corrected=False)
        np.testing.assert_allclose(band.centre, rows @ Y, rtol=1e-9)
        error = np.sqrt(rows**2 @ np.broadcast_to(variance, N))
        np.testing.assert_allclose(band.standard_error, error, rtol=1e-8)
    interval = ak.conformal(fit, AT, level=0.8)
    width = np.sort(np.abs(left_out))[int(np.ceil(0.8 * (N + 1))) - 1]
    np.testing.assert_allclose(interval.upper - interval.centre, width, rtol=1e-8)
    report = ak.summarise(fit)
    assert (report.smoother, report.kernel, report.deficient) == ("Ridge", "", 0)
    np.testing.assert_allclose(report.trace, trace, rtol=1e-9)


def test_a_smoother_of_a_user_is_fitted_and_chosen(x64):
    models = [Ridge(np.array(1.0)), ak.KernelRegression(ak.Gaussian(0.3))]
    choice = ak.choose(models, X, Y, objective=ak.GCV(), starts=1)
    assert float(choice.fits[0].loss) < float(jax.jit(ak.GCV())(models[0], X[:, None], Y))
    assert "Ridge(" in str(choice)
    assert "local constant, Gaussian(" in str(choice)


def test_what_a_smoother_does_not_have_is_refused(x64):
    fit = known_fit(Ridge(np.log(0.3)), X, Y, objective=ak.AICc)
    assert_raises(r"bias correction.*Ridge.*corrected=False", ak.bands, fit, AT, noise="constant")
    message = r"variance_smoother.*Ridge.*noise=\"constant\""
    assert_raises(message, ak.bands, fit, AT, corrected=False)
    assert_raises(r"weights are not negative.*Ridge", ak.quantiles, fit, AT, 0.5)
    message = r"variance.*weights from 0.*Ridge"
    assert_raises(message, ak.MeanVarianceRegression, fit.model, fit.model)


@pytest.mark.slow
def test_one_matrix_of_weights_gives_the_sums_of_a_streaming_method(x64):
    at, weights = np.array([-0.7, 0.05, 9.0]), np.arange(N) % 3

    @jax.jit
    def results(x, y):
        found = []
        for method in (ak.methods.Dense(), ak.methods.Blockwise(8, 8)):
            model = ak.KernelRegression(ak.kernels.Tricube(0.4), method=method, on_empty="nearest")
            for x_new in (at, None):
                new = model.estimate(x_new, Rows.read(x, y, weights))
                leverage = None if x_new is not None else new.leverage
                parts = new.value, new.variance_of(1.0 + x**2), new.support, new.weights, leverage
                found.append(parts)
        return found[:2], found[2:]

    found, streamed = jax.device_get(results(X, Y))
    assert found[0][2].empty.tolist() == [False, False, True]
    for part, other in zip(jax.tree.leaves(found), jax.tree.leaves(streamed), strict=True):
        np.testing.assert_allclose(part, other, rtol=1e-12, atol=1e-14)


SIZE = BLOCK_ROWS + 5


def smoother():
    """I - S of local means, centred, at points in any order."""
    x = np.random.default_rng(0).uniform(size=SIZE)
    near = np.exp(-0.5 * ((x[:, None] - x) / 0.05) ** 2)
    share = near / near.sum(axis=1, keepdims=True)
    return np.eye(SIZE) - share + share.mean(axis=0)


def test_an_inverse_by_blocks_and_its_derivatives(x64, monkeypatch):
    matrix = smoother()
    expected = np.linalg.inv(matrix)
    monkeypatch.setattr(jnp.linalg, "inv", lambda of: of * np.nan)  # by blocks alone
    weights = np.random.default_rng(1).normal(size=(SIZE, SIZE))

    @jax.jit
    def results(matrix):
        def slope(matrix):
            found, pull_back = jax.vjp(inverse, matrix)
            return pull_back(jnp.asarray(weights))[0], found

        # forward over reverse: d(X' W X') along W
        slope, bend, found = jax.jvp(slope, (matrix,), (jnp.asarray(weights),), has_aux=True)
        return found, slope, bend

    found, slope, bend = jax.device_get(results(matrix))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(slope, -expected.T @ weights @ expected.T, rtol=1e-9)
    turned = expected.T @ weights.T @ expected.T
    one = turned @ weights @ expected.T
    two = expected.T @ weights @ turned
    np.testing.assert_allclose(bend, one + two, rtol=1e-8)


def test_lapack_where_blocks_are_not_accurate(x64):
    """Every pivot block is singular, or the pivots of one are small."""
    exchanged, small = np.eye(SIZE)[::-1] + 0.0, np.random.default_rng(0).normal(size=(SIZE, SIZE))
    small[:9, :9] *= 1e-9
    found = jax.jit(lambda *matrices: [inverse(each) for each in matrices])(exchanged, small)
    for matrix, inverted in zip((exchanged, small), found, strict=True):
        np.testing.assert_allclose(matrix @ np.asarray(inverted), np.eye(SIZE), atol=1e-10)
