"""A band drawn alone: its centre, its limits, the zero line of a derivative, and its labels."""

import dataclasses

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest

import attnkernel as ak


@pytest.fixture(scope="module")
def fit():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (40, 2))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=40)
    model = ak.KernelRegression(ak.Gaussian(np.array([0.5, 1.0])), order=1)
    found = ak.fit(model, x, y, optimizer=optax.sgd(0.0), steps=1)
    return found.named(["age", "height"], "cost in $")


@pytest.mark.slow
def test_a_band_of_a_derivative_along_one_column(fit):
    at = np.stack([np.linspace(0.8, -0.8, 9), np.zeros(9)], axis=1)
    band = ak.bands(fit, at, derivative=(1, 0), corrected=False)
    ax = ak.plot.band(band)
    zero, centre = ax.lines
    np.testing.assert_array_equal(zero.get_ydata(), [0.0, 0.0])
    np.testing.assert_array_equal(centre.get_xdata(), np.asarray(band.x)[::-1, 0])
    np.testing.assert_array_equal(centre.get_ydata(), np.asarray(band.centre)[::-1])
    assert ax.get_xlabel() == "age"
    assert ax.get_ylabel() == r"first derivative along age of cost in \$"
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["estimate", "95 % pointwise band, first derivative along age"]
    plt.close("all")


def test_bands_that_are_refused(fit):
    both = np.linspace([-1.0, -1.0], [1.0, 1.0], 9)
    band = ak.bands(fit, both, derivative=(1, 0), corrected=False)
    with pytest.raises(ValueError, match="2 columns that vary"):
        ak.plot.band(band)
    along = dataclasses.replace(band, x=jax.device_put(np.asarray(band.x)[:, :1]), derivative=(1,))
    one_column = dataclasses.replace(fit, x=jax.device_put(np.asarray(fit.x)[:, :1]), x_names=None)
    with pytest.raises(ValueError, match=r"of the first derivative.*ak\.plot\.band\(band\)"):
        ak.plot.fit(one_column, along)
