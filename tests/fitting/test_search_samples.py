"""Searches that begin on a sample of the rows end at the minima of all rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noisy_sine import leave_one_out, model, sample

import attnkernel as ak
from attnkernel.objectives import Sample


@pytest.mark.slow
def test_search_that_begins_on_a_sample_ends_at_the_minima_of_all_rows(x64):
    """The best is that of the criterion in NumPy on a grid; the slope is 0 at all ends."""
    x, y = map(np.asarray, sample(1100))
    fitted = ak.fit(model(), x, y, objective=ak.LeaveOneOut())
    assert np.all(np.asarray(fitted.starts.converged))
    assert np.max(np.asarray(fitted.starts.steps)) <= 10  # most were taken on the sample

    def criterion(log):
        return leave_one_out(x, y, np.exp(log))

    grid = np.linspace(np.log(0.02), np.log(5.0), 40)
    curve = [criterion(log) for log in grid]
    best = float(fitted.model.kernel.lengthscale_parameter.z)
    np.testing.assert_allclose(fitted.loss, criterion(best), rtol=1e-12)
    assert float(fitted.loss) <= min(curve)
    assert abs(grid[np.argmin(curve)] - best) <= grid[1] - grid[0]
    for end in np.unique(np.asarray(fitted.starts.end.kernel.lengthscale_parameter.z)):
        assert abs(criterion(end + 1e-4) - criterion(end - 1e-4)) < 2e-10  # a slope of 1e-6


@pytest.mark.slow
def test_search_from_one_start_of_many_rows_begins_on_a_sample(x64, monkeypatch):
    n = 2**14
    monkeypatch.setattr("attnkernel.objectives._validation.MIN_ROWS_OF_ONE_START", n)
    begin, *bounds = (
        ak.KernelRegression(ak.kernels.Triweight(half_width), method=ak.methods.Sorted())
        for half_width in (5.0, 0.01, 10.0)
    )
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=n)
    objective = ak.LeaveOneOut()
    fitted = ak.fit(begin, data.x, data.y, objective=objective, bounds=tuple(bounds), starts=1)
    assert np.all(np.asarray(fitted.starts.converged))
    assert fitted.starts.steps[0] <= 6
    np.testing.assert_allclose(fitted.starts.begin.kernel.lengthscale, [5.0], rtol=1e-12)
    log = float(fitted.model.kernel.lengthscale_parameter.z)
    at = np.exp(log + np.array([-0.001, 0.0, 0.001]))
    found = ak.profile(begin, data.x, data.y, at, objective=objective)
    low, here, high = np.asarray(found)
    assert abs(low - high) < 0.01 * (low - 2 * here + high)  # within 5e-6 of a minimum


class Parabola(ak.objectives.Objective):
    """(log ℓ − a)², not a number below `edge`; its sample has a = −1 and no edge."""

    at: jax.Array
    edge: jax.Array
    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        log = model.kernel.lengthscale_parameter.z
        return jnp.where(log > self.edge, 1.0 + (log - self.at) ** 2, jnp.nan)

    def subsample(self, x, y, starts):
        return Sample(x, y, Parabola(jax.device_put(-1.0), jax.device_put(-np.inf)))


@pytest.mark.slow
def test_search_begins_anew_where_the_minima_of_the_sample_diverge(x64):
    bounds = (model(0.1), model(10.0))
    objective = Parabola(jax.device_put(0.5), jax.device_put(-0.5))
    fitted = ak.fit(model(), *sample(), objective=objective, bounds=bounds)
    np.testing.assert_allclose(fitted.model.kernel.lengthscale_parameter.z, 0.5, rtol=1e-6)
    np.testing.assert_allclose(
        np.asarray(fitted.starts.begin.kernel.lengthscale_parameter.z)[0], 0.0, atol=1e-12
    )
    assert np.any(np.asarray(fitted.starts.diverged))  # those that began below the edge


def test_starts_continue_from_the_minima_of_the_sample(x64):
    bounds = (model(0.1), model(10.0))
    seen = []
    fitted = ak.fit(
        model(),
        *sample(),
        objective=Parabola(jax.device_put(0.5), jax.device_put(-np.inf)),
        bounds=bounds,
        starts=4,
        record=lambda model: {"log": model.kernel.lengthscale_parameter.z},
        callback=lambda done, history: seen.append(history["log"]),
    )
    np.testing.assert_allclose(seen[0][:, 0], -1.0, atol=1e-2)  # all four share one
    np.testing.assert_allclose(fitted.starts.end.kernel.lengthscale_parameter.z, 0.5, rtol=1e-6)
    assert len(fitted.minima()) == 1
    # an end is no minimum if a Newton step from it is longer than the tolerance
    end = lambda fit: fit.starts.end.kernel.lengthscale_parameter.z  # noqa: E731
    unfinished = eqx.tree_at(end, fitted, jax.device_put(np.array([0.49, 0.52, 0.5004, 0.6])))
    assert [float(m.kernel.lengthscale_parameter.z) for m, _ in unfinished.minima()] == [0.5004]
