"""Plots show the numbers that they say: asserted on the artists of the Axes."""

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
import pytest
from matplotlib.figure import Figure

import attnkernel as ak

mpl.use("Agg")


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(scope="module")
def fitted():
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=30)
    return ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=ak.LeaveOneOut())


def lines(ax):
    return {line.get_label(): line for line in ax.lines}


def test_fit_draws_points_and_curve(fitted, ax):
    assert ak.plot.fit(fitted, ax=ax) is ax
    x, y = lines(ax)["observations"].get_data()
    np.testing.assert_array_equal(x, fitted.x[:, 0])
    np.testing.assert_array_equal(y, fitted.y)
    x, y = lines(ax)["fit"].get_data()
    assert len(x) == 201
    np.testing.assert_allclose(y, fitted(x), rtol=1e-6)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y")


def test_fit_makes_its_own_axes(fitted):
    axes = ak.plot.fit(fitted)
    assert len(axes.lines) == 2
    mpl.pyplot.close(axes.figure)


def test_fit_of_two_inputs_shows_predicted_against_observed(ax):
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(12, 2))), jnp.asarray(rng.normal(size=12))
    result = ak.fit(
        ak.KernelRegression(ak.Gaussian(1.0)),
        x,
        y,
        objective=ak.HoldOut(3),
        optimizer=optax.adam(0.1),
        steps=2,
        key=jax.random.PRNGKey(0),
    )
    ak.plot.fit(result, ax=ax)
    predicted, observed = lines(ax)["observations"].get_data()
    expected = result.model(x, x, y, prior=ak.priors.LeaveOneOut())
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)
    np.testing.assert_array_equal(observed, result.y)
    assert ax.get_xlabel() == "leave-one-out prediction"


def test_criterion_marks_the_minimum(fitted, ax):
    ak.plot.criterion(fitted, np.geomspace(0.05, 5.0, 50), ax=ax)
    curve, mark = ax.lines
    x, y = mark.get_data()
    assert x[0] == pytest.approx(float(fitted.model.kernel.lengthscale))
    assert y[0] <= np.min(curve.get_ydata()) * (1 + 1e-6)
    assert ax.get_xscale() == "log"
    assert "ℓ" in ax.get_xlabel()


def test_criterion_in_another_convention_moves_the_axis_only(fitted, ax):
    ak.plot.criterion(fitted, np.array([0.1, 0.2]), ax=ax, convention="unhalved")
    curve, mark = ax.lines
    np.testing.assert_allclose(curve.get_xdata(), np.sqrt(2) * np.array([0.1, 0.2]), rtol=1e-6)
    assert mark.get_xdata()[0] == pytest.approx(
        float(fitted.model.kernel.lengthscale) * np.sqrt(2), rel=1e-6
    )


def test_criterion_of_several_lengthscales_is_refused(ax):
    x = jnp.arange(12.0).reshape(6, 2)
    result = ak.fit(
        ak.KernelRegression(ak.Gaussian(jnp.ones(2))),
        x,
        x[:, 0],
        objective=ak.HoldOut(2),
        optimizer=optax.adam(0.1),
        steps=1,
        key=jax.random.PRNGKey(0),
    )
    with pytest.raises(ValueError, match="over one lengthscale"):
        ak.plot.criterion(result, ax=ax)


def test_data_shows_the_truth_where_it_is_known(ax):
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=30)
    ak.plot.data(data, ax=ax)
    np.testing.assert_array_equal(lines(ax)["true mean f(x)"].get_ydata(), data.mean)
    (band,) = ax.collections
    low, high = (
        np.min(band.get_paths()[0].vertices[:, 1]),
        np.max(band.get_paths()[0].vertices[:, 1]),
    )
    assert low == pytest.approx(float(jnp.min(data.mean - 2 * data.sd)), rel=1e-6)
    assert high == pytest.approx(float(jnp.max(data.mean + 2 * data.sd)), rel=1e-6)


def test_real_data_have_no_truth_to_show(ax):
    data = ak.data.load("mcycle")
    ak.plot.data(data, ax=ax)
    assert list(lines(ax)) == ["observations"]
    assert ax.get_xlabel() == "time after impact (ms)"


def test_a_batch_of_fits_is_not_one_plot(ax):
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=30)
    many = ak.fit_many(
        ak.KernelRegression(ak.Gaussian(1.0)),
        data.x,
        data.y,
        objective=ak.HoldOut(3),
        in_axes=(None, None, None),
        optimizer=optax.adam(0.1),
        steps=2,
        key=jax.random.split(jax.random.PRNGKey(0), 2),
    )
    with pytest.raises(ValueError, match=r"fit.member\(i\)"):
        ak.plot.fit(many, ax=ax)
