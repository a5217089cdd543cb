"""YAML of configs: what is refused, with its line, and how files are read."""

import pytest
from small_configs import HEADS, HOLDOUT, assert_one_error

STEPS_TWICE = HOLDOUT.replace("  steps: 4", "  steps: 4\n  steps: 4")


@pytest.mark.parametrize(
    ("text", "start", "first"),
    [
        (HOLDOUT + "study: heads\n", "8: study: given twice", "config.yaml:1"),
        (STEPS_TWICE, "7: training.steps: given twice", "config.yaml:6"),
        (HEADS + "model: {kernel: a, kernel: b}\n", "4: model.kernel: ", "twice"),
    ],
)
def test_duplicate_key_is_refused_with_both_lines(errors_of, text, start, first):
    assert_one_error(errors_of(text), f"config.yaml:{start}", first)


@pytest.mark.parametrize(
    "text",
    [
        HOLDOUT + "name: &word x\nseed: *word\n",
        HOLDOUT + "name: x\nseed: *word\n",
        HOLDOUT + "name: x\nseed: &word 3\n",
    ],
    ids=["both", "alias", "anchor"],
)
def test_anchors_and_aliases_are_refused(errors_of, text):
    (line,) = errors_of(text)
    assert line.startswith(("config.yaml:8: ", "config.yaml:9: "))
    assert "anchors and aliases" in line


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "hello\n", "3\n", "null\n"])
def test_config_must_be_a_mapping(errors_of, text):
    assert_one_error(errors_of(text), "config.yaml:1: expected a mapping")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("study: [a\nseed: 3\n", "config.yaml:2: this is not YAML: "),
        ("study: heads\n\tseed: 3\n", "config.yaml:2: this is not YAML: "),
        ("study: 'heads\n", "config.yaml:2: this is not YAML: "),
        (HOLDOUT + "---\nseed: 1\n", "config.yaml:8: this is not YAML: "),
        *(
            (HOLDOUT + f"seed: {tag}\n", "config.yaml:8: this is not YAML: tags")
            for tag in (
                "!!python/name:os.system x",
                "!!int x",
                "!!int 3",
                "!!bool abc",
                "!a {b: 1}",
            )
        ),
        (HOLDOUT + "? [a]\n: 3\n", "config.yaml:8: (top): "),
    ],
)
def test_invalid_yaml_is_reported_with_its_line(errors_of, text, start):
    assert_one_error(errors_of(text), start)


def test_control_characters_are_refused(errors_of):
    assert errors_of("study: a\x00b\n")[0].startswith("config.yaml: this is not YAML: ")


def test_deep_nesting_is_refused(errors_of):
    assert errors_of(HOLDOUT + "name: " + "[" * 5000 + "\n")[0].startswith("config.yaml")


def test_config_must_be_utf8(errors_of):
    assert_one_error(errors_of(b"name: caf\xe9\n"), "config.yaml: ", "not UTF-8", "byte 9")


def test_byte_order_mark_and_windows_line_ends_are_read(resolved):
    assert resolved("\ufeff" + HOLDOUT.replace("\n", "\r\n")) == resolved(HOLDOUT)


@pytest.mark.parametrize("name", ["missing.yaml", ".", "config.yaml/below.yaml"])
def test_config_must_be_a_file(error_of, name, home):
    (home / "config.yaml").write_text(HOLDOUT)
    assert_one_error(error_of("show", name).splitlines(), f"{name}: cannot be read: ")
