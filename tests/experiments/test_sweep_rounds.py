"""Successive halving: fewer candidates in each round, with a larger budget, as in the papers."""

from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from outputs import read_csv, read_json

from experiments.__main__ import main
from experiments.config.registry import STUDIES
from experiments.runs.files import numbers_of
from experiments.sweeps.section import Rounds

pytestmark = pytest.mark.usefixtures("blank_figures")

CONFIG = """\
study: holdout
precision: float64
data: {source: heteroskedastic, n: 31}
training: {steps: 7, optimizer: sgd}
hold_out: [5]
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
FILES = {"s.yaml": CONFIG}
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
    return main(["sweep", "s.yaml", *arguments, "--out", "s"])


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
    found = [
        (
            one["budget"]["training.steps"],
            one["candidates"],
            [float(kept["asked"]["training.learning_rate"]) for kept in one["kept"]],
        )
        for one in read_json("s/summary.json")["rounds"]
    ]
    assert found == expected
    assert "round 1: candidates: 7, training.steps=2, 3 kept" in printed.out
    assert printed.out.splitlines()[-1].startswith(
        "best: training.learning_rate=0.2: fits.0.loss = "
    )
    assert printed.err.count("not done: seed=") == 2
    rows = read_csv("s/members.csv")
    assert len(rows) == 2 * (7 + 3 + 1)
    assert [row["training.steps"] for row in rows] == ["2"] * 14 + ["4"] * 6 + ["9"] * 2
    best = read_json("s/summary.json")["rounds"][-1]["kept"][0]["fits.0.loss"]
    assert best == pytest.approx(np.mean([loss_of(0.2, 9, seed) for seed in (1, 2)]))
    # what is done is not computed again
    assert sweep("training.learning_rate=0.2,0.3") == 0
    assert capsys.readouterr().out.count("0 of them to do") >= 1


@pytest.mark.usefixtures("known_losses")
def test_largest_metric_is_the_best_of_a_goal_that_is_maximised():
    Path("s.yaml").write_text(CONFIG + "    goal: maximise\n")
    assert sweep("training.learning_rate=0.1,0.2,0.3,0.7") == 1
    first = read_json("s/summary.json")["rounds"][0]
    assert [one["asked"]["training.learning_rate"] for one in first["kept"]] == ["0.3", "0.2"]


@pytest.mark.usefixtures("known_losses")
def test_metric_that_no_member_has_is_refused(capsys):
    Path("s.yaml").write_text(CONFIG.replace("fits.0.loss", "fits.0.los"))
    assert sweep() == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "s.yaml:15: sweep.rounds.metric: unknown number fits.0.los; did you mean"
    )
    assert "'fits.0.loss'" in error
    Path("s.yaml").write_text(CONFIG)
    assert sweep("training.learning_rate=0.7,0.8") == 2
    assert "no member of this round has fits.0.loss: all failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "0/2"], "leave --shard out"),
        (["--submit", "2"], "use --jobs N"),
        (["training.steps=3"], "s.yaml:11: sweep.rounds.budget: training.steps is set by the"),
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
        ("max_budget: 9", "max_budget: 1", "s.yaml:10: sweep.rounds: max_budget 1 is below"),
        ("factor: 2", "factor: 1", "s.yaml:14: sweep.rounds.factor: expected "),
        ("    budget: training.steps\n", "", "s.yaml:10: sweep.rounds.budget: is required"),
        ("budget: training.steps", "budget: training.step", "s.yaml:11: training.step: unknown"),
        ("budget: training.steps", "budget: seed", "sweep: seed is set by grid and by rounds"),
        ("metric: fits.0.loss", "metric: 3", "s.yaml:15: sweep.rounds.metric: expected "),
    ],
)
def test_wrong_rounds_are_reported_with_their_line(old, new, message, capsys):
    Path("s.yaml").write_text(CONFIG.replace(old, new, 1))
    assert sweep() == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_members_of_rounds_equal_single_runs(capsys):
    """Trained in one program a round; a run of more steps begins as one of fewer does."""
    text = CONFIG.replace("max_budget: 9", "max_budget: 4")
    Path("s.yaml").write_text(text)
    assert sweep("training.learning_rate=0.1,0.4") == 0
    assert capsys.readouterr().out.count("members as one program") == 2
    row = read_csv("s/members.csv")[-1]
    assert row["training.steps"] == "4"
    Path("one.yaml").write_text(text.partition("sweep:")[0])
    fields = ("seed", "training.learning_rate", "training.steps")
    overrides = [f"{field}={row[field]}" for field in fields]
    assert main(["run", "one.yaml", *overrides, "--out", "one", "--quiet"]) == 0
    single = read_json("one/summary.json")
    for name, value in numbers_of({"fits": single["fits"]}).items():
        assert float(row[name]) == pytest.approx(value, rel=1e-7)
