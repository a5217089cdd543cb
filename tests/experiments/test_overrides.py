"""Overrides of configs on the command line: `field.sub=value`."""

import pytest
from small_configs import HOLDOUT, LEAVE_ONE_OUT, assert_one_error


def test_override_replaces_a_field_and_keeps_its_neighbours(resolved):
    config = resolved(HOLDOUT, "training.learning_rate=1e-2", "seed=3")
    assert (config.training.learning_rate, config.training.steps, config.seed) == (0.01, 4, 3)


def test_override_adds_a_group(resolved):
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
    data = config.data.model_dump(exclude_defaults=True)
    assert data == {"source": "csv", "path": "mine.csv", "x": "a", "y": "b"}


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
def test_wrong_override_is_reported_as_it_was_written(errors_of, override, field, fragment):
    assert_one_error(errors_of(HOLDOUT, override), f"command line '{override}': {field}", fragment)


@pytest.mark.parametrize("override", ["training.steps", "=3", ".steps=3", "training.=3", "a..b=3"])
def test_override_must_be_field_and_value(errors_of, override):
    assert_one_error(
        errors_of(HOLDOUT, override), f"command line '{override}': expected field=value"
    )


@pytest.mark.parametrize(
    ("override", "field"), [("hold_out.0=3", "hold_out"), ("training.steps.a=3", "training.steps")]
)
def test_override_cannot_go_into_a_value(errors_of, override, field):
    assert_one_error(
        errors_of(HOLDOUT, override), f"command line '{override}': {field} is not a group"
    )


@pytest.mark.parametrize("override", ["name=[a", "name=@a", "seed=*a"])
def test_override_must_be_yaml(errors_of, override):
    assert_one_error(errors_of(HOLDOUT, override), f"command line '{override}'", "not YAML")


def places(lines):
    return [": ".join(line.split(": ")[:2]) + ": " for line in lines]


def test_missing_fields_of_another_source_are_reported_at_the_group(errors_of):
    # not at line 5, where the y of the dropped source stood
    lines = errors_of(LEAVE_ONE_OUT + "  y: accel\n", "data.source=csv")
    assert places(lines) == [f"config.yaml:2: data.{field}: " for field in ("path", "x", "y")]
