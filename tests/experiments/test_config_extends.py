"""`extends: base.yaml`: the command line wins over the file, and the file over its base."""

from pathlib import Path

import pytest
import yaml
from small_configs import DATA, HOLDOUT, assert_one_error, places

from experiments.__main__ import main

BASE = """\
study: holdout
name: base
seed: 5
data:
  source: heteroskedastic
  n: 20
training:
  steps: 4
  learning_rate: 0.5
hold_out: [1, 2, 3]
"""
OWN = """\
extends: base.yaml
name: own
training:
  steps: 7
hold_out: [4]
"""
FILES = {"base.yaml": BASE}


def test_mappings_merge_and_lists_are_replaced(resolved):
    config = resolved(OWN, "training.learning_rate=0.25")
    assert (config.name, config.seed, config.data.n) == ("own", 5, 20)
    assert (config.training.steps, config.training.learning_rate) == (7, 0.25)
    assert config.hold_out == [4]
    assert resolved(OWN).training.learning_rate == 0.5


def test_base_of_a_base_is_the_last_to_be_asked(resolved, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "middle.yaml").write_text(
        "extends: ../base.yaml\nname: middle\ntraining: {learning_rate: 0.125}\n"
    )
    config = resolved(OWN.replace("base.yaml", "deep/middle.yaml").replace("name: own\n", ""))
    assert (config.name, config.seed) == ("middle", 5)
    assert (config.training.steps, config.training.learning_rate) == (7, 0.125)


def test_another_source_drops_the_fields_of_that_of_the_base(resolved):
    config = resolved("extends: base.yaml\ndata: {source: bundled, name: mcycle}\n")
    assert config.data.model_dump(exclude_defaults=True) == {"source": "bundled", "name": "mcycle"}


def test_value_replaces_a_mapping_and_the_other_way_round(resolved, tmp_path, errors_of):
    lines = errors_of("extends: base.yaml\ntraining: 3\n")
    assert_one_error(lines, "config.yaml:2: training: expected a group of fields; got 3")
    (tmp_path / "base.yaml").write_text(BASE.replace("seed: 5", "seed: {a: 1}"))
    assert resolved("extends: base.yaml\nseed: 3\n").seed == 3


@pytest.mark.usefixtures("blank_figures")
def test_run_has_the_whole_config_and_needs_no_base():
    Path("base.yaml").write_text(DATA)
    Path("own.yaml").write_text("extends: base.yaml\nseed: 3\n")
    assert main(["run", "own.yaml", "--quiet", "--out", "out"]) == 0
    written = yaml.safe_load(Path("out/config.yaml").read_text())
    assert "extends" not in written
    assert (written["seed"], written["data"]["n"]) == (3, 20)
    Path("base.yaml").unlink()
    Path("own.yaml").unlink()
    assert main(["reproduce", "out", "--quiet"]) == 0


# --- errors ---


def test_errors_name_the_file_that_has_the_line(errors_of, tmp_path):
    (tmp_path / "base.yaml").write_text(BASE.replace("learning_rate", "learning_rat"))
    lines = errors_of(OWN.replace("steps: 7", "steps: none"))
    own, of_base = sorted(lines, reverse=True)
    assert own.startswith("config.yaml:4: training.steps: ")
    assert of_base.startswith("base.yaml:9: training.learning_rat: unknown field")
    replaced = errors_of("extends: base.yaml\ntraining: {learning_rat: 1}\nhold_out: [x]\n")
    assert [line.partition(": ")[0] for line in replaced] == ["config.yaml:2", "config.yaml:3"]


def test_missing_field_is_reported_at_the_group_of_the_file(errors_of, tmp_path):
    (tmp_path / "base.yaml").write_text("study: holdout\ndata: {source: csv}\nhold_out: [1]\n")
    lines = errors_of("extends: base.yaml\nname: own\ndata:\n  x: a\n")
    assert places(lines) == ["config.yaml:3: data.path: ", "config.yaml:3: data.y: "]


@pytest.mark.parametrize(
    ("extends", "fragments"),
    [
        ("nowhere.yaml", ["there is no file nowhere.yaml"]),
        (".", ["there is no file"]),
        ("x" * 300, ["there is no file"]),
        ("[base.yaml, other.yaml]", ["the path of one file", "base.yaml"]),
        ("3", ["the path of one file", "got 3"]),
        ("''", ["the path of one file"]),
    ],
)
def test_extends_is_the_path_of_a_file(errors_of, extends, fragments):
    lines = errors_of(f"name: own\nextends: {extends}\n")
    assert_one_error(lines, "config.yaml:2: extends: ", *fragments)


def test_files_cannot_extend_each_other(errors_of, tmp_path):
    (tmp_path / "a.yaml").write_text(f"{BASE}extends: ./b.yaml\n")
    (tmp_path / "b.yaml").write_text("# b\nextends: a.yaml\n")
    lines = errors_of("extends: a.yaml\n")
    assert_one_error(lines, "b.yaml:2: extends: ", "config.yaml -> a.yaml -> b.yaml -> a.yaml")
    assert_one_error(errors_of("extends: config.yaml\n"), "config.yaml:1: extends: ", "itself")


def test_base_that_is_not_yaml_is_named(errors_of, tmp_path):
    (tmp_path / "base.yaml").write_text("study: [\n")
    assert_one_error(errors_of(OWN), "base.yaml:", "not YAML")


@pytest.mark.parametrize("field", ["extends", "sweep", "sweep.grid"])
def test_extends_and_sweep_are_no_overrides(errors_of, field):
    start = f"command line '{field}=base.yaml': {field.partition('.')[0]} is written in a file"
    assert_one_error(errors_of(HOLDOUT, f"{field}=base.yaml"), start)
