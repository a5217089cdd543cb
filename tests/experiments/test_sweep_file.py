"""The section `sweep` of a config: grids, points and draws, over which the command line wins;
successive halving: fewer candidates in each round, with a larger budget, as in the papers."""

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from outputs import read_csv, read_json
from paths import CONFIGS, ROOT
from scipy import stats
from small_configs import small_holdout

from experiments.__main__ import main
from experiments.config.loading import Source, apply
from experiments.config.plain_yaml import ConfigError
from experiments.config.registry import STUDIES
from experiments.runs.runner import load
from experiments.sweeps.members import read_plan
from experiments.sweeps.section import Draw, Rounds, as_text

pytestmark = pytest.mark.usefixtures("blank_figures")

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


def asked(*arguments, path="s.yaml"):
    return [member.asked for member in read_plan(Path(path), arguments).members()]


def test_members_take_one_of_each_part():
    plan = read_plan(Path("s.yaml"), [])
    members = plan.members()
    assert len(members) == 3 * 2 * 2 * 4
    drawn = {(m.study.seed, m.study.hold_out[0]) for m in members}
    assert drawn == set(itertools.product((3, 4, 5), (1, 2)))
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
    trained = [m.study.training for m in members]
    assert {m.study.seed for m in members} == {7}
    assert {(training.steps, training.learning_rate) for training in trained} == {(2, 0.5)}


def test_section_of_the_base_is_merged():
    Path("t.yaml").write_text("extends: s.yaml\nsweep: {grid: {seed: [1]}, random: {number: 1}}\n")
    members = read_plan(Path("t.yaml"), []).members()
    assert len(members) == 1 * 2 * 2 * 1
    assert {member.study.seed for member in members} == {1}


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
    assert Draw(integers=[0, 999]).draws("a", 5, 0) == [429, 767, 14, 98, 958]


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
    ("\n  grid:\n    seed: []", "4: sweep.grid.seed: expected a list of values"),
    ("\n  grid:\n    sed: [1, 2]", "4: sed: unknown field; did you mean 'seed'"),
    ("\n  grid:\n    hold_out: [[31], [5]]", "4: hold_out.0: .*31 rows"),
    ("\n  points:\n    - {}", "4: sweep.points.0: expected at least 1"),
    (
        "\n  grid: {seed: 0..9999}"
        "\n  random: {number: 99, fields: {model.lengthscale: {uniform: [1, 2]}}}",
        "this sweep has 990000 members; expected up to 100000",
    ),
    ("{grid: {seed: [1]}, points: [{seed: 2}]}", "2: sweep: seed is set by grid and by points"),
    (RANDOM + "{unifrm: [0, 1]}", "6: sweep.random.fields.seed.unifrm: unknown .* 'uniform'"),
    (RANDOM + "{log_uniform: [0, 1]}", "6: sweep.random.fields.seed: log_uniform: expected posi"),
    (RANDOM + "{integers: [3, 1]}", r"6: sweep.random.fields.seed.integers: expected \[lowest, "),
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


SGD = small_holdout(31, "steps: 7, optimizer: sgd", [5], "precision: float64\n")
IN_ROUNDS = f"""{SGD}\
sweep:
  grid:
    seed: 1..2
    training.learning_rate: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
  rounds:
    budget: training.steps
    min_budget: 2
    max_budget: 9
    factor: 2
    metric: fits.0.loss
"""
FILES = {"base.yaml": small_holdout(31, "steps: 7", [5]), "s.yaml": SWEEP, "r.yaml": IN_ROUNDS}
RATES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]


def loss_of(rate, steps, seed):
    """A loss whose best rate depends on the number of steps."""
    return (rate - 0.05 * steps) ** 2 + 1e-4 * seed


@pytest.fixture
def known_losses(monkeypatch):
    """Members are not trained: their loss is `loss_of`; that of a rate above 0.65 diverges."""

    def compute(self, key, monitor=None):
        rate, sizes = self.training.learning_rate, self.hold_out.sizes
        loss = loss_of(rate, self.training.steps, self.seed)
        table = {"hold_out": sizes, "loss": loss + jnp.zeros(sizes.shape)}
        return SimpleNamespace(numbers={"fits": table}, diverged=jnp.asarray(rate > 0.65))

    monkeypatch.setattr(STUDIES["holdout"], "compute", compute)


def sweep(*arguments):
    return main(["sweep", "r.yaml", *arguments, "--out", "s"])


# Table 1 of Li et al. (2018): R = 81, η = 3
BRACKETS = {
    4: (81, 1, [(1, 81), (3, 27), (9, 9), (27, 3), (81, 1)]),
    3: (27, 3, [(3, 27), (9, 9), (27, 3), (81, 1)]),
    2: (9, 9, [(9, 9), (27, 3), (81, 1)]),
    1: (6, 27, [(27, 6), (81, 2)]),
    0: (5, 81, [(81, 5)]),
}


@pytest.mark.parametrize("bracket", BRACKETS)
def test_schedule_is_that_of_hyperband(bracket):
    candidates, smallest, expected = BRACKETS[bracket]
    numbers = {"min_budget": smallest, "max_budget": 81, "factor": 3, "metric": "loss"}
    assert Rounds(budget="training.steps", **numbers).schedule(candidates) == expected


def test_largest_budget_is_reached_and_one_candidate_stays():
    rounds = Rounds(budget="b", min_budget=3, max_budget=20, factor=2, metric="loss")
    assert rounds.schedule(3) == [(5, 3), (10, 1), (20, 1)]


@pytest.mark.usefixtures("known_losses")
def test_best_candidates_of_a_round_go_on(capsys):
    assert sweep() == 1  # a rate diverges
    printed = capsys.readouterr()
    # budgets 9/4, 9/2, 9 in whole numbers; 7, 3 and 1 candidates
    left, expected = list(RATES), []
    for steps, keep in ((2, 3), (4, 1), (9, 1)):
        finite = [rate for rate in left if rate < 0.65]
        kept = sorted(finite, key=lambda rate: loss_of(rate, steps, 1.5))[:keep]
        expected.append((steps, len(left), kept))
        left = kept
    rounds = read_json("s/summary.json")["rounds"]
    for one, (steps, candidates, kept) in zip(rounds, expected, strict=True):
        assert (one["budget"]["training.steps"], one["candidates"]) == (steps, candidates)
        assert [float(each["asked"]["training.learning_rate"]) for each in one["kept"]] == kept
    assert "round 1: candidates: 7, training.steps=2, 3 kept" in printed.out
    assert printed.out.count("members as one program") == 3  # one of each round
    last = printed.out.splitlines()[-1]
    assert last.startswith("best: training.learning_rate=0.2: fits.0.loss = ")
    assert printed.err.count("not done: seed=") == 2
    rows = read_csv("s/members.csv")
    assert len(rows) == 2 * (7 + 3 + 1)
    assert [row["training.steps"] for row in rows] == ["2"] * 14 + ["4"] * 6 + ["9"] * 2
    best = rounds[-1]["kept"][0]["fits.0.loss"]
    assert best == pytest.approx(np.mean([loss_of(0.2, 9, seed) for seed in (1, 2)]))
    # what is done is not computed again
    assert sweep("training.learning_rate=0.2,0.3") == 0
    assert capsys.readouterr().out.count("0 of them to do") >= 1


@pytest.mark.usefixtures("known_losses")
def test_largest_metric_is_the_best_of_a_goal_that_is_maximised():
    Path("r.yaml").write_text(IN_ROUNDS + "    goal: maximise\n")
    assert sweep("training.learning_rate=0.1,0.2,0.3,0.7") == 1
    first = read_json("s/summary.json")["rounds"][0]
    assert [one["asked"]["training.learning_rate"] for one in first["kept"]] == ["0.3", "0.2"]


@pytest.mark.usefixtures("known_losses")
def test_metric_that_no_member_has_is_refused(capsys):
    Path("r.yaml").write_text(IN_ROUNDS.replace("fits.0.loss", "fits.0.los"))
    assert sweep() == 2
    error = capsys.readouterr().err
    start = "r.yaml:15: sweep.rounds.metric: unknown number fits.0.los; did you mean"
    assert error.startswith(start)
    assert "'fits.0.loss'" in error
    Path("r.yaml").write_text(IN_ROUNDS)
    assert sweep("training.learning_rate=0.7,0.8") == 2
    assert "no member of this round has fits.0.loss: all failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "0/2"], "leave --shard out"),
        (["--submit", "2"], "use --jobs N"),
        (["training.steps=3"], "r.yaml:11: sweep.rounds.budget: training.steps is set by the"),
        (["training.steps=3,4"], "training.steps is set by the command"),
    ],
)
def test_rounds_refuse_what_would_break_them(arguments, message, capsys):
    assert sweep(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not Path("s").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_budget: 9", "max_budget: 1", "r.yaml:10: sweep.rounds: max_budget 1 is below"),
        ("factor: 2", "factor: 1", "r.yaml:14: sweep.rounds.factor: expected "),
        ("    budget: training.steps\n", "", "r.yaml:10: sweep.rounds.budget: is required"),
        ("budget: training.steps", "budget: training.step", "r.yaml:11: training.step: unknown"),
        ("metric: fits.0.loss", "metric: 3", "r.yaml:15: sweep.rounds.metric: expected "),
    ],
)
def test_wrong_rounds_are_reported_with_their_line(old, new, message, capsys):
    Path("r.yaml").write_text(IN_ROUNDS.replace(old, new, 1))
    assert sweep() == 2
    assert message in capsys.readouterr().err
