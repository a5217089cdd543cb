"""Fields and YAML of configs: names, types, ranges, values that belong together, overrides, and
`extends: base.yaml`: the command line wins over the file, and the file over its base."""

import json
from pathlib import Path

import pytest
import yaml
from small_configs import DATA, HEADS, HOLDOUT, LEAVE_ONE_OUT, assert_one_error, places

from experiments.__main__ import main

# a config, where its error is, and words of it
UNKNOWN = [
    (HOLDOUT + "trainin: 3\n", "8: trainin: unknown field", "'training'"),
    (HOLDOUT.replace("steps", "step"), "6: training.step: unknown", "'steps'"),
    ("study: hold_out\n", "1: study: ", "'hold_out'", "'holdout'"),
    (HOLDOUT.replace("steps: 4", "optimizer: Adams"), "6: training", "'Adams'", "'adam'"),
    (HOLDOUT + "model: {convention: halved}\n", "8: model.conv", "'halved'", "'unhalved'"),
    (HOLDOUT.replace("heter", "heder"), "3: data.source: ", "'hed", "'heteroskedastic'"),
    (LEAVE_ONE_OUT.replace("mcycle", "mcycel"), "4: data.name: ", "'mcycel'", "'mcycle'"),
]
LENGTHSCALES = {value: f"got {value}" for value in ("0", "-1", "0.0")}
LENGTHSCALES |= {"nan": "nan", ".nan": "nan", ".inf": "got inf", "1e400": "got inf"}
STEPS_TWICE = HOLDOUT.replace("  steps: 4", "  steps: 4\n  steps: 4")
TWO_INPUTS = "data: {source: bundled, name: ethanol, x: [C, E]}\n"
WRONG = [
    *((*case, "known here: ") for case in UNKNOWN),
    ("seed: 1\n", "1: study: is required", "holdout"),
    *(
        (f"seed: 1\nstudy: {study}\n", "2: study: ", "holdout")
        for study in ("[holdout]", "{holdout: 1}", "3", "null")
    ),
    *(
        (HOLDOUT.replace("4", steps), "6: training.steps: ", "integer", came)
        for steps, came in {"four": "'four'", "4.0": "4.0", "true": "True", "[4]": "[4]"}.items()
    ),
    (HOLDOUT.replace("4", '"4"'), "6: training.steps: ", "integer", "'4'"),
    (HOLDOUT + "name: 5\n", "8: name: ", "quote it", "5"),
    (HOLDOUT + "legacy_prng: 1\n", "8: legacy_prng: ", "bool", "1"),
    (HOLDOUT.replace("[1, 0.5]", "1"), "7: hold_out: ", "list", "1"),
    (HEADS + "model: 1.0\n", "4: model: ", "1.0"),
    (HEADS.replace("[1, 2]", "[1, two]"), "3: heads.1: ", "integer", "'two'"),
    (LEAVE_ONE_OUT + "  x: 3\n", "5: data.x: ", "3"),
    (LEAVE_ONE_OUT.partition("data")[0] + "data: mcycle\n", "2: data: "),
    (HOLDOUT.replace("[1, 0.5]", "[]"), "7: hold_out: "),
    # not the usual column instead
    (LEAVE_ONE_OUT + "  x: []\n", "5: data"),
    (LEAVE_ONE_OUT + '  y: ""\n', "5: data"),
    # YAML 1.1 reads them as 8 and 90
    *((HOLDOUT + f"seed: {number}\n", "8: seed: ", number) for number in ("010", "1:30")),
    # 0 and infinity in float32
    *(
        (HOLDOUT + f"model: {{lengthscale: {length}}}\n", "8: model.lengths")
        for length in ("1e-50", "1e39")
    ),
    (HOLDOUT.replace("4", "0"), "6: training.steps: ", "0"),
    (HOLDOUT.replace("20", "2"), "4: data.n: ", "2"),
    (HOLDOUT.replace("20", "1" + "0" * 20), "4: data.n: "),
    (HOLDOUT + "seed: -1\n", "8: seed: ", "-1"),
    (HOLDOUT + "seed: 4294967296\n", "8: seed: ", "4294967296"),
    (HEADS.replace("[1, 2]", "[]"), "3: heads: ", "[]"),
    *(
        (HOLDOUT.replace("0.5", size), "7: hold_out.1: ", "got ")
        for size in ("half", "true", "0", "-1", "1.5", "-0.5", ".nan", "[1]")
    ),
    *(
        (HOLDOUT.replace("0.5", size), "7: hold_out.1: ", f"out {rows} rows", "have 20", "1 to 19")
        for size, rows in (("20", 20), ("21", 21), ("0.99", 20))
    ),
    (HEADS + "hold_out: 20\n", "4: hold_out: ", "holding out 20 rows", "have 20"),
    # positive and finite
    *(
        (HOLDOUT + f"model: {{lengthscale: {value}}}\n", "8: model.lengthscale: ", came)
        for value, came in LENGTHSCALES.items()
    ),
    (HEADS + "shortest: .nan\n", "4: shortest: ", "nan"),
    # the name of a directory
    *(
        (HOLDOUT + f"name: {json.dumps(name)}\n", "8: name: ", repr(name))
        for name in ("../x", "../../x", "/x", "a b", "a/b", "", ".", "..", ".hidden", "a\0b", "é")
    ),
    (HOLDOUT + f"name: {'x' * 65}\n", "8: name: ", "x" * 65),
    # at the line of their group
    (HOLDOUT.replace("hold_out: [1, 0.5]\n", ""), "1: hold_out: is required"),
    (LEAVE_ONE_OUT.replace("  name: mcycle\n", ""), "2: data.name: is required"),
    (LEAVE_ONE_OUT.replace("  source: bundled\n", ""), "2: data: needs the field"),
    # two of a kind
    (HOLDOUT + "study: heads\n", "8: study: given twice", "config.yaml:1"),
    (STEPS_TWICE, "7: training.steps: given twice", "config.yaml:6"),
    *(
        (f"{TWO_INPUTS}study: {study}\n", "1: data: ", "one input", "data.x")
        for study in ("data", "lengthscales\nlengthscales: [1.0]")
    ),
    # YAML
    (HOLDOUT + "name: &word x\nseed: *word\n", "8: ", "anchors and aliases"),
    (HOLDOUT + "name: x\nseed: *word\n", "9: ", "anchors and aliases"),
    *(
        (text, "1: expected a mapping")
        for text in ("", "# nothing\n", "- a\n", "hello\n", "3\n", "null\n")
    ),
    *(
        (text, "2: this is not YAML: ")
        for text in ("study: [a\nseed: 3\n", "study: heads\n\tseed: 3\n", "study: 'heads\n")
    ),
    (HOLDOUT + "---\nseed: 1\n", "8: this is not YAML: "),
    *(
        (HOLDOUT + f"seed: {tag}\n", "8: this is not YAML: tags")
        for tag in ("!!python/name:os.system x", "!!int x", "!!int 3", "!!bool abc", "!a {b: 1}")
    ),
    (HOLDOUT + "? [a]\n: 3\n", "8: (top): "),
    (b"name: caf\xe9\n", " ", "not UTF-8", "byte 9"),
    # the path of a base
    *(
        (f"name: own\nextends: {extends}\n", "2: extends: ", fragment)
        for extends, fragment in (
            ("nowhere.yaml", "there is no file nowhere.yaml"),
            (".", "there is no file"),
            ("x" * 300, "there is no file"),
            ("[base.yaml, other.yaml]", "the path of one file"),
            ("3", "the path of one file"),
            ("''", "the path of one file"),
        )
    ),
]


@pytest.mark.parametrize("case", WRONG)
def test_wrong_config_is_reported_in_one_line(errors_of, case):
    text, start, *fragments = case
    lines = errors_of(text)
    assert_one_error(lines, f"config.yaml:{start}", *fragments)
    for words_of_pydantic in ("dictionary or object", "after validation"):
        assert words_of_pydantic not in lines[0]


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "y", "n"])
def test_only_true_and_false_are_booleans(errors_of, resolved, word):
    lines = errors_of(HOLDOUT + f"legacy_prng: {word}\n")
    assert_one_error(lines, "config.yaml:8: legacy_prng: ", repr(word))
    assert resolved(HOLDOUT + f"name: {word}\n").name == word


@pytest.mark.parametrize(
    ("text", "value"), [("1e-2", 0.01), ("1E3", 1000.0), (".5", 0.5), ("+2.5e-1", 0.25), ("3", 3)]
)
def test_numbers_in_scientific_notation_are_numbers(resolved, text, value):
    config = resolved(HOLDOUT.replace("steps: 4", f"learning_rate: {text}"))
    assert config.training.learning_rate == value


# --- several errors ---

SEVERAL = """\
study: holdout
precison: float32
data:
  source: heteroskedastic
  n: 2
training:
  steps: 0
  optimizer: adan
hold_out:
  - 1
  - half
"""


def test_all_errors_are_reported_at_once_in_the_order_of_the_file(errors_of):
    wrong = "2: precison|5: data.n|7: training.steps|8: training.optimizer|11: hold_out.1"
    expected = [f"config.yaml:{place}: " for place in wrong.split("|")]
    assert list(dict.fromkeys(places(errors_of(SEVERAL)))) == expected


def test_long_errors_are_cut(errors_of):
    lines = errors_of(SEVERAL + "".join(f"field_{i}: 1\n" for i in range(200)))
    assert (len(lines), lines[-1]) == (21, "and 185 more")
    (line,) = errors_of(HOLDOUT + f"name: [{'long, ' * 3000}]\n")
    assert len(line) < 200


# --- values that belong together ---


def test_float32_bias_correction_needs_adam(errors_of):
    text = HOLDOUT + "precision: float64\n"
    lines = errors_of(text, "training={optimizer: sgd, float32_bias_correction: true}")
    assert_one_error(lines, "command line 'training=", "training: float32_bias_correction", "adam")


def test_override_adds_and_replaces_lists_and_groups_and_the_last_counts(resolved):
    groups = ["hold_out=[2, 3]", "training={steps: 5}", "model.lengthscale=2"]
    config = resolved(HOLDOUT, *groups, "seed=1", "seed=2")
    assert (config.hold_out, config.training.steps) == ([2, 3], 5)
    assert (config.model.lengthscale, config.seed) == (2.0, 2)


def test_another_source_drops_the_fields_of_the_old_one(resolved, tmp_path):
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n2,3\n3,4\n")
    source = ("data.source=csv", "data.path=mine.csv", "data.x=a", "data.y=b")
    config = resolved(HOLDOUT, *source, "hold_out=[1]")
    data = config.data.model_dump(exclude_defaults=True)
    assert data == {"source": "csv", "path": "mine.csv", "x": "a", "y": "b"}


def test_source_keeps_the_fields_of_the_command_line_and_its_own(resolved):
    config = resolved(HOLDOUT, "data.name=mcycle", "data.source=bundled")
    assert config.data.name == "mcycle"
    assert resolved(HOLDOUT, "data.source=heteroskedastic").data.n == 20


@pytest.mark.parametrize(
    ("override", "field", "fragment"),
    [
        ("training.step=3", "training.step: unknown field", "'steps'"),
        ("training.steps=three", "training.steps: ", "'three'"),
        ("training={steps: 1, steps: 2}", "training.steps: given twice", "command line"),
        ("hold_out=[1, 20]", "hold_out.1: ", "have 20"),
        ("data.source=cvs", "data.source: ", "'csv'"),
        ("lengthscale=1", "lengthscale: unknown field", "known here"),
        ("training.steps.a=3", "training.steps is not a group", ""),
        *(
            (override, "expected field=value", "")
            for override in ("training.steps", "=3", ".steps=3", "training.=3", "a..b=3")
        ),
        *((override, "", "not YAML") for override in ("name=[a", "name=@a", "seed=*a")),
        *((override, "", "tags") for override in ("seed=!!int 3", "seed=!!bool abc")),
    ],
)
def test_wrong_override_is_reported_as_it_was_written(errors_of, override, field, fragment):
    assert_one_error(errors_of(HOLDOUT, override), f"command line '{override}': {field}", fragment)


def test_missing_fields_of_another_source_are_reported_at_the_group(errors_of):
    # not at line 5, where the y of the dropped source stood
    lines = errors_of(LEAVE_ONE_OUT + "  y: accel\n", "data.source=csv")
    assert places(lines) == [f"config.yaml:2: data.{field}: " for field in ("path", "x", "y")]


def test_control_characters_and_deep_nesting_are_refused(errors_of):
    assert errors_of("study: a\x00b\n")[0].startswith("config.yaml: this is not YAML: ")
    assert errors_of(HOLDOUT + "name: " + "[" * 5000 + "\n")[0].startswith("config.yaml")


def test_byte_order_mark_and_windows_line_ends_are_read(resolved):
    assert resolved("\ufeff" + HOLDOUT.replace("\n", "\r\n")) == resolved(HOLDOUT)


@pytest.mark.parametrize("name", [".", "config.yaml/below.yaml"])
def test_config_must_be_a_file(error_of, name, home):
    (home / "config.yaml").write_text(HOLDOUT)
    assert_one_error(error_of("show", name).splitlines(), f"{name}: cannot be read: ")


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
    text = "extends: ../base.yaml\nname: middle\ntraining: {learning_rate: 0.125}\n"
    (tmp_path / "deep" / "middle.yaml").write_text(text)
    config = resolved(OWN.replace("base.yaml", "deep/middle.yaml").replace("name: own\n", ""))
    assert (config.name, config.seed) == ("middle", 5)
    assert (config.training.steps, config.training.learning_rate) == (7, 0.125)


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


def test_files_cannot_extend_each_other(errors_of, tmp_path):
    (tmp_path / "a.yaml").write_text(f"{BASE}extends: ./b.yaml\n")
    (tmp_path / "b.yaml").write_text("# b\nextends: a.yaml\n")
    lines = errors_of("extends: a.yaml\n")
    assert_one_error(lines, "b.yaml:2: extends: ", "config.yaml -> a.yaml -> b.yaml -> a.yaml")
    assert_one_error(errors_of("extends: config.yaml\n"), "config.yaml:1: extends: ", "itself")


@pytest.mark.parametrize("field", ["extends", "sweep", "sweep.grid"])
def test_extends_and_sweep_are_no_overrides(errors_of, field):
    start = f"command line '{field}=base.yaml': {field.partition('.')[0]} is written in a file"
    assert_one_error(errors_of(HOLDOUT, f"{field}=base.yaml"), start)
