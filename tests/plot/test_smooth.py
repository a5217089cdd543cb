"""Fits and bands inside the plots of seaborn.objects and plotnine."""

import sys

import numpy as np
import pandas
import pytest
from refusals import assert_raises

import attnkernel as ak

so = pytest.importorskip("seaborn.objects")
plotnine = pytest.importorskip("plotnine")
# seaborn 0.13 calls pandas as before version 3
pytestmark = pytest.mark.filterwarnings("ignore:The copy keyword is deprecated")

N, MODEL = 40, ak.KernelRegression(ak.Gaussian(0.3), order=1)


@pytest.fixture(scope="module")
def frame():
    """Two groups of a curve, one of them shifted."""
    rng = np.random.default_rng(0)
    x = np.tile(np.sort(rng.uniform(0.0, 3.0, N)), 2)
    group = np.repeat(["low", "high"], N)
    y = np.sin(2 * x) + 2.0 * (group == "high") + 0.2 * rng.normal(size=2 * N)
    return pandas.DataFrame({"x": x, "y": y, "g": group})


@pytest.fixture(scope="module")
def expected(frame):
    """By group: 50 inputs, the fit, and its 90 % band there."""
    found = {}
    for name, rows in frame.groupby("g"):
        at = ak.plot.grid(rows["x"].to_numpy(), 50)
        fit = ak.fit(MODEL, rows["x"].to_numpy(), rows["y"].to_numpy())
        band = ak.bands(fit, at, level=0.9)
        found[name] = [np.asarray(each) for each in (at, fit(at), band.lower, band.upper)]
    return found


def assert_drawn(line, area, at, fit, lower, upper):
    np.testing.assert_allclose(line.get_xydata(), np.stack([at, fit], axis=1), atol=1e-4)
    (outline,) = area.get_paths() if hasattr(area, "get_paths") else [area.get_path()]
    for limit in (lower, upper):
        gaps = outline.vertices[:, None] - np.stack([at, limit], axis=1)
        assert np.max(np.min(np.abs(gaps).max(axis=2), axis=0)) < 1e-4


def test_seaborn_draws_a_line_and_a_band_for_each_group(frame, expected):
    options = {"model": MODEL, "level": 0.9, "gridsize": 50}
    plot = so.Plot(frame, "x", "y", color="g").add(so.Line(), ak.plot.Smooth(**options))
    drawn = plot.add(so.Band(), ak.plot.Smooth(band=True, **options)).plot()
    (ax,) = drawn._figure.axes
    for line, area, name in zip(ax.lines, ax.patches, ("low", "high"), strict=True):
        assert_drawn(line, area, *expected[name])
    sideways = so.Plot(frame, "y", "x", color="g").add(
        so.Line(), ak.plot.Smooth(**options), orient="y"
    )
    (ax,) = sideways.plot()._figure.axes
    at, fit, *_ = expected["low"]
    np.testing.assert_allclose(ax.lines[0].get_xydata(), np.stack([fit, at], axis=1), rtol=1e-5)


def test_plotnine_draws_a_line_and_a_band_for_each_group(frame, expected):
    options = {"n": 50, "level": 0.9, "method_args": {"model": MODEL}}
    mapping = plotnine.aes("x", "y", color="g")
    plot = plotnine.ggplot(frame, mapping) + plotnine.geom_smooth(method=ak.plot.smooth, **options)
    (ax,) = plot.draw().axes
    for line, area, name in zip(ax.lines, ax.collections, ("high", "low"), strict=True):
        assert_drawn(line, area, *expected[name])


def test_a_group_that_cannot_be_fitted_is_named(frame):
    short = frame.iloc[: N + 1]
    plot = so.Plot(short, "x", "y", color="g").add(so.Line(), ak.plot.Smooth())
    assert_raises("The group color 'high' has no fit. A fit needs at least 3 rows", plot.plot)
    params = {"se": False, "level": 0.95, "method_args": {}}
    assert_raises(
        "group color 'high' has no fit",
        ak.plot.smooth,
        short.iloc[N:].rename(columns={"g": "color"}),
        [0.0],
        params,
    )


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "seaborn.objects", None)
    monkeypatch.delitem(sys.modules, "attnkernel.plot._seaborn", raising=False)
    with pytest.raises(ImportError, match=r"needs seaborn: pip install 'attnkernel\[plots\]'"):
        ak.plot.Smooth()
