"""Fits with nearest-neighbour lengthscales, their degrees of freedom and GCV equal R's locfit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimates import fitted_and_leverage, prediction_variance

import attnkernel as ak
from attnkernel.data import load


@pytest.mark.slow
def test_nearest_neighbour_bandwidths_equal_those_of_locfit(x64):
    """locfit(NOx ~ lp(E, nn = 0.5, deg = 2)) on ethanol, evaluated at the data.

    By least squares written out our numbers are right to 1e-12: locfit's own are to 1e-8.
    """
    data = load("ethanol")
    model = ak.KernelRegression(ak.NearestNeighbours(ak.kernels.Tricube(1.0), 0.5), order=2)

    @jax.jit
    def computed(x, y):
        return (
            fitted_and_leverage(model, x, y),
            prediction_variance(model, x, x, jnp.ones(88)),
            ak.GCV()(model, x, y),
        )

    (fitted, hat), squares, gcv = computed(data.x, data.y)
    expected = [3.724563838, 2.228357873, 1.390548111, 2.86848759, 0.7439582319]
    np.testing.assert_allclose(fitted[:5], expected, rtol=2e-8)
    np.testing.assert_allclose(jnp.sum(hat), 6.8892386828, rtol=1e-8)
    np.testing.assert_allclose(jnp.sum(squares), 6.3565850885, rtol=1e-8)
    np.testing.assert_allclose(gcv, 0.1195527313, rtol=1e-8)
