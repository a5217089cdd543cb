"""Configs: every fault is told with file, line, field, what came, and what would be right."""

import pytest

from experiments.__main__ import main
from experiments.config import ConfigError
from experiments.runner import load

HOLDOUT = """\
study: holdout
data:
  source: heteroskedastic
  n: 20
training:
  steps: 4
hold_out: [1, 0.5]
"""
HEADS = """\
study: heads
data: {source: heteroskedastic, n: 20}
heads: [1, 2]
"""
LEAVE_ONE_OUT = """\
study: leave_one_out
data:
  source: bundled
  name: mcycle
"""
BENCH = """\
study: bench_training
data: {source: heteroskedastic, n: 20}
hold_out: [1]
"""


@pytest.fixture(autouse=True)
def _at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def resolved(tmp_path):
    """A config as it is after reading it, with overrides."""

    def resolve(text, *overrides):
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        return load((tmp_path / "config.yaml").relative_to(tmp_path), list(overrides))

    return resolve


@pytest.fixture
def complaint(tmp_path, capsys):
    """The lines that a wrong config gives on the command line: exit code 2 and nothing else."""

    def complain(content, *overrides):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "config.yaml").write_bytes(data)
        code = main(["show", "config.yaml", *overrides])
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        return err.splitlines()

    return complain


def check(lines, start, *fragments):
    """One line, which starts like this, and says all of these."""
    (line,) = lines
    assert line.startswith(start)
    assert [fragment for fragment in fragments if fragment not in line] == []


# --- names ---


@pytest.mark.parametrize(
    ("text", "start", "guess"),
    [
        (HOLDOUT + "trainin: 3\n", "config.yaml:8: trainin: unknown field", "'training'"),
        (HOLDOUT + "model: {lengthscal: 1}\n", "config.yaml:8: model.lengthscal: unk", "'lengths"),
        (HOLDOUT.replace("steps", "step"), "config.yaml:6: training.step: unknown", "'steps'"),
        (HOLDOUT.replace(" n:", " nn:"), "config.yaml:4: data.nn: unknown field", "'n'"),
        (LEAVE_ONE_OUT + "  z: a\n", "config.yaml:5: data.z: unknown field", "source, name, x, y"),
    ],
)
def test_unknown_field_is_told_with_the_nearest(complaint, text, start, guess):
    check(complaint(text), start, guess, "known here: ")


@pytest.mark.parametrize(
    ("text", "start", "came", "guess"),
    [
        ("study: hold_out\n", "config.yaml:1: study: ", "'hold_out'", "'holdout'"),
        ("seed: 1\nstudy: loo\n", "config.yaml:2: study: ", "'loo'", "leave_one_out"),
        (
            HOLDOUT.replace("steps: 4", "optimizer: Adams"),
            "config.yaml:6: training.optimizer: ",
            "'Adams'",
            "'adam'",
        ),
        (
            HOLDOUT + "model:\n  kernel: gausian\n",
            "config.yaml:9: model.kernel: ",
            "'gausian'",
            "'gaussian'",
        ),
        (
            HOLDOUT + "model: {convention: halved}\n",
            "config.yaml:8: model.convention: ",
            "'halved'",
            "'unhalved'",
        ),
        (HOLDOUT + "precision: float46\n", "config.yaml:8: precision: ", "'float46'", "'float64'"),
        (
            HOLDOUT.replace("skedastic", "scedastic"),
            "config.yaml:3: data.source: ",
            "'heteroscedastic'",
            "'heteroskedastic'",
        ),
        (
            LEAVE_ONE_OUT.replace("mcycle", "mcycel"),
            "config.yaml:4: data.name: ",
            "'mcycel'",
            "'mcycle'",
        ),
    ],
)
def test_misspelt_name_is_told_with_the_nearest(complaint, text, start, came, guess):
    check(complaint(text), start, came, guess, "known here: ")


def test_study_must_be_named(complaint):
    check(complaint("seed: 1\n"), "config.yaml:1: study: is required", "holdout")


@pytest.mark.parametrize("study", ["[holdout]", "{holdout: 1}", "3", "null"])
def test_study_must_be_a_name(complaint, study):
    check(complaint(f"seed: 1\nstudy: {study}\n"), "config.yaml:2: study: ", "holdout")


# --- types and ranges ---


@pytest.mark.parametrize(
    ("text", "start", "fragments"),
    [
        (HOLDOUT.replace("4", "four"), "config.yaml:6: training.steps: ", ("integer", "'four'")),
        (HOLDOUT.replace("4", "4.0"), "config.yaml:6: training.steps: ", ("integer", "4.0")),
        (HOLDOUT.replace("4", "true"), "config.yaml:6: training.steps: ", ("integer", "True")),
        (HOLDOUT.replace("4", "[4]"), "config.yaml:6: training.steps: ", ("integer", "[4]")),
        (HOLDOUT.replace("4", '"4"'), "config.yaml:6: training.steps: ", ("integer", "'4'")),
        (HOLDOUT.replace("steps: 4", "learning_rate: true"), "config.yaml:6: train", ("True",)),
        (HOLDOUT + "name: 5\n", "config.yaml:8: name: ", ("string", "5")),
        (HOLDOUT + "legacy_prng: 1\n", "config.yaml:8: legacy_prng: ", ("bool", "1")),
        (HOLDOUT.replace("[1, 0.5]", "1"), "config.yaml:7: hold_out: ", ("list", "1")),
        (HEADS + "model: 1.0\n", "config.yaml:4: model: ", ("1.0",)),
        (HEADS + "model: [1.0]\n", "config.yaml:4: model: ", ("[1.0]",)),
        (HEADS.replace("[1, 2]", "[1, two]"), "config.yaml:3: heads.1: ", ("integer", "'two'")),
    ],
)
def test_wrong_type_is_refused(complaint, text, start, fragments):
    check(complaint(text), start, *fragments)


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "y", "n"])
def test_only_true_and_false_are_booleans(complaint, resolved, word):
    check(complaint(HOLDOUT + f"legacy_prng: {word}\n"), "config.yaml:8: legacy_prng: ", repr(word))
    assert resolved(HOLDOUT + f"name: {word}\n").name == word


@pytest.mark.parametrize(
    ("text", "value"), [("1e-2", 0.01), ("1E3", 1000.0), (".5", 0.5), ("+2.5e-1", 0.25), ("3", 3)]
)
def test_numbers_are_read_as_people_write_them(resolved, text, value):
    config = resolved(HOLDOUT.replace("steps: 4", f"learning_rate: {text}"))
    assert config.training.learning_rate == value


@pytest.mark.parametrize("number", ["010", "1:30"])
def test_numbers_are_decimal(complaint, number):
    # YAML 1.1 reads them as 8 and 90
    check(complaint(HOLDOUT + f"seed: {number}\n"), "config.yaml:8: seed: ", number)


@pytest.mark.parametrize("value", ["0", "-1", "0.0", ".nan", ".inf", "1e400", "nan"])
@pytest.mark.parametrize(
    ("text", "start"),
    [
        (HOLDOUT + "model:\n  lengthscale: ", "config.yaml:9: model.lengthscale: "),
        (HEADS + "shortest: ", "config.yaml:4: shortest: "),
        (LEAVE_ONE_OUT.replace("out\n", "out\nbounds: [1.0, 2.0]\n", 1), None),
    ],
    ids=["model", "heads", "bounds"],
)
def test_lengthscale_must_be_positive_and_finite(complaint, text, start, value):
    came = {".nan": "nan", ".inf": "inf", "1e400": "inf"}.get(value, value)
    if start is None:
        text, start = text.replace("2.0", value), "config.yaml:2: bounds.1: "
    else:
        text += value + "\n"
    check(complaint(text), start, f"got {came}" if came != "nan" else "nan")


@pytest.mark.parametrize("value", ["1e-50", "1e39"])
def test_lengthscale_must_be_a_number_of_the_precision(complaint, value):
    # 0 and infinity in float32
    check(complaint(HOLDOUT + f"model: {{lengthscale: {value}}}\n"), "config.yaml:8: model.lengths")


@pytest.mark.parametrize(
    ("text", "start", "came"),
    [
        (HOLDOUT.replace("4", "0"), "config.yaml:6: training.steps: ", "0"),
        (HOLDOUT.replace("20", "2"), "config.yaml:4: data.n: ", "2"),
        (HOLDOUT + "seed: -1\n", "config.yaml:8: seed: ", "-1"),
        (HOLDOUT + "seed: 4294967296\n", "config.yaml:8: seed: ", "4294967296"),
        (HEADS.replace("[1, 2]", "[1, 0]"), "config.yaml:3: heads.1: ", "0"),
        (HEADS.replace("[1, 2]", "[]"), "config.yaml:3: heads: ", "[]"),
        (BENCH + "heads: [1, 0]\n", "config.yaml:4: heads", "0"),
    ],
)
def test_number_out_of_range_is_refused(complaint, text, start, came):
    check(complaint(text), start, came)


def test_more_rows_than_any_machine_has_are_refused(complaint):
    check(complaint(HOLDOUT.replace("20", "1" + "0" * 20)), "config.yaml:4: data.n: ")


@pytest.mark.parametrize("name", ["../../elsewhere", "/elsewhere", "a b", "", ".hidden"])
def test_name_is_one_word_because_it_names_a_directory(complaint, name):
    check(complaint(HOLDOUT + f"name: '{name}'\n"), "config.yaml:8: name: ", repr(name))


@pytest.mark.parametrize(
    ("text", "jargon"),
    [
        (LEAVE_ONE_OUT.partition("data")[0] + "data: mcycle\n", "dictionary or object"),
        (HOLDOUT.replace("[1, 0.5]", "[]"), "after validation"),
    ],
)
def test_faults_speak_of_the_file_and_not_of_the_program(complaint, text, jargon):
    (line,) = complaint(text)
    assert jargon not in line


# --- what is required ---


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (HOLDOUT.replace("hold_out: [1, 0.5]\n", ""), "config.yaml:1: hold_out: is required"),
        ("study: leave_one_out\n", "config.yaml:1: data: is required"),
        (LEAVE_ONE_OUT.replace("  name: mcycle\n", ""), "config.yaml:2: data.name: is required"),
        (LEAVE_ONE_OUT.replace("  source: bundled\n", ""), "config.yaml:2: data: needs the field"),
    ],
)
def test_missing_field_is_told_at_its_group(complaint, text, start):
    check(complaint(text), start)


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
SEVERAL_FAULTS = [
    "config.yaml:2: precison: ",
    "config.yaml:5: data.n: ",
    "config.yaml:7: training.steps: ",
    "config.yaml:8: training.optimizer: ",
    "config.yaml:11: hold_out.1: ",
]


def starts(lines):
    return [": ".join(line.split(": ")[:2]) + ": " for line in lines]


def test_all_faults_are_told_at_once(complaint):
    assert set(starts(complaint(SEVERAL))) == set(SEVERAL_FAULTS)


def test_faults_are_told_in_the_order_of_the_file(complaint):
    assert list(dict.fromkeys(starts(complaint(SEVERAL)))) == SEVERAL_FAULTS


@pytest.mark.parametrize("size", ["half", "true", "0", "-1", "1.5", "-0.5", ".nan", "[1]"])
def test_one_fault_is_one_line(complaint, size):
    check(complaint(HOLDOUT.replace("0.5", size)), "config.yaml:7: hold_out.1: ", "got ")


def test_one_wrong_column_is_one_line(complaint):
    check(complaint(LEAVE_ONE_OUT + "  x: 3\n"), "config.yaml:5: data.x: ", "3")


# --- hold-outs ---


@pytest.mark.parametrize(("size", "rows"), [("20", 20), ("21", 21), ("0.99", 20)])
def test_hold_out_must_leave_a_row(complaint, size, rows):
    lines = complaint(HOLDOUT.replace("[1, 0.5]", f"\n  - 1\n  - {size}"))
    check(lines, "config.yaml:9: hold_out.1: ", f"holding out {rows} rows", "have 20", "1 to 19")


def test_hold_out_of_one_size_is_named_without_an_index(complaint):
    lines = complaint(HEADS + "hold_out: 20\n")
    check(lines, "config.yaml:4: hold_out: ", "holding out 20 rows", "have 20")


def test_hold_out_of_the_benchmark_must_leave_a_row(complaint):
    check(complaint(BENCH.replace("[1]", "[1, 20]")), "config.yaml:3: hold_out", "20")


@pytest.mark.parametrize("size", [0, -1, -0.5])
@pytest.mark.parametrize(
    ("text", "start"),
    [
        (HOLDOUT.replace("[1, 0.5]", "[1, SIZE]"), "config.yaml:7: hold_out.1: "),
        (HEADS + "hold_out: SIZE\n", "config.yaml:4: hold_out: "),
        (BENCH.replace("[1]", "[1, SIZE]"), "config.yaml:3: hold_out"),
    ],
    ids=["holdout", "heads", "bench_training"],
)
def test_hold_out_must_be_positive(complaint, text, start, size):
    lines = complaint(text.replace("SIZE", str(size)))
    assert lines
    assert all(line.startswith(start) and f"got {size}" in line for line in lines)


# --- YAML ---


@pytest.mark.parametrize(
    ("text", "start", "first"),
    [
        (HOLDOUT + "study: heads\n", "config.yaml:8: study: given twice", "config.yaml:1"),
        (
            HOLDOUT.replace("  steps: 4", "  steps: 4\n  steps: 4"),
            "config.yaml:7: training.steps: given twice",
            "config.yaml:6",
        ),
        (HEADS + "model: {kernel: a, kernel: b}\n", "config.yaml:4: model.kernel: ", "twice"),
    ],
)
def test_duplicate_key_is_refused_with_both_lines(complaint, text, start, first):
    check(complaint(text), start, first)


@pytest.mark.parametrize(
    "text",
    [
        HOLDOUT + "name: &word x\nseed: *word\n",
        HOLDOUT + "name: x\nseed: *word\n",
        HOLDOUT + "name: x\nseed: &word 3\n",
    ],
    ids=["both", "alias", "anchor"],
)
def test_anchors_and_aliases_are_refused(complaint, text):
    (line,) = complaint(text)
    assert line.startswith(("config.yaml:8: ", "config.yaml:9: "))
    assert "anchors and aliases" in line


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "hello\n", "3\n", "null\n"])
def test_config_must_be_a_mapping(complaint, text):
    check(complaint(text), "config.yaml:1: expected a mapping")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("study: [a\nseed: 3\n", "config.yaml:2: this is not YAML: "),
        ("study: heads\n\tseed: 3\n", "config.yaml:2: this is not YAML: "),
        ("study: 'heads\n", "config.yaml:2: this is not YAML: "),
        (HOLDOUT + "---\nseed: 1\n", "config.yaml:8: this is not YAML: "),
        (HOLDOUT + "seed: !!python/name:os.system x\n", "config.yaml:8: seed: "),
        (HOLDOUT + "seed: !!int x\n", "config.yaml:8: seed: "),
        (HOLDOUT + "? [a]\n: 3\n", "config.yaml:8: (top): "),
    ],
)
def test_invalid_yaml_is_told_with_its_line(complaint, text, start):
    check(complaint(text), start)


def test_control_characters_are_refused(complaint):
    assert complaint("study: a\x00b\n")[0].startswith("config.yaml: this is not YAML: ")


def test_endless_nesting_is_refused(complaint):
    assert complaint(HOLDOUT + "name: " + "[" * 5000 + "\n")[0].startswith("config.yaml")


def test_config_must_be_utf8(complaint):
    check(complaint(b"name: caf\xe9\n"), "config.yaml: ", "not UTF-8", "byte 9")


def test_byte_order_mark_and_windows_line_ends_are_read(resolved):
    assert resolved("\ufeff" + HOLDOUT.replace("\n", "\r\n")) == resolved(HOLDOUT)


@pytest.mark.parametrize("name", ["missing.yaml", ".", "config.yaml/below.yaml"])
def test_config_must_be_a_file(complaint, name, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(HOLDOUT)
    assert main(["show", name]) == 2
    check(capsys.readouterr().err.splitlines(), f"{name}: cannot be read: ")


# --- overrides ---


def test_override_replaces_a_field_and_keeps_its_neighbours(resolved):
    config = resolved(HOLDOUT, "training.learning_rate=1e-2", "seed=3")
    assert (config.training.learning_rate, config.training.steps, config.seed) == (0.01, 4, 3)


def test_override_makes_a_group_that_the_file_has_not(resolved):
    assert resolved(HOLDOUT, "model.lengthscale=2").model.lengthscale == 2.0


def test_override_takes_lists_and_groups(resolved):
    config = resolved(HOLDOUT, "hold_out=[2, 3]", "training={steps: 5}")
    assert (config.hold_out, config.training.steps) == ([2, 3], 5)


def test_last_override_of_a_field_counts(resolved):
    assert resolved(HOLDOUT, "seed=1", "seed=2").seed == 2


def test_another_source_drops_the_fields_of_the_old_one(resolved, tmp_path):
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n2,3\n3,4\n")
    config = resolved(
        HOLDOUT, "data.source=csv", "data.path=mine.csv", "data.x=a", "data.y=b", "hold_out=[1]"
    )
    assert config.data.model_dump() == {"source": "csv", "path": "mine.csv", "x": "a", "y": "b"}


def test_another_source_keeps_the_fields_of_the_command_line(resolved):
    config = resolved(HOLDOUT, "data.name=mcycle", "data.source=bundled")
    assert config.data.name == "mcycle"


def test_the_same_source_keeps_its_fields(resolved):
    assert resolved(HOLDOUT, "data.source=heteroskedastic").data.n == 20


@pytest.mark.parametrize(
    ("override", "field", "fragment"),
    [
        ("training.step=3", "training.step: unknown field", "'steps'"),
        ("training.steps=three", "training.steps: ", "'three'"),
        ("training.steps=", "training.steps: ", "None"),
        ("training={steps: 0}", "training.steps: ", "0"),
        ("training={steps: 1, steps: 2}", "training.steps: given twice", "command line"),
        ("hold_out=[1, 20]", "hold_out.1: ", "have 20"),
        ("data.source=cvs", "data.source: ", "'csv'"),
        ("study=head", "study: ", "'heads'"),
        ("lengthscale=1", "lengthscale: unknown field", "known here"),
    ],
)
def test_fault_of_an_override_is_told_at_the_command_line(complaint, override, field, fragment):
    check(complaint(HOLDOUT, override), f"command line '{override}': {field}", fragment)


@pytest.mark.parametrize("override", ["training.steps", "=3", ".steps=3", "training.=3", "a..b=3"])
def test_override_must_be_field_and_value(complaint, override):
    check(complaint(HOLDOUT, override), f"command line '{override}': expected field=value")


@pytest.mark.parametrize(
    ("override", "field"), [("hold_out.0=3", "hold_out"), ("training.steps.a=3", "training.steps")]
)
def test_override_cannot_go_into_a_value(complaint, override, field):
    check(complaint(HOLDOUT, override), f"command line '{override}': {field} is not a group")


@pytest.mark.parametrize("override", ["name=[a", "name=@a", "seed=*a"])
def test_override_must_be_yaml(complaint, override):
    check(complaint(HOLDOUT, override), f"command line '{override}'", "not YAML")


def test_what_another_source_lacks_is_told_at_the_group(complaint):
    # not at line 5, where the y of the dropped source stood
    lines = complaint(LEAVE_ONE_OUT + "  y: accel\n", "data.source=csv")
    assert starts(lines) == [f"config.yaml:2: data.{field}: " for field in ("path", "x", "y")]


def test_fault_that_only_the_data_can_tell_is_a_config_error(resolved):
    with pytest.raises(ConfigError, match=r"^config\.yaml:7: hold_out\.0: holding out 30 rows"):
        resolved(HOLDOUT.replace("[1, 0.5]", "[30]"))


# --- what belongs together ---


def test_bias_correction_is_of_adam(complaint):
    text = HOLDOUT + "precision: float64\n"
    lines = complaint(text, "training={optimizer: sgd, float32_bias_correction: true}")
    check(lines, "command line 'training=", "training: float32_bias_correction", "adam")


@pytest.mark.parametrize("bounds", ["[2, 3]", "[0.1, 0.5]", "[3, 0.1]"])
def test_bounds_must_enclose_the_start(complaint, bounds):
    lines = complaint(LEAVE_ONE_OUT + f"bounds: {bounds}\n")
    check(lines, "config.yaml:5: bounds: ", "model.lengthscale = 1")


@pytest.mark.parametrize("field", ["x: []", 'y: ""'])
def test_empty_column_of_a_bundled_data_set_is_refused(complaint, field):
    # not the usual column instead
    (line,) = complaint(LEAVE_ONE_OUT + f"  {field}\n")
    assert line.startswith(("config.yaml:2: data", "config.yaml:5: data"))


@pytest.mark.parametrize("study", ["data", "lengthscales"])
def test_study_that_draws_one_input_refuses_two(complaint, study):
    text = f"study: {study}\ndata: {{source: bundled, name: ethanol, x: [C, E]}}\n"
    overrides = ["lengthscales=[1.0]"] if study == "lengthscales" else []
    check(complaint(text, *overrides), "config.yaml:2: data: ", "one input", "data.x")
