"""A run directory: its files, their numbers, and where it may be made."""

import importlib.metadata
import json
import os
import re
import sys

import jax
import numpy as np
import pytest
import yaml
from marks import slow
from matplotlib.figure import Figure
from outputs import read_json, read_lines

import attnkernel as ak
from experiments.__main__ import main
from experiments.config.registry import STUDIES
from experiments.runs.files import as_cell, plotted_arrays, status_of
from experiments.studies.data import ShowData
from experiments.studies.study import Keys

SIMULATED = "data:\n  source: heteroskedastic\n  n: 20\n"
MODEL = f"{SIMULATED}model: {{kernel: rational_quadratic}}\n"
HOLDOUT = f"study: holdout\n{MODEL}training:\n  steps: 4\nhold_out: [1, 0.5]\n"
FILES = {"holdout.yaml": HOLDOUT, "data.yaml": f"study: data\n{SIMULATED}"}


def files(directory):
    """The content of each file below a directory, by its path."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


# --- its files ---


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The directory of a run, and that of a run of the first one's `config.yaml`."""
    folder = tmp_path_factory.mktemp("twice")
    (folder / "config.yaml").write_text(HOLDOUT)
    first, second = folder / "first", folder / "second"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["experiments", "run", "holdout"])
        assert main(["run", str(folder / "config.yaml"), "--quiet", "--out", str(first)]) == 0
        assert main(["run", str(first / "config.yaml"), "--quiet", "--out", str(second)]) == 0
    return first, second


def test_run_has_all_files_and_is_done(twice):
    first, _ = twice
    assert status_of(first)["state"] == "done"
    ends, names = ("png", "pdf", "npz"), ("holdout", "training")
    figures = {f"figures/{name}.{end}" for name in names for end in ends}
    numbers = {"meta.json", "status.json", "summary.json"}
    always = {"config.yaml", "metrics.jsonl", "output.log", "checkpoints/training-000000004.ckpt"}
    # of a checkout with changed files
    assert set(files(first)) - {"sources.patch"} == figures | numbers | always
    written = yaml.safe_load((first / "config.yaml").read_text())
    assert written.keys() == STUDIES["holdout"].model_fields.keys()


def test_repeated_run_has_equal_files_but_meta(twice):
    one, two = map(files, twice)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == ["meta.json"]


def test_meta_has_seed_command_versions_and_times(twice):
    meta = read_json(twice[0] / "meta.json")
    assert (meta["seed"], meta["command"]) == (2024, ["experiments", "run", "holdout"])
    assert meta["precision"] == "float32"
    for package in ("jax", "numpy", "equinox", "optax"):
        assert meta["versions"][package] == importlib.metadata.version(package)
    assert meta["git"] is None or re.fullmatch(r"[0-9a-f]{40}", meta["git"]["commit"])
    assert all(seconds >= 0 for seconds in meta["seconds"].values())
    assert meta["seconds"]["total"] > 0
    assert meta["started"] <= meta["ended"]


def test_metrics_have_a_line_per_step_and_fit(twice):
    rows = read_lines(twice[0] / "metrics.jsonl")
    pairs = [(row["step"], row["hold_out"]) for row in rows]
    assert pairs == [(step, fit) for step in (1, 2, 3, 4) for fit in (1, 10)]


def test_other_parameters_of_a_kernel_are_fitted_and_reported(twice):
    found = read_json(twice[0] / "summary.json")
    assert found["kernel"] == "rational_quadratic"
    assert all(row["alpha"] != 1.0 for row in found["fits"])


def test_cells_of_a_table_are_numbers_in_digits():
    found = {"a": np.float64(0.123456), "b": 3, "c": None, "d": np.array([1.0, np.nan])}
    found |= {"e": {"mean": 0.12345, "half_width": 0.0123}}
    assert as_cell(found) == "a 0.1235, b 3, c , d 1, , e 0.123 ± 0.01"


def test_arrays_are_named_by_the_panel_and_the_legend():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.plot([1.0, 2.0], [3.0, 4.0], label="curve")
    left.plot([1.0], [5.0], label="_hidden")
    left.errorbar([1.0], [2.0], [[0.5], [1.0]], label="interval", capsize=2)
    left.axhline(0.0)
    right.set_ylabel("loss")
    right.plot([0.0, 1.0], [1.0, 2.0])
    right.plot([0.0, 1.0], [2.0, 3.0])
    right.bar([0, 1], [4.0, 5.0], label="shares")
    right.set_xticks([0, 1], ["cats", "dogs"])
    right.imshow([[0.5, 1.0]], label="map")
    found = {name: array.tolist() for name, array in plotted_arrays(figure).items()}
    assert found == {
        "1: curve": [[1.0, 2.0], [3.0, 4.0]],
        "1: hidden": [[1.0], [5.0]],
        "1: interval": [[1.0], [2.0], [1.0], [1.5], [1.0], [3.0]],
        "2: loss": [[0.0, 1.0], [1.0, 2.0]],
        "2: loss (again 1)": [[0.0, 1.0], [2.0, 3.0]],
        "2: map": [[0.5, 1.0]],
        "2: shares": [4.0, 5.0],
        "2: words along x": ["cats", "dogs"],
    }


@pytest.mark.usefixtures("blank_figures")
def test_run_has_config_meta_and_status_before_the_study_starts(home, monkeypatch):
    seen = {}
    monkeypatch.setattr(ShowData, "run", lambda self, run: seen.update(files(run.directory)))
    assert main(["run", "data.yaml", "--quiet", "--out", "out"]) == 0
    assert json.loads(seen["status.json"]) == {"state": "running", "reason": None}
    assert {"config.yaml", "meta.json", "status.json"} <= seen.keys()


@pytest.mark.usefixtures("blank_figures")
def test_overrides_before_and_after_an_option_are_those_of_the_run(home):
    """Metrics go from the start to the loss of the summary; fractions become numbers of rows."""
    before, after = ["training.learning_rate=0.3"], ["hold_out=[0.4, 0.5]", "model.lengthscale=0.5"]
    assert main(["run", "holdout.yaml", *before, "--out", "out", "seed=3", "--quiet", *after]) == 0
    config = yaml.safe_load((home / "out" / "config.yaml").read_text())
    assert (config["training"]["learning_rate"], config["seed"]) == (0.3, 3)
    rows = read_lines(home / "out" / "metrics.jsonl")
    assert [row["lengthscale"] for row in rows[:2]] == [pytest.approx(0.5)] * 2
    fits = read_json(home / "out" / "summary.json")["fits"]
    assert [fit["hold_out"] for fit in fits] == [8, 10]
    assert [row["loss"] for row in rows[-2:]] == [fit["loss"] for fit in fits]


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("legacy", [False, slow(True)])
def test_data_are_drawn_with_the_first_key_of_the_seed(home, legacy):
    words = ["seed=3", f"legacy_prng={str(legacy).lower()}"]
    assert main(["run", "data.yaml", "--quiet", "--out", "out", *words]) == 0
    with jax.threefry_partitionable(not legacy):

        @jax.jit
        def drawn():
            return ak.data.heteroskedastic(key=jax.random.split(jax.random.PRNGKey(3))[1], n=20).y

        expected = drawn()
    np.testing.assert_allclose(read_json(home / "out" / "summary.json")["y"], expected, rtol=1e-6)


def test_keys_of_a_study_are_a_chain_of_splits():

    @jax.jit
    def both():
        key, pairs = jax.random.PRNGKey(3), []
        keys = Keys(key)
        for _ in range(3):
            key, expected = jax.random.split(key)
            pairs.append((keys.next(), expected))
        return pairs

    for found, expected in both():
        np.testing.assert_array_equal(found, expected)


# --- where it is made ---


@pytest.mark.usefixtures("blank_figures")
def test_default_directory_is_named_by_name_and_time(home):
    assert main(["run", "data.yaml", "--quiet", "name=mine"]) == 0
    (directory,) = (home / "results" / "mine").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", directory.name)
    assert (directory / "summary.json").is_file()


OCCUPY = {
    "file": lambda path: path.write_text("mine"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
}


def names(directory):
    return sorted(os.listdir(directory))


@pytest.mark.parametrize("kind", OCCUPY)
def test_run_does_not_replace_what_exists(home, error_of, kind):
    OCCUPY[kind](home / "out")
    before = names(home)
    assert error_of("run", "data.yaml", "--out", "out").startswith("out exists already")
    assert names(home) == before
    assert (home / "out").is_symlink() or files(home).get("out", b"mine") == b"mine"


@pytest.mark.parametrize("out", ["data.yaml/out", "data.yaml/deep/out", "x" * 300])
def test_directory_that_cannot_be_written_is_reported(home, error_of, out):
    before = names(home)
    error = error_of("run", "data.yaml", "--out", out)
    assert error.startswith(f"{out} cannot be written: ")
    assert names(home) == before


def test_full_disk_at_the_start_leaves_nothing(home, error_of, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("experiments.runs.files.write_json", full)
    before = names(home)
    error = error_of("run", "data.yaml", "--out", "out")
    assert error == "out cannot be written: No space left on device\n"
    assert names(home) == before


def test_wrong_config_makes_no_directory(home, error_of):
    assert "data.n" in error_of("run", "data.yaml", "--out", "out", "data.n=1")
    assert not (home / "out").exists()
