"""Plots show the numbers that they say: asserted on the artists of the Axes."""

from types import SimpleNamespace

import equinox as eqx
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


@pytest.fixture(scope="module")
def crossed():
    """A quantity and a category, whose codes are 0 and, most often, 2."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(-1, 1, 40), 2.0 * (rng.uniform(size=40) < 0.6)], axis=1)
    y = np.sin(3 * x[:, 0]) + x[:, 1] + 0.2 * rng.normal(size=40)
    kernel = ak.Gaussian(0.3).on(0) * ak.LiRacine(0.2).on(1)
    return ak.fit(
        ak.KernelRegression(kernel),
        x,
        y,
        objective=ak.HoldOut(5),
        optimizer=optax.adam(0.01),
        steps=1,
        key=jax.random.PRNGKey(0),
    )


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


def test_criterion_of_another_objective_is_a_curve_alone(fitted, ax):
    ak.plot.criterion(fitted, np.geomspace(0.05, 5.0, 9), objective=ak.AICc(), ax=ax)
    (curve,) = ax.lines  # the minimum found is of another criterion
    assert curve.get_ydata()[0] == pytest.approx(
        float(ak.AICc()(ak.KernelRegression(ak.Gaussian(0.05)), fitted.x, fitted.y)), rel=1e-4
    )
    assert ax.get_ylabel() == "AICc"
    ak.plot.criterion(fitted, np.geomspace(0.05, 5.0, 9), ax=ax)
    assert ax.get_ylabel() == "LeaveOneOut (squared units of y)"


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


def tube(x, low, high, *, level=0.95, kind="pointwise"):
    """Bands with known limits."""
    x, low, high = (jnp.asarray(of, jnp.float32) for of in (x, low, high))
    return ak.Bands(x[:, None], 0.5 * (low + high), high - low, low, high, level, kind)


def corners(area):
    return {tuple(corner) for corner in area.get_paths()[0].vertices.tolist()}


def test_bands_lie_under_the_curve_the_widest_behind(fitted, ax):
    narrow = tube([2.0, 0.0, 1.0], [-2.0, 0.0, -1.0], [3.0, 1.0, 2.0])
    wide = tube([0.0, 2.0], [-5.0, -6.0], [5.0, 6.0], level=0.9, kind="conformal")
    ak.plot.fit(fitted, [narrow, wide], ax=ax)
    inner, outer = sorted(ax.collections, key=lambda area: -area.get_zorder())
    assert [inner.get_label(), outer.get_label()] == ["95 % pointwise", "90 % conformal"]
    expected = {(0.0, 0.0), (1.0, -1.0), (2.0, -2.0), (0.0, 1.0), (1.0, 2.0), (2.0, 3.0)}
    assert expected <= corners(inner)
    across = inner.get_paths()[0].vertices[:, 0]
    assert np.sum(np.abs(np.diff(across))) == 4.0  # there and back, in the order of x
    assert inner.get_zorder() < lines(ax)["fit"].get_zorder()
    assert inner.get_linestyle() != outer.get_linestyle()
    assert {"fit", "95 % pointwise"} <= {text.get_text() for text in ax.get_legend().get_texts()}


def test_bands_that_cannot_be_drawn(fitted, crossed, ax):
    x = np.zeros(2)
    with pytest.raises(ValueError, match="infinite: there are too few rows"):
        ak.plot.fit(fitted, tube(x, x - np.inf, x + np.inf), ax=ax)
    with pytest.raises(ValueError, match="At most 4 bands"):
        ak.plot.fit(fitted, [tube(x, x, x)] * 5, ax=ax)
    with pytest.raises(ValueError, match=r"over one column; x has 2. Try ak.plot.partial"):
        ak.plot.fit(crossed, tube(x, x, x), ax=ax)
    with pytest.raises(ValueError, match=r"inputs \(2, 1\) and limits \(2, 2\)"):
        ak.plot.fit(fitted, tube(x, np.zeros((2, 2)), np.zeros((2, 2))), ax=ax)


def test_residuals_and_the_noise_about_them(fitted, ax):
    ak.plot.residuals(fitted, ax=ax)
    x, left = lines(ax)["residuals"].get_data()
    np.testing.assert_array_equal(x, fitted.x[:, 0])
    np.testing.assert_allclose(left, fitted.y - fitted(fitted.x), atol=1e-6)
    at, sd = lines(ax)["± local sd of the noise"].get_data()
    np.testing.assert_allclose(sd**2, ak.noise_variance(fitted, at), rtol=1e-5)
    np.testing.assert_array_equal(ax.lines[-1].get_ydata(), -sd)


def test_of_several_columns_residuals_lie_over_fitted_values(crossed, ax, monkeypatch):
    monkeypatch.setattr(
        "attnkernel.plot._diagnostics.noise_variance", lambda fit, at: (at[:, 0] + 2.0) ** 2
    )
    ak.plot.residuals(crossed, ax=ax)
    fitted_values = np.asarray(crossed(crossed.x))
    for name in ("residuals", "± local sd of the noise"):
        np.testing.assert_allclose(lines(ax)[name].get_xdata(), fitted_values, rtol=1e-6)
    assert lines(ax)["± local sd of the noise"].get_linestyle() == "None"
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), -(crossed.x[:, 0] + 2.0), rtol=1e-6)


def test_effective_count_of_labels(fitted, ax):
    ak.plot.effective(fitted, ax=ax)
    at, count = ax.lines[0].get_data()
    np.testing.assert_allclose(count, ak.effective_count(fitted, at), rtol=1e-5)
    np.testing.assert_array_equal(lines(ax)["rows"].get_xdata(), fitted.x[:, 0])
    assert ax.get_ylim()[0] == 0.0


def test_of_several_columns_effective_counts_are_a_histogram(crossed, ax):
    ak.plot.effective(crossed, ax=ax)
    assert sum(bar.get_height() for bar in ax.patches) == len(crossed.x)
    median = np.median(ak.effective_count(crossed, crossed.x))
    assert ax.lines[0].get_xdata()[0] == pytest.approx(float(median))


@pytest.mark.parametrize("order", [0, 1])
def test_weights_are_those_of_the_labels(fitted, ax, order):
    lengthscale = float(fitted.model.kernel.lengthscale)
    model = ak.KernelRegression(ak.Gaussian(lengthscale), order=order)
    fitted = eqx.tree_at(lambda fit: fit.model, fitted, model)
    x = np.asarray(fitted.x[:, 0], float)
    q = x.min()
    ak.plot.weights(fitted, [q, x.max()], ax=ax)
    at, drawn = ax.lines[0].get_data()
    root = np.exp(-0.25 * ((x - q) / lengthscale) ** 2)
    basis = root[:, None] * (x - q)[:, None] ** np.arange(order + 1)
    expected = np.linalg.pinv(basis)[0] * root
    np.testing.assert_allclose(drawn, expected[np.argsort(x)], atol=1e-4)
    np.testing.assert_array_equal(at, np.sort(fitted.x[:, 0]))
    assert (drawn.min() < -1e-3) == (order == 1)
    query, worth = ax.lines[0].get_label().removesuffix(" labels").split(": ")
    assert query == f"q = {q:.4g}"
    np.testing.assert_allclose(float(worth), 1 / np.sum(expected**2), rtol=0.01)


def test_weights_that_cannot_be_drawn(fitted, crossed, ax, monkeypatch):
    with pytest.raises(ValueError, match="one dimension; x has 2 columns"):
        ak.plot.weights(crossed, 0.0, ax=ax)
    with pytest.raises(ValueError, match=r"1 to 5 queries, shape \(m,\); got shape \(6,\)"):
        ak.plot.weights(fitted, np.zeros(6), ax=ax)
    monkeypatch.setattr("attnkernel.plot._weights._MOST", 29)
    with pytest.raises(ValueError, match="at most 29 rows; this fit has 30"):
        ak.plot.weights(fitted, 0.0, ax=ax)


def bands_of_a_unit(fit, x_new, *, level, corrected):
    """In place of `ak.bands`: limits that say what it was asked."""
    low = x_new.sum(axis=1) - (1.0 if corrected else 2.0)
    return tube(x_new[:, 0], low, low + 1.0, level=level)


@pytest.mark.parametrize("order", [0, 2])
def test_partial_along_a_quantity_holds_the_usual_category(crossed, ax, monkeypatch, order):
    monkeypatch.setattr("attnkernel.plot._partial.bands", bands_of_a_unit)
    model = ak.KernelRegression(crossed.model.kernel, order=order)
    crossed = eqx.tree_at(lambda fit: fit.model, crossed, model)
    ak.plot.partial(crossed, 0, ax=ax, level=0.9)
    at, curve = lines(ax)["fit"].get_data()
    rows = np.stack([at, np.full(len(at), 2.0, np.float32)], axis=1)  # 2 is the most frequent
    np.testing.assert_allclose(curve, crossed(rows), rtol=1e-5)
    (area,) = ax.collections
    low = at + 2.0 - (1.0 if order == 0 else 2.0)
    assert set(zip(at.tolist(), low.tolist(), strict=True)) <= corners(area)
    assert area.get_label() == "90 % pointwise"
    assert ax.get_legend().get_title().get_text() == "at x2 = 2"
    assert ax.get_xlabel() == "x1"
    assert ax.get_ylim()[1] < np.max(crossed.y) + 0.1 * np.ptp(crossed.y)


def test_partial_along_categories_is_points_with_bars(crossed, ax, monkeypatch):
    monkeypatch.setattr("attnkernel.plot._partial.bands", bands_of_a_unit)
    ak.plot.partial(crossed, 1, at={0: 0.25}, ax=ax)
    codes, values = lines(ax)["fit"].get_data()
    np.testing.assert_array_equal(codes, [0.0, 2.0])
    rows = np.array([[0.25, 0.0], [0.25, 2.0]], np.float32)
    np.testing.assert_allclose(values, crossed(rows), rtol=1e-5)
    (bars,) = ax.collections
    expected = [[[0.0, -0.75], [0.0, 0.25]], [[2.0, 1.25], [2.0, 2.25]]]
    np.testing.assert_allclose(bars.get_segments(), expected, atol=1e-6)


def test_partial_of_columns_that_are_not_there(crossed, ax):
    with pytest.raises(ValueError, match="column must be from 0 to 1; got 2"):
        ak.plot.partial(crossed, 2, ax=ax)
    with pytest.raises(ValueError, match="Column 1 varies"):
        ak.plot.partial(crossed, 1, at={1: 0.0}, ax=ax)


def test_a_script_draws_once_at_the_start():
    drawn = []
    ak.plot.slide(lambda **at: drawn.append(at), q=(0.5, -1.0, 1.0), heads=(2, 1, 8))
    assert drawn == [{"q": 0.5, "heads": 2}]


@pytest.mark.parametrize("live", [True, False])
def test_a_live_notebook_has_sliders(live, monkeypatch):
    """A front end says with each request whether someone is there to answer."""
    import IPython  # noqa: PLC0415
    import ipywidgets  # noqa: PLC0415

    request = {"content": {"allow_stdin": live}}
    shell = SimpleNamespace(kernel=SimpleNamespace(get_parent=lambda: request))
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    asked, drawn = {}, []
    monkeypatch.setattr(ipywidgets, "interact", lambda draw, **widgets: asked.update(widgets))
    ak.plot.slide(lambda **at: drawn.append(at), q=(0.5, -1.0, 1.0), heads=(2, 1, 8))
    assert bool(drawn) != live
    if live:
        q, heads = asked["q"], asked["heads"]
        assert (q.value, q.min, q.max, q.step) == (0.5, -1.0, 1.0, 0.02)
        assert (heads.value, heads.min, heads.max, heads.step) == (2, 1, 8, 1)
        assert isinstance(heads, ipywidgets.IntSlider)
