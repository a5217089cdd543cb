"""Columns of days since a date are drawn and named as dates."""

import dataclasses
from datetime import datetime

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from matplotlib.figure import Figure

import attnkernel as ak
from attnkernel.plot._data import DateColumn, date_column

NAME = "day (days since 2020-05-01)"


@pytest.fixture(scope="module")
def fits():
    """A fit of one column of days, and one of days and sizes."""
    day = np.linspace(0.0, 100.0, 24)
    model = ak.KernelRegression(ak.Gaussian(20.0))
    one = ak.fit(model, day[:, None], np.sin(day), optimizer=optax.sgd(0.0), steps=1)
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
        place = ax.get_xticks()[texts.index("2020-06-01")]
        assert place == pytest.approx(31.0)
        low, high = ax.get_xlim()
        assert low <= min(ax.get_xticks()) <= max(ax.get_xticks()) <= high


def test_held_days_are_dates(fits):
    ax = ak.plot.partial(fits[1], "size", band=False, ax=Figure().subplots())
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "at day = 2020-06-20"
    assert ax.get_xlabel() == "size"


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0.0, "2020-05-01"),
        (-1.0, "2020-04-30"),
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
