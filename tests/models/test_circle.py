"""Local polynomials around a circle: k − q is the shortest way, so that both ends agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_fits import known_fit

import attnkernel as ak

pytestmark = pytest.mark.usefixtures("x64")
HOURS = np.random.default_rng(0).uniform(0.0, 72.0, 53)
YEARS = np.random.default_rng(1).uniform(0.0, 5.0, 53)
LABELS = np.cos(np.pi * HOURS / 12) + YEARS
MIDNIGHTS = np.array([0.0, 24.0, 12.0, 36.0])
DAY = ak.Periodic(ak.fixed(0.4), period=24.0)


def hat_rows(q, k, order, term):
    """The weights of labels in a coefficient of the polynomial of hours, by least squares."""
    way = (k - q[:, None] + 12.0) % 24.0 - 12.0
    root = np.exp(-((np.sin(np.pi * way / 24.0) / 0.4) ** 2))
    return np.linalg.pinv(root[..., None] * way[..., None] ** np.arange(order + 1))[:, term] * root


def test_polynomials_are_of_the_shortest_way():
    for order in (1, 2):
        local = ak.KernelRegression(DAY, order=order).local_fit(MIDNIGHTS, HOURS, LABELS)
        coefficients = np.asarray(local.coefficients)
        for term in range(order + 1):
            expected = hat_rows(MIDNIGHTS, HOURS, order, term) @ LABELS
            np.testing.assert_allclose(coefficients[:, term, 0], expected, rtol=1e-8)
    fit = known_fit(ak.KernelRegression(ak.Periodic(0.4, 24.0)), HOURS, LABELS)
    upper = np.asarray(ak.bands(fit, MIDNIGHTS, derivative=1).upper)
    np.testing.assert_allclose(upper[::2], upper[1::2], rtol=1e-9)


KERNEL = ak.Gaussian(1.0).on(0) * DAY.on(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        ak.RobustRegression(ak.KernelRegression(KERNEL, order=1)),
        ak.LocalQuantile(KERNEL),
        ak.LocalLikelihood(KERNEL, family=ak.families.Poisson(), order=1),
        ak.AdditiveRegression([ak.Gaussian(1.0), DAY]),
    ],
)
def test_both_ends_of_the_circle_agree(model):
    at = np.stack([np.full(4, 2.0), MIDNIGHTS], axis=1)
    found = np.asarray(model(at, np.stack([YEARS, HOURS], axis=1), np.exp(LABELS)))
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)
    assert found[0] > 2.0 * found[2]


def test_periods_are_those_of_the_parts():
    week = ak.Periodic(0.5, 7.0)
    kernel = ak.kernels.SoftCapped(ak.kernels.Rescaled(week, 2.0).on(2) * DAY.on(0), 50.0)
    assert ak.kernels.periods(kernel * ak.Gaussian(0.3).on(1), 3) == {0: 24.0, 1: None, 2: 14.0}
    assert ak.kernels.periods(DAY * ak.Gaussian(9.0), 1) == {0: None}  # a trend: no circle
    assert ak.kernels.periods(ak.kernels.Projected(DAY, jnp.sin, jnp.sin), 1) == {0: None}


def test_a_period_is_trained_where_it_is_asked():
    both = ak.Periodic(0.5, 24.0), ak.Periodic(0.5, 24.0, train_period=True)
    assert [len(jax.tree.leaves(kernel)) for kernel in both] == [1, 2]
    log_pair = lambda p: ak.Periodic(0.5, p).log_pair(jnp.ones(1), jnp.zeros(1))  # noqa: E731
    slope = jax.jit(jax.grad(log_pair))(24.0)
    assert slope > 0
