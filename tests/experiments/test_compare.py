"""Runs side by side, and the index of a folder of them."""

import csv
import json
import shutil

import numpy as np
import pytest

from experiments.__main__ import main

CONFIG = """
study: holdout
data: {source: heteroskedastic, n: 23}
training: {steps: 5}
hold_out: [2, 7]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "c.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, rate in (("slow", "0.05"), ("fast", "0.3")):
            out = ["--out", f"results/{name}", "--quiet"]
            assert main(["run", "c.yaml", f"training.learning_rate={rate}", *out]) == 0
    return folder


def test_what_was_asked_and_what_came_of_it(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    out = tmp_path / "both"
    assert main(["compare", "results/slow", "results/fast", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    content = json.loads((out / "compare.json").read_text())
    assert content["config"] == {"training.learning_rate": [0.05, 0.3]}
    summaries = [
        json.loads((folder / "results" / name / "summary.json").read_text())
        for name in ("slow", "fast")
    ]
    expected = [summary["fits"][1]["lengthscale"] for summary in summaries]
    assert content["numbers"]["fits.1.lengthscale"] == expected
    for text in ("training.learning_rate", "slow", "fast", f"{expected[1]:.6g}", "done"):
        assert text in said
    arrays = np.load(out / "figures" / "compare.npz")
    assert {key.split("/")[0] for key in arrays} == {"loss", "lengthscale"}
    path = arrays["lengthscale/1/hold_out 7"]
    np.testing.assert_array_equal(path[:, 0], [1, 2, 3, 4, 5])
    own = np.load(folder / "results" / "fast" / "figures" / "training.npz")["lengthscale"]
    np.testing.assert_allclose(path[:, 1], own[1], rtol=1e-6)


def test_the_index_has_a_line_for_each_run(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["index"]) == 0
    assert "index.csv: 2 runs" in capsys.readouterr().out
    with (folder / "results" / "index.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["state"], row["study"]) for row in rows] == [
        ("fast", "done", "holdout"),
        ("slow", "done", "holdout"),
    ]
    summary = json.loads((folder / "results" / "fast" / "summary.json").read_text())
    assert float(rows[0]["fits.0.loss"]) == summary["fits"][0]["loss"]


def test_what_is_no_run(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for arguments, sentence in (
        (["compare", "results/slow", "nowhere"], "nowhere is no run"),
        (["compare", "results/slow", "--out", "results/slow"], "cannot be made: File exists"),
        (["index", "nowhere"], "nowhere is no folder"),
    ):
        assert main(arguments) == 2
        assert sentence in capsys.readouterr().err


def test_names_that_yaml_reads_as_something_else(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.yaml").write_text("study: data\ndata: {source: heteroskedastic, n: 20}\n")
    names = ["2026-13-45", "2026-01-01", "on"]
    for name in names:
        assert main(["run", "d.yaml", f"name={name}", "--out", f"results/{name}", "--quiet"]) == 0
    assert main(["index"]) == 0
    with (tmp_path / "results" / "index.csv").open() as file:
        assert sorted(row["name"] for row in csv.DictReader(file)) == sorted(names)
    assert main(["compare", *(f"results/{name}" for name in names), "--out", "all"]) == 0
    assert json.loads((tmp_path / "all" / "compare.json").read_text())["config"]["name"] == names
    (tmp_path / "results" / "on" / "config.yaml").write_text("study: [")
    assert main(["index"]) == 0  # of the others
    printed = capsys.readouterr()
    assert "index.csv: 2 runs" in printed.out
    assert "left out: results/on/config.yaml:1: this is not YAML" in printed.err
    assert main(["compare", "results/on", "results/2026-01-01"]) == 2


def test_lines_of_metrics_that_say_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    strange = tmp_path / "strange"
    shutil.copytree(folder / "results" / "fast", strange)
    (strange / "metrics.jsonl").write_text('{"step": 1}\n{"step": "x", "a": 1, "loss": 2}\n[1]\n')
    assert main(["compare", str(strange), "results/slow", "--out", str(tmp_path / "both")]) == 0
