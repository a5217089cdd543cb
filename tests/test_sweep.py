"""Sweeps: members as one program or as processes, each once, and what they come to."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments import sweep
from experiments.__main__ import main
from experiments.config import ConfigError
from experiments.studies import STUDIES

CONFIG = """
study: holdout
precision: float64
data: {source: heteroskedastic, n: 31}
training: {steps: 7}
hold_out: [5]
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path


def read(out):
    with (Path(out) / "members.csv").open() as file:
        return list(csv.DictReader(file))


def test_values_of_a_field():
    shared, axes = sweep.axes_of(["a=1", "seed=0..3", "b=[1, 2],[3]", "c='x,y',z", "d={k: 1},2"])
    assert shared == ["a=1"]
    assert axes == {
        "seed": ["0", "1", "2", "3"],
        "b": ["[1, 2]", "[3]"],
        "c": ["'x,y'", "z"],
        "d": ["{k: 1}", "2"],
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["seed=3"], "needs a field of several values"),
        (["seed"], "expected field=a,b,c"),
        (["seed=5..3"], "a range upwards"),
        (["seed=0..9999", "training.steps=1..100"], "expected up to 100000"),
        (["seed=1,2", "seed=3,4"], "seed is given twice"),
        (["seed=1,2", "hold_out=[31],[5]"], "holding out 31 rows leaves none"),
        (["seed=1,x"], r"command line 'seed=x'.*seed"),
        (["sed=1,2"], "unknown field; did you mean 'seed'"),
    ],
)
def test_faults_are_said_before_anything_runs(home, capsys, arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        sweep.members_of(Path("c.yaml"), arguments)
    assert main(["sweep", "c.yaml", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (home / "results").exists()


def test_one_program_gives_the_numbers_of_single_runs(home, capsys):
    grid = ["seed=0..2", "hold_out=[1, 5],[2, 9]", "training.learning_rate=0.1,0.3"]
    assert main(["sweep", "c.yaml", *grid, "model.lengthscale=0.7", "--out", "s"]) == 0
    assert "12 members as one program" in capsys.readouterr().out
    rows = read("s")
    assert len(rows) == 12
    for row in rows[::5]:
        overrides = [f"{field}={row[field]}" for field in ("seed", "hold_out")]
        overrides += [f"training.learning_rate={row['training.learning_rate']}"]
        out = f"single_{row['id']}"
        single = ["run", "c.yaml", *overrides, "model.lengthscale=0.7", "--out", out, "--quiet"]
        assert main(single) == 0
        fits = json.loads((home / out / "summary.json").read_text())["fits"]
        for i, fit in enumerate(fits):
            for name, value in fit.items():
                assert float(row[f"fits.{i}.{name}"]) == pytest.approx(value, rel=1e-9)


def test_means_and_intervals_over_seeds(home):
    assert main(["sweep", "c.yaml", "seed=0..4", "hold_out=[2],[9]", "--out", "s", "--quiet"]) == 0
    summary = json.loads((home / "s" / "summary.json").read_text())
    assert summary["states"] == {"done": 10}
    for group in summary["groups"]:
        values = [
            float(row["fits.0.lengthscale"])
            for row in read("s")
            if row["hold_out"] == group["asked"]["hold_out"]
        ]
        found = group["numbers"]["fits.0.lengthscale"]
        ends = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
        np.testing.assert_allclose(
            [found["mean"], found["lower"], found["upper"]], [np.mean(values), *ends], rtol=1e-12
        )
    arrays = np.load(home / "s" / "figures" / "sweep.npz")
    assert arrays["fits.0.lengthscale/points"].shape == (10, 2)


def test_only_what_is_missing_is_computed(home, capsys):
    def said(*arguments):
        assert main(["sweep", "c.yaml", *arguments, "--out", "s"]) == 0
        return capsys.readouterr().out

    assert "4 of them to do" in said("seed=0..3")
    assert "0 of them to do" in said("seed=0..3")
    assert "6 members, 6 of this shard, 2 of them to do" in said("seed=0..5")
    assert "6 members, 2 of this shard, 2 of them to do" in said("seed=10..15", "--shard", "1/3")
    assert [row["state"] for row in read("s")] == ["missing", "done", "missing"] * 2
    assert "4 of them to do" in said("seed=10..15")


def test_members_apart_and_one_that_fails(home, capsys, monkeypatch):
    (home / "data.csv").write_text("x,y\n" + "\n".join(f"{i},{i % 3}" for i in range(9)))
    (home / "d.yaml").write_text("study: data\ndata: {source: csv, path: data.csv, x: x, y: y}\n")
    command = ["sweep", "d.yaml", "seed=1,2,3", "--jobs", "2", "--out", "s"]
    assert main([*command, "--shard", "0/3"]) == 0  # the first
    first, second, _ = read("s")
    assert (first["state"], second["state"]) == ("done", "missing")
    broken = home / "s" / "members" / second["id"]
    broken.mkdir()  # what is there is no run
    assert main(command) == 1
    assert [row["state"] for row in read("s")] == ["done", "missing", "done"]
    assert "not done: seed=2" in capsys.readouterr().err
    broken.rmdir()
    assert main(command) == 0
    assert "1 of them to do" in capsys.readouterr().out


def test_one_that_diverges_is_alone_with_it(home, capsys):
    # a first step of 1e30 leaves no distance that is a number
    grid = ["training.learning_rate=0.1,1e30", "training.optimizer=sgd", "seed=1,2"]
    assert main(["sweep", "c.yaml", *grid, "--out", "s"]) == 1
    assert [row["state"] for row in read("s")] == ["done", "done", "failed", "failed"]
    err = capsys.readouterr().err
    assert err.count("not done: training.learning_rate=1e30") == 2
    assert "not finite" in err


def test_options_are_explained(capsys):
    for option in (["--shard", "3/3"], ["--shard", "1"], ["--jobs", "0"]):
        with pytest.raises(SystemExit):
            main(["sweep", "c.yaml", "seed=1,2", *option])
        assert "expected" in capsys.readouterr().err


def test_studies_that_share_a_program_say_what_else_agrees():
    for study in STUDIES.values():
        if study.traced.__qualname__ != "Study.traced":
            assert study.apart.__qualname__ == f"{study.__name__}.apart"
            assert study.numbers.__qualname__ == f"{study.__name__}.numbers"
            assert study.rows_are
