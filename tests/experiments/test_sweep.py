"""Sweeps: members as one program or as processes, each once, and what they come to."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from experiments import sweep
from experiments.__main__ import main
from experiments.compare import numbers_of
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
        (["seed=0.." + "9" * 5000, "n=1,2"], "seed"),
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


@pytest.mark.usefixtures("optimised")
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


HEADS = """
study: heads
precision: float64
data: {source: heteroskedastic, n: 31}
training: {steps: 7}
heads: [1, 3]
"""


@pytest.mark.usefixtures("optimised")
def test_heads_of_one_program(home, capsys):
    (home / "h.yaml").write_text(HEADS)
    grid = ["seed=0..2", "hold_out=1,4", "longest=2,3"]
    assert main(["sweep", "h.yaml", *grid, "--out", "s"]) == 0
    assert "12 members as one program" in capsys.readouterr().out
    row = read("s")[7]
    overrides = [f"{field}={row[field]}" for field in ("seed", "hold_out", "longest")]
    assert main(["run", "h.yaml", *overrides, "--out", "single", "--quiet"]) == 0
    single = numbers_of({"table": json.loads(Path("single/summary.json").read_text())["table"]})
    assert {name for name, value in row.items() if name.startswith("table") and value} == set(
        single
    )
    for name, value in single.items():
        assert float(row[name]) == pytest.approx(value, rel=1e-9)


def test_leave_one_out_of_one_program(home, capsys):
    """Of the search from several starts there is the best end; other minima only in a run."""
    (home / "l.yaml").write_text(
        "study: leave_one_out\ndata: {source: heteroskedastic, n: 31}\nstarts: 3\n"
    )
    grid = ["seed=0..2", "model.lengthscale=0.5,1.5"]
    assert main(["sweep", "l.yaml", *grid, "--out", "s"]) == 0
    assert "6 members as one program" in capsys.readouterr().out
    row = read("s")[3]
    overrides = [f"{field}={row[field]}" for field in ("seed", "model.lengthscale")]
    assert main(["run", "l.yaml", *overrides, "--out", "single", "--quiet"]) == 0
    single = json.loads(Path("single/summary.json").read_text())
    for name in ("lengthscale", "criterion", "r_squared", "residual_sd"):
        assert float(row[name]) == pytest.approx(single[name], rel=1e-7)


def test_bundled_data_of_one_program(home, capsys):
    (home / "m.yaml").write_text(
        "study: leave_one_out\ndata: {source: bundled, name: mcycle}\nstarts: 2\n"
    )
    assert main(["sweep", "m.yaml", "model.lengthscale=1,2", "--out", "s"]) == 0
    assert "2 members as one program" in capsys.readouterr().out
    assert float(read("s")[1]["criterion"]) == pytest.approx(595.9363, abs=1e-4)


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


SBATCH = """#!/bin/sh
# what Slurm does with an array of jobs, one task after the other, once it has said its number
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
cp "$1" array.sh
(
  for i in $(seq 0 "$last"); do
    SLURM_JOB_ID=$((4242 + i)) SLURM_ARRAY_JOB_ID=4242 SLURM_ARRAY_TASK_ID=$i SLURM_NTASKS=1 \\
    SLURM_JOB_NODELIST=here SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 \\
      sh array.sh >> said 2>&1
  done
  touch finished
) > /dev/null 2>&1 &
echo "Submitted batch job 4242"
"""
SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do
  case $1 in --output | --error) shift ;; esac
  shift
done
exec "$@"
"""


@pytest.fixture
def slurm(home, monkeypatch):
    """Commands of the names of Slurm's, in front of all others."""
    folder = home / "bin"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def asked(*command):
    """A command line in a process of its own: submitit does not live with captured streams."""
    command = [sys.executable, "-m", "experiments", *command]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_array_of_slurm(slurm):
    sizes = "hold_out=[3],[5]"
    command = ["sweep", "c.yaml", "seed=1..3", sizes, "--out", "s"]
    options = ["--submit", "2", "--slurm", "timeout_min=7", "--slurm", "slurm_partition=night"]
    done = asked(*command, *options)
    assert done.returncode == 0, done.stderr
    assert "6 members in 2 jobs of the array 4242; logs in s/slurm" in done.stdout
    text = Path("array.sh").read_text()
    for line in ("--array=0-1", "--time=7", "--partition=night"):
        assert f"#SBATCH {line}" in text
    until = time.monotonic() + 200
    while not Path("finished").exists() and time.monotonic() < until:
        time.sleep(0.2)
    assert [row["state"] for row in read("s")] == ["done"] * 6, Path("said").read_text()
    assert main([*command, "--quiet"]) == 0  # nothing is left to do
    assert len(list(Path("s/batches").iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--submit", "2", "--slurm", "minutes=7"], "Slurm did not take the array"),
        (["--submit", "2", "--slurm", "timeout_min"], "expected KEY=VALUE"),
        (["--slurm", "timeout_min=7"], "--slurm goes with --submit"),
    ],
)
def test_what_slurm_is_not_asked(slurm, options, sentence):
    done = asked("sweep", "c.yaml", "seed=1,2", *options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_no_slurm(capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(Path.cwd()))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    done = asked("sweep", "c.yaml", "seed=1,2", "--submit", "2")
    assert done.returncode == 2
    assert "found no Slurm here" in done.stderr
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["sweep", "c.yaml", "seed=1,2", "--submit", "2"]) == 2
    assert 'pip install "attnkernel[slurm]"' in capsys.readouterr().err


DATA = "study: data\ndata: {source: heteroskedastic, n: 20}\n"


def test_members_run_the_config_that_was_read(home):
    """Whatever becomes of the file while the others are at work."""
    path = home / "d.yaml"
    path.write_text(DATA)
    members, _ = sweep.members_of(path, ["seed=1,2"])
    path.write_text(DATA.replace("20", "33"))
    (home / "s").mkdir()
    sweep._apart(home / "s", members, 1, None, Console(quiet=True))
    configs = sorted((home / "s" / "members").glob("*/config.yaml"))
    assert [config.parent.name for config in configs] == sorted(member.id for member in members)
    assert all("n: 20" in config.read_text() for config in configs)
    assert not list((home / "s" / "members").glob("*.yaml"))


def test_data_that_need_float64(home, capsys):
    rows = "\n".join(f"{1000 + i / 1e6},{i % 7}" for i in range(60))
    (home / "m.csv").write_text(f"a,b\n{rows}\n")
    config = CONFIG.replace(
        "{source: heteroskedastic, n: 31}", "{source: csv, path: m.csv, x: a, y: b}"
    )
    (home / "m.yaml").write_text(f"{config}model: {{lengthscale: 1e-5}}\n")
    assert main(["sweep", "m.yaml", "seed=0..2", "--out", "s"]) == 0
    assert "3 members as one program" in capsys.readouterr().out


def test_data_that_changed_are_other_members(home, capsys):
    rows = "\n".join(f"{i},{i % 5}" for i in range(30))
    (home / "g.csv").write_text(f"a,b\n{rows}\n")
    config = CONFIG.replace(
        "{source: heteroskedastic, n: 31}", "{source: csv, path: g.csv, x: a, y: b}"
    )
    (home / "g.yaml").write_text(config)
    assert main(["sweep", "g.yaml", "seed=1,2", "--out", "s"]) == 0
    before = read("s")
    (home / "g.csv").write_text(f"a,b\n{rows.replace('3,3', '3,300')}\n")
    assert main(["sweep", "g.yaml", "seed=1,2", "--out", "s"]) == 0
    assert "2 of them to do" in capsys.readouterr().out
    assert read("s")[0]["fits.0.loss"] != before[0]["fits.0.loss"]


def test_what_is_done_stays_done(home, capsys):
    """A member of a shard that was killed, which another call then computed with the others."""
    for shard in ("0/2", "1/2"):
        assert main(["sweep", "c.yaml", "seed=1,2", "--shard", shard, "--out", "s"]) == 0
    for status in (home / "s" / "members").glob("*/status.json"):
        status.write_text('{"state": "running", "reason": null}')
    for to_do in (2, 0):
        assert main(["sweep", "c.yaml", "seed=1,2", "--out", "s"]) == 0
        assert f"{to_do} of them to do" in capsys.readouterr().out
    assert [row["state"] for row in read("s")] == ["done", "done"]


def test_a_member_that_diverged_has_failed_however_it_was_run(home, capsys):
    values = ["training.optimizer=sgd", "training.learning_rate=1e30", "seed=1,2"]
    assert main(["sweep", "c.yaml", *values, "--out", "together"]) == 1
    assert main(["sweep", "c.yaml", *values, "--shard", "0/2", "--out", "alone"]) == 1
    assert [row["state"] for row in read("together")] == ["failed", "failed"]
    assert [row["state"] for row in read("alone")] == ["failed", "missing"]
    assert "diverged at step" in read("alone")[0]["reason"]


@pytest.mark.parametrize("spoilt", ["members.csv", "summary.json", "figures"])
def test_what_cannot_be_written_is_said(home, capsys, spoilt):
    out = home / "s"
    out.mkdir()
    (out / spoilt).write_text("") if spoilt == "figures" else (out / spoilt).mkdir()
    assert main(["sweep", "c.yaml", "seed=1,2", "--out", "s"]) == 2
    complaint = capsys.readouterr().err
    assert "cannot be used" in complaint
    assert spoilt in complaint
    assert "Traceback" not in complaint


def test_damaged_lines_are_named_and_computed_anew(home, capsys):
    assert main(["sweep", "c.yaml", "seed=1,2", "--out", "s"]) == 0
    (batch,) = (home / "s" / "batches").iterdir()
    first, second = batch.read_text().splitlines()
    batch.write_text(f"{first}\n{second[:40]}\n[1]\n")
    assert main(["sweep", "c.yaml", "seed=1,2", "--out", "s"]) == 0
    printed = capsys.readouterr()
    assert "1 of them to do" in printed.out
    assert f"{batch.relative_to(home)}: a line is damaged" in printed.err
