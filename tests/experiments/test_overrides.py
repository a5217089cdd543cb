"""Overrides of configs on the command line: `field.sub=value`."""

import pytest
from small_configs import HOLDOUT, LEAVE_ONE_OUT, assert_one_error, places


def test_override_replaces_a_field_and_keeps_its_neighbours(resolved):
    config = resolved(HOLDOUT, "training.learning_rate=1e-2", "seed=3")
    assert (config.training.learning_rate, config.training.steps, config.seed) == (0.01, 4, 3)


def test_override_adds_and_replaces_lists_and_groups_and_the_last_counts(resolved):
    groups = ["hold_out=[2, 3]", "training={steps: 5}", "model.lengthscale=2"]
    config = resolved(HOLDOUT, *groups, "seed=1", "seed=2")
    assert (config.hold_out, config.training.steps) == ([2, 3], 5)
    assert (config.model.lengthscale, config.seed) == (2.0, 2)


def test_another_source_drops_the_fields_of_the_old_one(resolved, tmp_path):
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n2,3\n3,4\n")
    config = resolved(
        HOLDOUT, "data.source=csv", "data.path=mine.csv", "data.x=a", "data.y=b", "hold_out=[1]"
    )
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
        ("training.steps=", "training.steps: ", "None"),
        ("training={steps: 0}", "training.steps: ", "0"),
        ("training={steps: 1, steps: 2}", "training.steps: given twice", "command line"),
        ("hold_out=[1, 20]", "hold_out.1: ", "have 20"),
        ("data.source=cvs", "data.source: ", "'csv'"),
        ("study=head", "study: ", "'heads'"),
        ("lengthscale=1", "lengthscale: unknown field", "known here"),
        ("hold_out.0=3", "hold_out is not a group", ""),
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
