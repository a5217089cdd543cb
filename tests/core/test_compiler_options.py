"""Options of XLA's compiler change no result; without optimisations none is set."""

import jax
import numpy as np
import pytest

import attnkernel as ak
from attnkernel._core.compilation import can_use_options

X = np.linspace(0.0, 1.0, 30) ** 1.5
Y = np.sin(6.0 * X) + 0.1 * np.cos(70.0 * X)


def results():
    """Results of a fit and of its predictions, which are compiled with options if any is."""
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(0.2)), X, Y, objective=ak.LeaveOneOut(), starts=1)
    return fit.loss, fit.model.kernel.lengthscale, fit(X[::5])


@pytest.mark.slow
def test_options_change_no_result(x64, request):
    assert not can_use_options(jax.device_put(X))
    expected = jax.device_get(results())
    request.getfixturevalue("optimised")
    assert can_use_options(jax.device_put(X)) == (jax.default_backend() == "cpu")
    for found, without in zip(results(), expected, strict=True):
        np.testing.assert_allclose(found, without, rtol=1e-5)
