"""`compare`: runs side by side; `index`: a table of the runs in a folder."""

import numpy as np
import pytest
from outputs import read_csv, read_json
from small_configs import DATA, TRAINED

from experiments.__main__ import main
from experiments.reports.number_labels import labels

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, blank_figures):
    """A folder of two runs that differ in their learning rate."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "c.yaml").write_text(TRAINED)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, rate in (("slow", "0.05"), ("fast", "0.3")):
            out = ["--out", f"results/{name}", "--quiet"]
            assert main(["run", "c.yaml", f"training.learning_rate={rate}", *out]) == 0
    return folder


@pytest.fixture
def runs(folder, monkeypatch):
    """That folder as the current one."""
    monkeypatch.chdir(folder)
    return folder / "results"


def test_configs_numbers_and_metrics_are_compared(runs, tmp_path, capsys):
    out = tmp_path / "both"
    assert main(["compare", "results/slow", "results/fast", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    content = read_json(out / "compare.json")
    assert content["config"] == {"training.learning_rate": [0.05, 0.3]}
    summaries = [read_json(runs / name / "summary.json") for name in ("slow", "fast")]
    expected = [summary["fits"][1]["lengthscale"] for summary in summaries]
    assert content["numbers"]["fits.1.lengthscale"] == expected
    texts = ("training.learning_rate", "slow", "fast", f"{expected[1]:.6g}", "done")
    for text in (*texts, "held out 7: lengthscale", "held out 2: leave-one-out error"):
        assert text in printed
    arrays = np.load(out / "figures" / "compare.npz")
    assert {key.split("/")[0] for key in arrays} == {"loss", "lengthscale"}
    path = arrays["lengthscale/1/hold_out 7"]
    np.testing.assert_array_equal(path[:, 0], [1, 2, 3, 4, 5])
    own = np.load(runs / "fast" / "figures" / "training.npz")["lengthscale"]  # and the end
    np.testing.assert_allclose(path[:, 1], own[1][:-1], rtol=1e-6)


def test_labels_name_rows_by_their_first_field():
    one = {"fits": [{"hold_out": 5, "lengthscale": 1.0}], "notes": []}
    other = {"fits": [{"hold_out": 9, "lengthscale": 2.0}], "criterion": 3.0}
    names = ["fits.0.lengthscale", "criterion", "data.rows", "table.1.weights.2"]
    expected = ["held out 5: lengthscale", "criterion", "data, rows", "table 2: weight 3"]
    assert list(labels(names, [one]).values()) == expected
    assert labels(names, [one, other])["fits.0.lengthscale"] == "fits 1: lengthscale"


def test_index_has_a_line_for_each_run(runs, capsys):
    assert main(["index"]) == 0
    head, fast, slow, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "study", "state", "seed", "started", "seconds"]
    assert fast.split()[:4] == ["fast", "holdout", "done", "3"]
    assert slow.split()[0] == "slow"
    assert last.endswith("index.csv: 2 runs")
    rows = read_csv(runs / "index.csv")
    found = [(row["run"], row["state"], row["study"]) for row in rows]
    assert found == [("fast", "done", "holdout"), ("slow", "done", "holdout")]
    summary = read_json(runs / "fast" / "summary.json")
    assert float(rows[0]["fits.0.loss"]) == summary["fits"][0]["loss"]


@pytest.mark.usefixtures("runs")
def test_missing_runs_and_folders_are_reported(error_of):
    one = "results/slow"
    assert "nowhere is no run" in error_of("compare", one, "nowhere")
    assert "cannot be written: File exists" in error_of("compare", one, "--out", one)
    assert "nowhere is no folder" in error_of("index", "nowhere")


def test_names_that_yaml_reads_as_dates_and_booleans(tmp_path, capsys):
    (tmp_path / "d.yaml").write_text(DATA)
    names = ["2026-13-45", "2026-01-01", "on"]
    for name, seed in zip(names, (1, 1, 2), strict=True):
        values = [f"name={name}", f"seed={seed}"]
        assert main(["run", "d.yaml", *values, "--out", f"results/{name}", "--quiet"]) == 0
    assert main(["index"]) == 0
    index = read_csv(tmp_path / "results" / "index.csv")
    assert sorted(row["name"] for row in index) == sorted(names)
    assert main(["compare", *(f"results/{name}" for name in names), "--out", "all"]) == 0
    compared = read_json(tmp_path / "all" / "compare.json")
    assert compared["config"] == {"name": names, "seed": [1, 1, 2]}
    (tmp_path / "results" / "on" / "config.yaml").write_text("study: [")
    assert main(["index"]) == 0  # of the others
    printed = capsys.readouterr()
    assert "index.csv: 2 runs" in printed.out
    assert "left out: results/on/config.yaml:1: this is not YAML" in printed.err
    assert main(["compare", "results/on", "results/2026-01-01"]) == 2
