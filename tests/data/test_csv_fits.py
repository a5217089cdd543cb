"""Fits of configs to CSV files of users: rows that are counted, notes, names that are drawn."""

import numpy as np
import pytest
from marks import slow
from outputs import read_json
from small_configs import CSV, FIT_OF_CSV

from experiments.__main__ import main

FIT = FIT_OF_CSV + "starts: 2\ngrid: 20\n"
HOLDOUT = (
    FIT_OF_CSV.replace("leave_one_out", "holdout") + "training: {steps: 4}\nhold_out: [1, 0.5]\n"
)


def test_hold_out_counts_the_rows_of_the_file(written, tmp_path, capsys):
    written(CSV)
    (tmp_path / "config.yaml").write_text(HOLDOUT)
    assert main(["show", "config.yaml", "hold_out=[1, 8]"]) == 2
    message = capsys.readouterr().err
    for named in ("hold_out.1", "8 rows", "1 to 7"):
        assert named in message


def bumps():
    """Two waves in a, on a slope in c, and noise: a lengthscale that data can tell."""
    rng = np.random.default_rng(0)
    a, c = rng.uniform(0.0, 10.0, 60), rng.uniform(0.0, 2.0, 60)
    b = np.sin(a) + 0.5 * c + 0.3 * rng.normal(size=60)
    rows = zip(a, b, c, strict=True)
    return "a,b,c\n" + "".join(f"{x:.6f},{y:.6f},{z:.6f}\n" for x, y, z in rows)


@pytest.mark.parametrize(
    ("config", "columns"),
    [
        slow(HOLDOUT, ["a", "c"], id="holdout, two inputs"),
        slow(FIT, ["a"], id="leave_one_out, one input"),
        slow(FIT, ["a", "c"], id="leave_one_out, two inputs"),
    ],
)
def test_fit_to_a_file(written, tmp_path, config, columns):
    written(bumps())
    (tmp_path / "config.yaml").write_text(config)
    inputs = f"data.x=[{', '.join(columns)}]"
    assert main(["run", "config.yaml", "--quiet", "--out", "out", inputs]) == 0
    summary = read_json("out/summary.json")
    assert summary["data"] == {"rows": 60, "inputs": columns, "label": "b"}
    fits = summary.get("fits", [summary])
    assert all(0 < fit["lengthscale"] < 10 for fit in fits)
    assert all(0 < fit.get("leave_one_out", fit.get("criterion")) < 2 for fit in fits)


@pytest.mark.slow
def test_a_lengthscale_on_a_bound_is_a_note_and_not_a_warning(written, tmp_path):
    written(CSV)  # rising and no more: the lengthscale ends on a bound
    (tmp_path / "config.yaml").write_text(FIT)
    assert main(["run", "config.yaml", "--quiet", "--out", "out"]) == 0
    summary = read_json("out/summary.json")
    assert summary["data"] == {"rows": 8, "inputs": ["a"], "label": "b"}
    assert any("bound" in note for note in summary["notes"])


@pytest.mark.parametrize(
    "name",
    [
        "$x_{$",  # broken mathematics
        "[/b]",  # markup of the terminal
        *(slow(name) for name in ("price [$]", "from $ to $", "größe", "a\\b", "x^2")),
    ],
)
def test_any_column_name_can_be_drawn(written, tmp_path, name):
    written(CSV.replace("a,b", f"{name},b"))
    (tmp_path / "config.yaml").write_text(
        f"study: data\ndata: {{source: csv, path: mine.csv, x: '{name}', y: b}}\n"
    )
    assert main(["run", "config.yaml", "--quiet", "--out", "out"]) == 0
