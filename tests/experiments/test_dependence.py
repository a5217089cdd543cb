"""Errors that are correlated in time: when they are noted, and blocked fits from the shell."""

import csv
import functools
from datetime import date, timedelta

import jax
import numpy as np
import pytest
from outputs import read_json

import attnkernel as ak
from experiments.__main__ import main
from experiments.reports.dependence import blocked_objective, notes_of_dependence, time_column

N = 400
SLOW_CURVE = np.sin(3.0 * np.pi * np.arange(N) / N)


def errors(correlation, seed=0):
    """Normal errors of variance 1 with this correlation from one to the next."""
    noise = np.random.default_rng(seed).normal(size=N)
    for i in range(1, N):
        noise[i] = correlation * noise[i - 1] + np.sqrt(1.0 - correlation**2) * noise[i]
    return noise


def series(y, x=None, name="day (days since 2024-01-01)"):
    x = np.arange(len(y), dtype=float) if x is None else np.asarray(x)
    return ak.data.Dataset(*jax.device_put((x[:, None], np.asarray(y))), (name,))


@pytest.mark.parametrize(
    ("x", "name", "found"),
    [
        ([3.0, 1.0, 2.0], "x", 0),
        (np.arange(1e3, dtype="float32") / np.float32(10.0), "x", 0),
        ([1.0, 2.0, 4.0], "x", None),
        ([1.0, 2.0, 4.0], "day (days since 2024-01-01)", 0),
        ([1.0, 2.0, 2.0], "day (days since 2024-01-01)", None),
    ],
)
def test_column_of_times_is_dated_or_evenly_spaced(x, name, found):
    assert time_column(series(np.zeros(len(x)), x, name)) == found


def test_gap_is_where_errors_are_no_longer_correlated():
    order = np.random.default_rng(1).permutation(N)
    gaps = {}
    for correlation in (0.0, 0.5, 0.9):
        y = SLOW_CURVE + 0.5 * errors(correlation)
        gaps[correlation] = blocked_objective(series(y[order], 2.0 * order)).gap
    # correlations fall below 2/√n = 0.1 after 0, 4 and 22 rows of 2 days
    assert gaps[0.0] == 2.0
    assert 4.0 <= gaps[0.5] <= 16.0
    assert 20.0 <= gaps[0.9] <= 80.0


def test_correlated_residuals_are_noted():
    y = SLOW_CURVE + 0.5 * errors(0.78)
    data = series(y)
    notes = functools.partial(notes_of_dependence, objective=ak.LeaveOneOut())
    (positive,) = notes(data, fitted=SLOW_CURVE)
    assert "rows along day have a correlation of 0.7" in positive
    (negative,) = notes(data, fitted=np.convolve(y, [0.2, 0.6, 0.2], "same"))
    assert "correlation of -0." in negative
    independent = series(SLOW_CURVE + 0.5 * errors(0.0))
    assert notes(independent, fitted=SLOW_CURVE) == []
    assert notes(series(y, np.arange(N) ** 2.0, "x"), fitted=SLOW_CURVE) == []


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_blocked_fit_of_a_dated_file_is_near_the_curve(tmp_path, capsys):
    y = (SLOW_CURVE + 0.5 * errors(np.exp(-0.25), seed=1))[: N // 2]
    days = [date(2024, 1, 1) + timedelta(days=i) for i in range(len(y))]
    with open(tmp_path / "days.csv", "w", newline="") as file:
        csv.writer(file).writerows([("day", "y"), *zip(days, y, strict=True)])
    lengthscales, longest, shortest = [], 3.0, 10.0  # days
    for objective in ("leave_one_out", "blocked"):
        out = tmp_path / objective
        words = ["y ~ day", "--objective", objective, "--out", str(out)]
        assert main(["fit", str(tmp_path / "days.csv"), *words]) == 0
        lengthscales.append(read_json(out / "summary.json")["parameters"][0]["value"])
    assert lengthscales[0] < longest
    assert lengthscales[1] > shortest
    printed = capsys.readouterr().out
    assert "compare objective=blocked" in printed
    assert "each row was predicted from those more than" in printed


def test_blocked_fit_needs_a_column_of_times(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("x,y\n1,2\n2,3\n4,5\n")
    assert main(["fit", str(tmp_path / "rows.csv"), "y ~ x", "--objective", "blocked"]) == 2
    assert "blocked needs an input of dates or of evenly spaced numbers" in capsys.readouterr().err
