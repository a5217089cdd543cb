"""The section `sweep` of a config: grids, points and draws; the command line wins over it."""

import itertools
import json
import operator
import re
from pathlib import Path

import numpy as np
import pytest
from outputs import read_csv
from paths import CONFIGS, ROOT
from scipy import stats

from experiments.__main__ import main
from experiments.config.loading import Source, apply
from experiments.config.plain_yaml import ConfigError
from experiments.runs.runner import load
from experiments.sweeps.members import read_plan
from experiments.sweeps.section import Draw, as_text

pytestmark = pytest.mark.usefixtures("blank_figures")

CONFIG = """\
study: holdout
data: {source: heteroskedastic, n: 31}
training: {steps: 7}
hold_out: [5]
"""
SWEEP = """\
extends: base.yaml
sweep:
  grid:
    seed: 3..5
    hold_out: [[1], [2, 9]]
  points:
    - {training.steps: 8, training.optimizer: sgd}
    - {training.steps: 9}
  random:
    number: 4
    fields:
      training.learning_rate: {log_uniform: [1e-3, 1]}
      model.kernel: {choice: [gaussian, laplace]}
"""
FILES = {"base.yaml": CONFIG, "s.yaml": SWEEP}


def asked(*arguments, path="s.yaml"):
    return [member.asked for member in read_plan(Path(path), arguments).members()]


def test_members_take_one_of_each_part():
    plan = read_plan(Path("s.yaml"), [])
    members = plan.members()
    assert len(members) == 3 * 2 * 2 * 4
    assert {(m.study.seed, m.study.hold_out[0]) for m in members} == set(
        itertools.product((3, 4, 5), (1, 2))
    )
    trained = {(m.study.training.steps, m.study.training.optimizer) for m in members}
    assert trained == {(8, "sgd"), (9, "adam")}  # what a point leaves out is as in the config
    drawn = {(m.study.training.learning_rate, m.study.model.kernel) for m in members}
    assert len(drawn) == 4
    of_training = [f"training.{name}" for name in ("steps", "optimizer", "learning_rate")]
    assert list(plan.axes) == ["seed", "hold_out", *of_training, "model.kernel"]
    assert plan.axes["hold_out"] == ["[1]", "[2, 9]"]


def test_draws_are_the_same_in_every_call_and_stay_as_they_are_with_more():
    first = asked()
    assert asked() == first
    rates = {one["training.learning_rate"] for one in first}
    text = Path("s.yaml").read_text()
    Path("s.yaml").write_text(text.replace("number: 4", "number: 6"))
    more = {one["training.learning_rate"] for one in asked()}
    assert (len(rates), len(more), rates <= more) == (4, 6, True)
    Path("s.yaml").write_text(text.replace("number: 4", "number: 4\n    seed: 1"))
    assert rates.isdisjoint(one["training.learning_rate"] for one in asked())


def test_command_line_wins_over_the_section():
    assert {one["seed"] for one in asked("seed=0,1")} == {"0", "1"}
    arguments = ["seed=7", "training={steps: 2, learning_rate: 0.5}", "data.n=41,43"]
    plan = read_plan(Path("s.yaml"), arguments)
    assert plan.axes.keys() == {"hold_out", "model.kernel", "data.n"}
    members = plan.members()
    assert len(members) == 2 * len(plan.axes["model.kernel"]) * 2
    shared = {
        (m.study.seed, m.study.training.steps, m.study.training.learning_rate) for m in members
    }
    assert shared == {(7, 2, 0.5)}


def test_section_of_the_base_is_merged():
    Path("t.yaml").write_text("extends: s.yaml\nsweep: {grid: {seed: [1]}, random: {number: 1}}\n")
    members = read_plan(Path("t.yaml"), []).members()
    assert len(members) == 1 * 2 * 2 * 1
    assert {member.study.seed for member in members} == {1}


def test_fields_of_another_source_are_set_after_it():
    Path("s.yaml").write_text(
        "extends: base.yaml\nsweep:\n  points:\n"
        "    - {data.name: mcycle, data.source: bundled}\n    - {data.n: 20}\n"
    )
    one, two = read_plan(Path("s.yaml"), []).members()
    assert (one.study.data.name, two.study.data.n) == ("mcycle", 20)


# --- distributions ---

N = 2000
DISTRIBUTIONS = {
    "uniform": ([2.0, 5.0], stats.uniform(2.0, 3.0).cdf),
    "log_uniform": ([1e-3, 10.0], stats.loguniform(1e-3, 10.0).cdf),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_have_their_distribution(name):
    ends, cdf = DISTRIBUTIONS[name]
    values = np.array(Draw(**{name: ends}).draws("a", N, 0))
    assert stats.kstest(values, cdf).pvalue > 1e-3
    assert ends[0] <= values.min() <= values.max() <= ends[1]
    assert all(float(f"{value:.6g}") == value for value in values[:50])
    uncorrelated = np.corrcoef(values, Draw(**{name: ends}).draws("b", N, 0))[0, 1]
    assert abs(uncorrelated) < 4 / np.sqrt(N)


@pytest.mark.parametrize(
    "draw", [Draw(integers=[3, 7]), Draw(choice=[3, 4, 5, 6, 7])], ids=["integers", "choice"]
)
def test_integers_and_choices_are_drawn_equally_often(draw):
    values, counts = np.unique(draw.draws("a", N, 0), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7]
    assert stats.chisquare(counts).pvalue > 1e-3


def test_draws_are_those_of_python_in_any_version():
    assert Draw(integers=[0, 999]).draws("a", 5, 0) == FIRST_DRAWS


FIRST_DRAWS = [429, 767, 14, 98, 958]


@pytest.mark.parametrize(
    "value", ["word", "a b", "true", "null", "1e-2", ",", "größe", 3, 1e-5, [1, [2]], {"a": "x,y"}]
)
def test_values_are_written_as_overrides(value):
    Path("v.yaml").write_text(
        f"extends: base.yaml\nsweep: {{grid: {{name: {json.dumps([value])}}}}}\n"
    )
    plan = read_plan(Path("v.yaml"), [])
    ((setting,),) = [tuple(combination.values()) for combination in plan.combinations]
    source = Source({}, {(): "here"})
    apply(f"name={as_text(value)}", source)
    assert setting.text == as_text(value)
    assert source.values == {"name": value}


# --- errors ---


RANDOM = "\n  random:\n    number: 3\n    fields:\n      seed: "
WRONG = [  # a section, and the error: its line and field after "s.yaml:"
    ("{}", "a sweep needs a field of several values"),
    ("{grd: {seed: [1]}}", "2: sweep.grd: unknown field; did you mean 'grid'"),
    ("\n  grid:\n    seed: 3", "4: sweep.grid.seed: expected .*; got 3"),
    ("\n  grid:\n    seed: some", r"4: sweep.grid.seed: .*range such as 0\.\.9; got 'some'"),
    ("\n  grid:\n    seed: 5..3", "4: sweep.grid.seed: expected a range upwards"),
    ("\n  grid:\n    seed: []", "4: sweep.grid.seed: expected a list of values"),
    ("\n  grid:\n    seed: [1, x]", "4: seed: .*'x'"),
    ("\n  grid:\n    sed: [1, 2]", "4: sed: unknown field; did you mean 'seed'"),
    ("\n  grid:\n    hold_out: [[31], [5]]", "4: hold_out.0: .*31 rows"),
    ("\n  points:\n    - {}", "4: sweep.points.0: expected at least 1"),
    ("\n  points:\n    - {seed: x}", "4: seed: .*'x'"),
    (
        "\n  grid: {seed: 0..9999}"
        "\n  random: {number: 99, fields: {model.lengthscale: {uniform: [1, 2]}}}",
        "this sweep has 990000 members; expected up to 100000",
    ),
    ("{grid: {seed: [1]}, points: [{seed: 2}]}", "2: sweep: seed is set by grid and by points"),
    (RANDOM + "{unifrm: [0, 1]}", "6: sweep.random.fields.seed.unifrm: unknown .* 'uniform'"),
    (RANDOM + "{uniform: [0, 1], choice: [1]}", "6: sweep.random.fields.seed: expected one of uni"),
    (
        RANDOM + "{log_uniform: [0, 1]}",
        "6: sweep.random.fields.seed: log_uniform: expected positiv",
    ),
    (
        RANDOM + "{integers: [3, 1]}",
        r"6: sweep.random.fields.seed.integers: expected \[lowest, hig",
    ),
    ("\n  random: {number: 3}", "3: sweep.random.fields: is required"),
]


@pytest.mark.parametrize(("section", "message"), WRONG)
def test_errors_name_the_file_and_the_line(section, message, error_of):
    Path("s.yaml").write_text(f"extends: base.yaml\nsweep: {section}\n")
    message = f"s.yaml:{message}" if message[0].isdigit() else message
    with pytest.raises(ConfigError, match=message):
        read_plan(Path("s.yaml"), []).members()
    assert re.search(message, error_of("validate", "s.yaml"))


def test_a_sweep_is_validated_and_not_run_or_shown_as_one_config(error_of, capsys):
    assert main(["validate", "s.yaml", "base.yaml"]) == 0
    assert capsys.readouterr().out == ("s.yaml: valid, a sweep of 48 members\nbase.yaml: valid\n")
    for command in ("run", "show", "page"):
        expected = "this config is of many runs: python -m experiments sweep s.yaml"
        assert error_of(command, "s.yaml") == f"s.yaml:2: sweep: {expected}\n"


@pytest.mark.slow
def test_sweep_of_a_file_computes_its_members(capsys):
    Path("d.yaml").write_text(
        "extends: base.yaml\ntraining: {optimizer: sgd}\n"
        "sweep:\n  grid: {seed: 1..2}\n"
        "  points: [{training.learning_rate: 0.1}, {model.lengthscale: 2}]\n"
    )
    assert main(["sweep", "d.yaml", "--out", "s"]) == 0
    assert "4 members as one program" in capsys.readouterr().out
    rows = read_csv("s/members.csv")
    fields = operator.itemgetter("seed", "training.learning_rate", "model.lengthscale")
    expected = [(seed, *point) for seed in "12" for point in (("0.1", ""), ("", "2"))]
    assert [fields(row) for row in rows] == expected
    assert {row["state"] for row in rows} == {"done"}


def test_configs_of_the_documentation_are_valid():
    text = (ROOT / "docs" / "configs.md").read_text(encoding="utf-8")
    extended, swept = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    Path("holdout.yaml").write_text((CONFIGS / "holdout.yaml").read_text())
    Path("one.yaml").write_text(extended)
    study = load(Path("one.yaml"), [])
    assert (study.seed, study.hold_out, study.training.steps) == (1, [5], 500)
    assert study.training.learning_rate == load(Path("holdout.yaml"), []).training.learning_rate
    Path("many.yaml").write_text(swept)
    plan = read_plan(Path("many.yaml"), ["data.n=20"])
    assert len(plan.combinations) == 5 * 54
    assert len(plan.members(plan.combinations[:3])) == 3
    assert plan.rounds.schedule(54) == [(50, 54), (150, 18), (450, 6)]
    assert sum(steps * candidates for steps, candidates in plan.rounds.schedule(54)) == 8100
