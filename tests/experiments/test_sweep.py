"""Sweeps: members as one program or as processes, each computed once; their means."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from outputs import read_csv, read_json, start
from rich.console import Console
from scipy import stats
from small_configs import DATA, small_holdout

from experiments.__main__ import main
from experiments.config.loading import ConfigError
from experiments.config.registry import STUDIES
from experiments.runs.files import numbers_of
from experiments.studies.study import Keys
from experiments.sweeps import sweep
from experiments.sweeps.members import axes_of, read_plan

pytestmark = pytest.mark.usefixtures("blank_figures")

CONFIG = small_holdout(31, "steps: 7, optimizer: sgd", [5], "precision: float64\n")
FILES = {"c.yaml": CONFIG}


@pytest.fixture
def untrained(monkeypatch):
    """Members of one program are not trained: their loss is the mean label."""
    trained = STUDIES["holdout"].compute

    def compute(self, key, monitor=None):
        if monitor is not None:  # in a process of its own
            return trained(self, key, monitor)
        mean = jnp.mean(self.data.load(Keys(key).next()).y)
        sizes = self.hold_out.sizes
        table = {"hold_out": sizes, "loss": mean + jnp.zeros(sizes.shape)}
        return SimpleNamespace(numbers={"fits": table}, diverged=jnp.array(False))

    monkeypatch.setattr(STUDIES["holdout"], "compute", compute)


def read(out):
    return read_csv(Path(out, "members.csv"))


def write_csv(home, rows):
    """Writes a file of columns a and b, and a config of it."""
    (home / "m.csv").write_text("\n".join(["a,b", *rows, ""]))
    csv_data = "{source: csv, path: m.csv, x: a, y: b}"
    (home / "m.yaml").write_text(CONFIG.replace("{source: heteroskedastic, n: 31}", csv_data))


def states(out):
    return [row["state"] for row in read(out)]


# --- values ---


def test_values_of_a_field_are_split_at_commas_and_ranges():
    shared, axes = axes_of(["a=1", "seed=0..3", "b=[1, 2],[3]", "c='x,y',z", "d={k: 1},2"])
    assert shared == ["a=1"]
    assert axes == {
        "seed": ["0", "1", "2", "3"],
        "b": ["[1, 2]", "[3]"],
        "c": ["'x,y'", "z"],
        "d": ["{k: 1}", "2"],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed=3"], "several values, such as seed=0"),
        (["seed"], "field=a,b,c"),
        (["seed=5..3"], r"seed=5\.\.3.*range upwards"),
        (["seed=0.." + "9" * 5000, "n=1,2"], "seed"),
        (["seed=0..9999", "training.steps=1..100"], "1000000 members.*100000"),
        (["seed=1,2", "seed=3,4"], "seed is given twice"),
        (["seed=1,2", "hold_out=[31],[5]"], "hold_out.*31 rows"),
        (["seed=1,x"], "command line 'seed=x'.*seed"),
        (["sed=1,2"], "unknown field.*'seed'"),
    ],
)
def test_errors_are_reported_before_anything_runs(home, error_of, arguments, message):
    with pytest.raises(ConfigError, match=message):
        read_plan(Path("c.yaml"), arguments).members()
    error_of("sweep", "c.yaml", *arguments)
    assert not (home / "results").exists()


@pytest.mark.parametrize("option", [["--shard", "3/3"], ["--shard", "1"], ["--jobs", "0"]])
def test_wrong_shards_and_jobs_are_refused(option, capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "c.yaml", "seed=1,2", *option])
    assert f"argument {option[0]}: expected" in capsys.readouterr().err


# --- members of one program ---

GRID = ["seed=0..2", "hold_out=[1, 5],[2, 9]", "training.learning_rate=0.1,0.3"]
START = "model.lengthscale=0.7"


@pytest.fixture(scope="module")
def swept(tmp_path_factory, blank_figures):
    """The directory of a sweep of two hold-out sizes: three seeds x two pairs x two rates."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "c.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["sweep", "c.yaml", *GRID, START, "--out", "s", "--quiet"]) == 0
    return folder / "s"


# of a hold-out study: searched for by its report, which members of one program do not have
OF_REPORT = {"minimum", "minimum_error", "standard_error", "average", "settled"}


def assert_equals_single_run(row, config, fields, *shared, parts=("fits",)):
    """A row of `members.csv` has the numbers of a run with the same values."""
    overrides = [f"{field}={row[field]}" for field in fields]
    out = f"single_{row['id']}"
    assert main(["run", config, *overrides, *shared, "--out", out, "--quiet"]) == 0
    summary = read_json(f"{out}/summary.json")
    single = numbers_of({part: summary[part] for part in parts})
    single = {name: of for name, of in single.items() if name.split(".")[-1] not in OF_REPORT}
    assert {name for name, value in row.items() if name.startswith(parts) and value} == set(single)
    for name, value in single.items():
        assert float(row[name]) == pytest.approx(value, rel=1e-9)


@pytest.mark.slow
def test_members_of_one_program_equal_single_runs(swept):
    assert len(list((swept / "batches").iterdir())) == 1
    rows = read(swept)
    assert len(rows) == 12
    fields = ("seed", "hold_out", "training.learning_rate")
    assert_equals_single_run(rows[-1], "c.yaml", fields, START)


def test_means_and_intervals_over_seeds(swept):
    summary = read_json(swept / "summary.json")
    assert summary["states"] == {"done": 12}
    assert len(summary["groups"]) == 4
    for group in summary["groups"]:
        values = [
            float(row["fits.0.lengthscale"])
            for row in read(swept)
            if all(row[field] == value for field, value in group["asked"].items())
        ]
        assert len(values) == 3
        mean = np.mean(values)
        expected = [mean, *stats.t.interval(0.95, 2, mean, stats.sem(values))]
        found = [group["numbers"]["fits.0.lengthscale"][of] for of in ("mean", "lower", "upper")]
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    with np.load(swept / "figures" / "sweep.npz") as arrays:
        assert arrays["fits.0.lengthscale/points"].shape == (12, 2)


HEADS = CONFIG.replace("holdout", "heads").replace("hold_out: [5]", "heads: [1, 3]")
# the best of the starts is kept; other minima are reported in single runs only
LEAVE_ONE_OUT = "study: leave_one_out\ndata: {source: heteroskedastic, n: 31}\nstarts: 3\n"
NUMBERS = ("lengthscale", "criterion", "r_squared", "residual_sd")


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(
    ("config", "varied", "parts"),
    [(HEADS, "hold_out=1,4", ("table",)), (LEAVE_ONE_OUT, "model.lengthscale=0.5,1.5", NUMBERS)],
    ids=["heads", "leave-one-out"],
)
def test_members_of_one_program_of_other_fits_equal_single_runs(capsys, config, varied, parts):
    Path("m.yaml").write_text(config)
    assert main(["sweep", "m.yaml", "seed=0,1", varied, "--out", "s"]) == 0
    assert "4 members as one program" in capsys.readouterr().out
    fields = ["seed", varied.partition("=")[0]]
    assert_equals_single_run(read("s")[-1], "m.yaml", fields, parts=parts)


def test_member_that_diverges_fails_alone(capsys):
    # a first step of 1e30 leaves no finite distance
    grid = ["training.learning_rate=0.1,1e30", "seed=1,2"]
    assert main(["sweep", "c.yaml", *grid, "--out", "s"]) == 1
    assert states("s") == ["done", "done", "failed", "failed"]
    err = capsys.readouterr().err
    assert err.count("not done: training.learning_rate=1e30") == 2
    assert "not finite" in err


@pytest.mark.usefixtures("untrained")
def test_data_of_one_program_are_loaded_in_float64(home, capsys):
    write_csv(home, [f"{1000 + i / 1e6},{i % 7}" for i in range(60)])
    assert main(["sweep", "m.yaml", "seed=0..2", "model.lengthscale=1e-5", "--out", "s"]) == 0
    assert "3 members as one program" in capsys.readouterr().out


# --- what is done is not computed again ---


@pytest.mark.usefixtures("untrained")
def test_only_missing_members_are_computed(capsys):
    def printed(*arguments):
        assert main(["sweep", "c.yaml", *arguments, "--out", "s"]) == 0
        return capsys.readouterr().out

    assert "4 of them to do" in printed("seed=0..3")
    assert "0 of them to do" in printed("seed=0..3")
    assert "6 members, 6 of this shard, 2 of them to do" in printed("seed=0..5")
    assert "6 members, 2 of this shard, 2 of them to do" in printed("seed=10..15", "--shard", "1/3")
    assert states("s") == ["missing", "done", "missing"] * 2
    assert "4 of them to do" in printed("seed=10..15")


@pytest.mark.usefixtures("untrained")
def test_changed_data_are_other_members(home, capsys):
    rows = [f"{i},{i % 5}" for i in range(30)]
    write_csv(home, rows)
    assert main(["sweep", "m.yaml", "seed=1,2", "--out", "s"]) == 0
    before = read("s")
    write_csv(home, [*rows[:-1], "29,300"])
    assert main(["sweep", "m.yaml", "seed=1,2", "--out", "s"]) == 0
    assert "2 of them to do" in capsys.readouterr().out
    assert read("s")[0]["fits.0.loss"] != before[0]["fits.0.loss"]


@pytest.mark.slow
@pytest.mark.usefixtures("untrained", "member_processes_in_process")
def test_damaged_lines_are_reported_and_computed_again(home, capsys):
    assert main(["sweep", "c.yaml", "seed=1,2", "--out", "s"]) == 0
    (batch,) = (home / "s" / "batches").iterdir()
    first, second = batch.read_text().splitlines()
    batch.write_text(f"{first}\n{second[:40]}\n[1]\n")
    assert main(["sweep", "c.yaml", "seed=1,2", "--out", "s"]) == 0
    printed = capsys.readouterr()
    assert "1 of them to do" in printed.out
    assert f"{batch.relative_to(home)}: a line is damaged" in printed.err


@pytest.mark.usefixtures("untrained")
def test_output_that_cannot_be_written_is_reported(home, capsys):
    (home / "s" / "members.csv").mkdir(parents=True)
    assert main(["sweep", "c.yaml", "seed=1,2", "--out", "s"]) == 2
    error = capsys.readouterr().err
    assert "members.csv cannot be written" in error
    assert "Traceback" not in error


# --- members in processes of their own ---


@pytest.mark.usefixtures("member_processes_in_process")
def test_failed_member_is_reported_and_computed_again(home, capsys):
    (home / "data.csv").write_text("x,y\n" + "\n".join(f"{i},{i % 3}" for i in range(9)))
    (home / "d.yaml").write_text("study: data\ndata: {source: csv, path: data.csv, x: x, y: y}\n")
    command = ["sweep", "d.yaml", "seed=1,2,3", "--out", "s"]
    assert main([*command, "--shard", "0/3"]) == 0  # the first
    assert states("s") == ["done", "missing", "missing"]
    broken = home / "s" / "members" / read("s")[1]["id"]
    broken.mkdir()  # a directory that is no run
    assert main(command) == 1
    assert states("s") == ["done", "missing", "done"]
    assert "not done: seed=2" in capsys.readouterr().err
    broken.rmdir()
    assert main(command) == 0
    assert "1 of them to do" in capsys.readouterr().out


@pytest.mark.usefixtures("member_processes_in_process")
def test_members_run_the_config_that_was_read(home):
    """Even if the file changes while members are at work."""
    path = home / "d.yaml"
    path.write_text(DATA)
    members = read_plan(path, ["seed=1,2"]).members()
    path.write_text(DATA.replace("20", "33"))
    (home / "s").mkdir()
    sweep._run_in_processes(home / "s", members, 1, None, Console(quiet=True))
    configs = sorted((home / "s" / "members").glob("*/config.yaml"))
    assert [config.parent.name for config in configs] == sorted(member.id for member in members)
    assert all("n: 20" in config.read_text() for config in configs)
    assert not list((home / "s" / "members").glob("*.yaml"))


SBATCH = """#!/bin/sh
# runs an array of jobs in the background, one task after the other
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
    """Commands `sbatch` and `srun` that run the jobs of an array here, one after the other."""
    folder = home / "bin"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


@pytest.mark.slow
@pytest.mark.cli
def test_sweep_is_submitted_as_an_array_of_slurm(slurm):
    command = ["sweep", "c.yaml", "seed=1..3", "hold_out=[3],[5]", "--out", "s"]
    options = ["--submit", "2", "--slurm", "timeout_min=7", "--slurm", "slurm_partition=night"]
    with start(*command, *options) as process:  # submitit does not work with captured streams
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "6 members in 2 jobs of the array 4242; logs in s/slurm" in out
    text = Path("array.sh").read_text()
    for line in ("--array=0-1", "--time=7", "--partition=night"):
        assert f"#SBATCH {line}" in text
    until = time.monotonic() + 400
    while not Path("finished").exists() and time.monotonic() < until:
        time.sleep(0.2)
    assert states("s") == ["done"] * 6, Path("said").read_text()
    assert main([*command, "--quiet"]) == 0  # nothing is left to do
    assert len(list(Path("s/batches").iterdir())) == 2


def test_options_of_slurm_need_submit_and_submitit(error_of, monkeypatch):
    command = ["sweep", "c.yaml", "seed=1,2"]
    assert "--slurm goes with --submit" in error_of(*command, "--slurm", "timeout_min=7")
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert 'pip install "attnkernel[slurm]"' in error_of(*command, "--submit", "2")
