"""Plots show the right numbers and dates: asserted on the artists of the Axes."""

import dataclasses
from datetime import datetime
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from known_fits import known_fit
from least_squares import local_polynomial
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from refusals import assert_raises

import attnkernel as ak
from attnkernel.plot._data import DateColumn, date_column

mpl.use("Agg")


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(scope="module")
def fitted():
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=30)
    return ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=ak.LeaveOneOut())


@pytest.fixture(scope="module")
def fit_with_category():
    """A numeric column and a category, whose codes are 0 and, most often, 2."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(-1, 1, 40), 2.0 * (rng.uniform(size=40) < 0.6)], axis=1)
    y = np.sin(3 * x[:, 0]) + x[:, 1] + 0.2 * rng.normal(size=40)
    kernel = ak.Gaussian(0.3).on(0) * ak.kernels.LiRacine(0.2).on(1)
    return known_fit(ak.KernelRegression(kernel), x, y)


def on_device(*arrays):
    """Arrays of JAX in float32, which compile no program."""
    return jax.device_put([np.asarray(array, np.float32) for array in arrays])


def lines(ax):
    return {line.get_label(): line for line in ax.lines}


def test_fit_draws_points_and_curve(fitted, ax):
    assert ak.plot.fit(fitted, ax=ax) is ax
    x, y = lines(ax)["observations"].get_data()
    np.testing.assert_array_equal(x, np.asarray(fitted.x)[:, 0])
    np.testing.assert_array_equal(y, fitted.y)
    x, y = lines(ax)["fit"].get_data()
    assert len(x) == 201
    np.testing.assert_allclose(y, fitted(x), rtol=1e-6)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y")


def test_fit_of_two_inputs_shows_predicted_against_observed(fitted, ax):
    rng = np.random.default_rng(0)
    x, y = on_device(rng.normal(size=(12, 2)), rng.normal(size=12))
    model = ak.KernelRegression(ak.Gaussian(1.0))
    objective = ak.LeaveOneOut(weights=jax.device_put(np.arange(1.0, 13.0)))
    result = dataclasses.replace(fitted, model=model, x=x, y=y, objective=objective)
    ak.plot.fit(result, ax=ax)
    predicted, observed = lines(ax)["observations"].get_data()
    expected = model(x, x, y, prior=ak.priors.ExcludeSelf(), weights=objective.weights)
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
    assert ax.get_title() == f"smallest leave-one-out error at ℓ = {x[0]:.4g}"


def test_criterion_of_another_objective_has_no_mark(fitted, ax):
    ak.plot.criterion(fitted, np.geomspace(0.05, 5.0, 9), objective=ak.AICc(), ax=ax)
    (curve,) = ax.lines
    x, y = np.asarray(fitted.x, float), np.asarray(fitted.y, float)
    hat = local_polynomial(x, x, 0.5)
    n, trace = len(y), np.trace(hat)
    expected = np.log(np.mean((y - hat @ y) ** 2)) + (1 + trace / n) / (1 - (trace + 2) / n)
    assert curve.get_ydata()[4] == pytest.approx(expected, rel=1e-3)  # at 0.5
    assert (ax.get_ylabel(), ax.get_title()) == ("AICc", "")
    ak.plot.criterion(fitted, np.array([0.1, 0.2]), objective=ak.GCV(), ax=ax)
    assert ax.get_ylabel() == "GCV (squared units of y)"


def test_convention_of_the_lengthscale_rescales_the_axis_of_the_criterion(fitted, ax):
    ak.plot.criterion(fitted, np.array([0.1, 0.2]), ax=ax, convention="unhalved")
    curve, mark = ax.lines
    np.testing.assert_allclose(curve.get_xdata(), np.sqrt(2) * np.array([0.1, 0.2]), rtol=1e-6)
    assert (ax.get_xlabel(), "at √2 ℓ = " in ax.get_title()) == ("√2 ℓ (units of x)", True)
    expected = float(fitted.model.kernel.lengthscale) * np.sqrt(2)
    assert mark.get_xdata()[0] == pytest.approx(expected, rel=1e-6)


def test_data_with_a_known_mean_show_it(ax):
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=30)
    ak.plot.data(data, ax=ax)
    np.testing.assert_array_equal(lines(ax)["true mean f(x)"].get_ydata(), data.mean)
    (band,) = ax.collections
    edges = band.get_paths()[0].vertices[:, 1]
    mean, sd = np.asarray(data.mean), np.asarray(data.sd)
    assert np.min(edges) == pytest.approx(np.min(mean - 2 * sd), rel=1e-6)
    assert np.max(edges) == pytest.approx(np.max(mean + 2 * sd), rel=1e-6)


def bands_between(low, high, x, *, level=0.95, kind="pointwise"):
    """Bands with known limits."""
    x, low, high = (np.asarray(side, np.float32) for side in (x, low, high))
    with np.errstate(invalid="ignore"):  # of infinite limits
        columns = on_device(x[:, None], 0.5 * (low + high), high - low, low, high)
    return ak.inference.Bands(*columns, level, kind)


def corners(area):
    return {tuple(corner) for corner in area.get_paths()[0].vertices.tolist()}


def test_bands_are_drawn_behind_the_curve_and_wider_ones_behind_narrower(fitted, ax):
    narrow = bands_between([-2.0, 0.0, -1.0], [3.0, 1.0, 2.0], [2.0, 0.0, 1.0])
    wide = bands_between([-5.0, -6.0], [5.0, 6.0], [0.0, 2.0], level=0.9, kind="conformal")
    ak.plot.fit(fitted, [narrow, wide], ax=ax)
    inner, outer = sorted(ax.collections, key=lambda area: -area.get_zorder())
    labels = [area.get_label() for area in (inner, outer)]
    assert labels == ["95 % pointwise band", "90 % conformal interval"]
    expected = {(0.0, 0.0), (1.0, -1.0), (2.0, -2.0), (0.0, 1.0), (1.0, 2.0), (2.0, 3.0)}
    assert expected <= corners(inner)
    across = inner.get_paths()[0].vertices[:, 0]
    assert np.sum(np.abs(np.diff(across))) == 4.0  # there and back, in the order of x
    assert inner.get_zorder() < lines(ax)["fit"].get_zorder()
    assert inner.get_linestyle() != outer.get_linestyle()
    in_legend = {text.get_text() for text in ax.get_legend().get_texts()}
    assert {"fit", "95 % pointwise band"} <= in_legend


def test_what_cannot_be_drawn_is_refused(fitted, fit_with_category, ax, monkeypatch):
    x, y = on_device(np.arange(12.0).reshape(6, 2), np.arange(6.0))
    model = ak.KernelRegression(ak.Gaussian(np.ones(2)))
    several = dataclasses.replace(fitted, model=model, x=x, y=y)
    kernels = ak.kernels.RationalQuadratic(ak.fixed(0.3)), ak.DotProduct()
    fixed, dots = (dataclasses.replace(fitted, model=ak.KernelRegression(k)) for k in kernels)
    zero, square = np.zeros(2), np.zeros((2, 2))
    infinite = bands_between(zero - np.inf, zero + np.inf, zero)
    for message, draw, *arguments in (
        ("one lengthscale", ak.plot.criterion, several),
        ("one lengthscale", ak.plot.criterion, dots),
        (r"lengthscale is fixed.*pass lengthscales=", ak.plot.criterion, fixed),
        (r"fit\.member\(i\)", ak.plot.fit, dataclasses.replace(fitted, loss=y)),
        (r"infinite.*rows", ak.plot.fit, fitted, infinite),
        ("At most 4 bands", ak.plot.fit, fitted, [infinite] * 5),
        (r"x has 2.*ak\.plot\.partial", ak.plot.fit, fit_with_category, infinite),
        (r"\(2, 1\).*\(2, 2\)", ak.plot.fit, fitted, bands_between(square, square, zero)),
        ("x has 2 columns", ak.plot.weights, fit_with_category, 0.0),
        (r"1 to 5 queries.*\(6,\)", ak.plot.weights, fitted, np.zeros(6)),
        (r"column.*0 to 1; got 2", ak.plot.partial, fit_with_category, 2),
    ):
        assert_raises(message, draw, *arguments, ax=ax)
    assert_raises("Column 1 varies", ak.plot.partial, fit_with_category, 1, at={1: 0.0}, ax=ax)
    monkeypatch.setattr("attnkernel.plot._diagnostics.MAX_ROWS", 29)
    assert_raises(r"29 rows.*30", ak.plot.weights, fitted, 0.0, ax=ax)


def test_no_curve_is_drawn_over_categories(fitted, ax):
    codes = np.arange(30) % 3
    x, y = on_device(codes[:, None], codes**2)
    kernel = ak.kernels.AitchisonAitken(0.2, categories=3)
    for model in (ak.KernelRegression(kernel), ak.LocalQuantile(kernel)):
        fit = dataclasses.replace(fitted, model=model, x=x, y=y)
        assert_raises(r"categories.*ak\.plot\.partial", ak.plot.fit, fit, ax=ax)
    ak.plot.partial(fit, 0, band=False, ax=ax)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.0, 1.0, 4.0], atol=1e-6)


def test_residuals_are_drawn_with_the_noise(fitted, ax):
    ak.plot.residuals(fitted, ax=ax)
    x, left = lines(ax)["residuals"].get_data()
    np.testing.assert_array_equal(x, np.asarray(fitted.x)[:, 0])
    np.testing.assert_allclose(left, np.asarray(fitted.y) - np.asarray(fitted(fitted.x)), atol=1e-6)
    at, sd = lines(ax)["± local sd of the noise"].get_data()
    np.testing.assert_allclose(sd**2, ak.noise_variance(fitted, at), rtol=1e-5)
    np.testing.assert_array_equal(ax.lines[-1].get_ydata(), -sd)


def test_residuals_of_several_columns_are_drawn_over_fitted_values(
    fit_with_category, ax, monkeypatch
):
    place = "attnkernel.plot._diagnostics.noise_variance"
    monkeypatch.setattr(place, lambda fit, at: (at[:, 0] + 2.0) ** 2)
    ak.plot.residuals(fit_with_category, ax=ax)
    x = fit_with_category.x
    fitted_values = np.asarray(fit_with_category(x))
    for name in ("residuals", "± local sd of the noise"):
        np.testing.assert_allclose(lines(ax)[name].get_xdata(), fitted_values, rtol=1e-6)
    assert lines(ax)["± local sd of the noise"].get_linestyle() == "None"
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), -(np.asarray(x)[:, 0] + 2.0), rtol=1e-6)


def test_effective_count_is_drawn_over_one_column(fitted, ax):
    ak.plot.effective_count(fitted, ax=ax)
    at, count = ax.lines[0].get_data()
    np.testing.assert_allclose(count, ak.inference.effective_count(fitted, at), rtol=1e-5)
    np.testing.assert_array_equal(lines(ax)["rows"].get_xdata(), np.asarray(fitted.x)[:, 0])
    assert ax.get_ylim()[0] == 0.0


@pytest.mark.parametrize("order", [0, 1])
def test_weights_equal_those_of_least_squares(fitted, ax, order):
    lengthscale = float(fitted.model.kernel.lengthscale)
    model = ak.KernelRegression(ak.Gaussian(lengthscale), order=order)
    fitted = eqx.tree_at(lambda fit: fit.model, fitted, model)
    x = np.asarray(fitted.x, float)[:, 0]
    q = x.min()
    ak.plot.weights(fitted, [q, x.max()], ax=ax)
    at, drawn = ax.lines[0].get_data()
    expected = local_polynomial([q], x, lengthscale, order)[0]
    np.testing.assert_allclose(drawn, expected[np.argsort(x)], atol=1e-4)
    np.testing.assert_array_equal(at, np.sort(np.asarray(fitted.x)[:, 0]))
    assert (drawn.min() < -1e-3) == (order == 1)
    query, worth = ax.lines[0].get_label().removesuffix(" labels").split(": ")
    assert query == f"q = {q:.4g}"
    np.testing.assert_allclose(float(worth), 1 / np.sum(expected**2), rtol=0.01)


def bands_of_width_one(fit, x_new, *, level, corrected):
    """In place of `ak.bands`: the limits tell its arguments."""
    low = x_new.sum(axis=1) - (1.0 if corrected else 2.0)
    return bands_between(low, low + 1.0, x_new[:, 0], level=level)


@pytest.mark.parametrize("order", [0, 2])
def test_partial_along_a_number_fixes_the_most_frequent_category(
    fit_with_category, ax, monkeypatch, order
):
    monkeypatch.setattr("attnkernel.plot._partial.bands", bands_of_width_one)
    model = ak.KernelRegression(fit_with_category.model.kernel, order=order)
    fit_with_category = eqx.tree_at(lambda fit: fit.model, fit_with_category, model)
    ak.plot.partial(fit_with_category, 0, ax=ax, level=0.9)
    at, curve = lines(ax)["fit"].get_data()
    rows = np.stack([at, np.full(len(at), 2.0, np.float32)], axis=1)  # 2 is the most frequent
    np.testing.assert_allclose(curve, fit_with_category(rows), rtol=1e-5)
    (area,) = ax.collections
    low = at + 2.0 - (1.0 if order == 0 else 2.0)
    assert set(zip(at.tolist(), low.tolist(), strict=True)) <= corners(area)
    assert area.get_label() == "90 % pointwise band"
    assert ax.get_legend().get_title().get_text() == "at x2 = 2"
    assert ax.get_xlabel() == "x1"
    y = np.asarray(fit_with_category.y)
    assert ax.get_ylim()[1] < np.max(y) + 0.1 * np.ptp(y)


@pytest.mark.parametrize("at", [{0: 0.25}, None], ids=["at 0.25", "at the median"])
def test_partial_along_a_category_is_points_with_error_bars(fit_with_category, ax, monkeypatch, at):
    monkeypatch.setattr("attnkernel.plot._partial.bands", bands_of_width_one)
    ak.plot.partial(fit_with_category, 1, at=at, ax=ax)
    first = np.asarray(fit_with_category.x)[:, 0]
    held = 0.25 if at else np.median(first)
    assert abs(held - np.mean(first)) > 0.01
    codes, values = lines(ax)["fit"].get_data()
    np.testing.assert_array_equal(codes, [0.0, 2.0])
    rows = np.array([[held, 0.0], [held, 2.0]], np.float32)
    np.testing.assert_allclose(values, fit_with_category(rows), rtol=1e-5)
    (bars,) = ax.collections
    low = held - 1.0
    expected = [[[0.0, low], [0.0, low + 1.0]], [[2.0, low + 2.0], [2.0, low + 3.0]]]
    np.testing.assert_allclose(bars.get_segments(), expected, atol=1e-6)


@pytest.mark.parametrize("number", [1, 2])
def test_show_in_a_script_without_a_display_saves_and_says_where(
    number, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    plt.close("all")
    for _ in range(number):
        plt.subplots()
    ak.plot.show("labels")
    paths = sorted(tmp_path.rglob("*.png"))
    assert capsys.readouterr().out == "".join(f"saved {path}\n" for path in paths)
    assert [path.stem for path in paths] == [["labels"], ["labels_1", "labels_2"]][number - 1]
    assert plt.get_fignums() == []


def test_show_with_a_display_or_in_jupyter_opens_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = []
    monkeypatch.setattr(plt, "get_backend", lambda: "inline")
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.get_fignums()))
    figure, _ = plt.subplots()
    ak.plot.show("labels")
    assert shown == [[figure.number]]
    assert list(tmp_path.iterdir()) == []
    plt.close("all")


@pytest.mark.parametrize("live", [True, False])
def test_interact_in_a_live_notebook_has_sliders(live, monkeypatch):
    """Live is a front end that allows input, as it says with each request."""
    import IPython  # noqa: PLC0415
    import ipywidgets  # noqa: PLC0415

    request = {"content": {"allow_stdin": live}}
    shell = SimpleNamespace(kernel=SimpleNamespace(get_parent=lambda: request))
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    asked, drawn = {}, []
    monkeypatch.setattr(ipywidgets, "interact", lambda draw, **widgets: asked.update(widgets))
    ak.plot.interact(lambda **at: drawn.append(at), q=(0.5, -1.0, 1.0), heads=(2, 1, 8))
    assert bool(drawn) != live
    if live:
        q, heads = asked["q"], asked["heads"]
        assert (q.value, q.min, q.max, q.step) == (0.5, -1.0, 1.0, 0.02)
        assert (heads.value, heads.min, heads.max, heads.step) == (2, 1, 8, 1)
        assert isinstance(heads, ipywidgets.IntSlider)


@pytest.fixture(scope="module")
def fit():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (40, 2))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=40)
    model = ak.KernelRegression(ak.Gaussian(np.array([0.5, 1.0])), order=1)
    return known_fit(model, x, y).named(["age", "height"], "cost in $")


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
    band = ak.bands(fit, both, derivative=(1, 0), corrected=False, noise="constant")
    assert_raises("2 columns that vary", ak.plot.band, band)
    along = dataclasses.replace(band, x=jax.device_put(np.asarray(band.x)[:, :1]), derivative=(1,))
    one_column = dataclasses.replace(fit, x=jax.device_put(np.asarray(fit.x)[:, :1]), x_names=None)
    with pytest.raises(ValueError, match=r"of the first derivative.*ak\.plot\.band\(band\)"):
        ak.plot.fit(one_column, along)


NAME = "day (days since 2020-05-01)"


@pytest.fixture(scope="module")
def fits():
    """A fit of one column of days, and one of days and sizes."""
    day = np.linspace(0.0, 100.0, 24)
    one = known_fit(ak.KernelRegression(ak.Gaussian(20.0)), day, np.sin(day))
    sizes = np.tile([0.0, 1.0], 12)
    two = dataclasses.replace(one, x=jnp.asarray(np.c_[day, sizes].astype(np.float32)))
    return one.named([NAME], "width"), two.named([NAME, "size"], "width")


def test_an_axis_of_days_has_dates(fits):
    one, two = fits
    for draw in (
        lambda ax: ak.plot.fit(one, ax=ax),
        lambda ax: ak.plot.residuals(one, ax=ax),
        lambda ax: ak.plot.effective_count(one, ax=ax),
        lambda ax: ak.plot.partial(two, "day (days since 2020-05-01)", band=False, ax=ax),
    ):
        ax = draw(Figure().subplots())
        assert ax.get_xlabel() == "day"
        texts = [text.get_text() for text in ax.get_xticklabels()]
        assert "2020-06-01" in texts
        assert 3 <= len(texts) <= 6
        assert ax.get_xticks()[texts.index("2020-06-01")] == pytest.approx(31.0)
        low, high = ax.get_xlim()
        assert low <= min(ax.get_xticks()) <= max(ax.get_xticks()) <= high


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0.0, "2020-05-01"),
        (0.5, "2020-05-01 12:00"),
        (1.0 / 86400.0, "2020-05-01 00:00:01"),
        (31.0 - 1e-9, "2020-06-01"),
    ],
)
def test_days_as_text(days, text):
    assert DateColumn("day", datetime(2020, 5, 1)).text(days) == text


def test_other_units_are_numbers(fits):
    for name in ("day", "days since 2020-05-01", "age (days since 2020-13-01)", "age (years)"):
        assert date_column(fits[0].named([name], "width"), 0) is None


def test_discs_of_votes_have_the_weights_as_areas(fitted, fit_with_category, ax):
    lengthscale = float(fitted.model.kernel.lengthscale)
    model = ak.KernelRegression(ak.Gaussian(lengthscale), order=1)
    fitted = eqx.tree_at(lambda fit: fit.model, fitted, model)
    x, y = np.asarray(fitted.x, float)[:, 0], np.asarray(fitted.y)
    expected = local_polynomial([x.min()], x, lengthscale, 1)[0]
    rows = np.argsort(-np.abs(expected))[:3]
    ak.plot.votes(fitted, x.min(), k_largest=3, ax=ax)
    (discs,) = ax.collections
    np.testing.assert_allclose(discs.get_offsets(), np.stack([x, y], axis=1)[rows], rtol=1e-6)
    areas = discs.get_sizes() / discs.get_sizes()[0]
    np.testing.assert_allclose(areas, np.abs(expected / expected[rows[0]])[rows], atol=1e-3)
    colours = [to_hex(colour) for colour in discs.get_facecolors()]
    expected_colours = np.where(expected[rows] < 0, ak.plot.ORANGE, ak.plot.BLUE)
    assert colours == [colour.lower() for colour in expected_colours]
    title, total = ax.get_title().rsplit(" ", 1)
    assert title.endswith("\nthe 3 largest weights sum to")
    np.testing.assert_allclose(float(total), expected[rows].sum(), rtol=0.01)
    (of_prediction,) = ax.lines[1].get_ydata()
    np.testing.assert_allclose(of_prediction, expected @ y, rtol=1e-4)
    assert_raises("x_new must be one input; got 2", ak.plot.votes, fitted, [[0.0], [1.0]], ax=ax)
    assert_raises(
        "'1'|column must be one of numbers", ak.plot.votes, fit_with_category, [0.0, 0.0], column=1
    )
