"""Runs that are killed, or whose disk is full or read-only, are resumed to the same bits."""

import filecmp
import importlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from outputs import read_json, start
from small_configs import DATA, small_holdout

import attnkernel as ak
from experiments.__main__ import main
from experiments.runs import runner
from experiments.runs.directory import Run
from experiments.studies.training import Diverged, train

pytestmark = pytest.mark.usefixtures("blank_figures")

INDUCTION = """
study: induction
vocabulary: 12
rows: 16
shortest: 5
longest: 8
size: 16
heads: 2
batch: 32
steps: 3000
"""
HOLDOUT = small_holdout(37, "steps: 40", [5, 11])
CHECKPOINTS_MODULE = "attnkernel.fitting._checkpoints"  # `ak.fit` is a function
# `python -c KILLED CALLS RUN`: forks once for each of CALLS, a list in JSON. The child runs or
# resumes c.yaml into RUN, and is killed at that call. Prints a line of JSON for each child: the
# signal that killed it, and the state and the checkpoints that it left.
KILLED = f"""
import json, os, signal, sys
import numpy as np
from pathlib import Path
from matplotlib.figure import Figure
from experiments.runs import directory as run
from experiments.__main__ import main
import experiments.config.registry, experiments.runs.runner

Figure.savefig = lambda self, path, **_: Path(path).write_bytes(b"")
sys.modules["{CHECKPOINTS_MODULE}"].MAX_WRITE_SHARE = np.inf  # a checkpoint after each chunk
folder = Path(sys.argv[2])

def kill_at(where, name, calls):
    owner = {{"run": run.Run, "os": os}}[where]
    keep = getattr(owner, name)

    def counted(*arguments, **options):
        nonlocal calls
        calls -= 1
        if calls == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return keep(*arguments, **options)

    setattr(owner, name, counted)
    command = ["resume"] if folder.exists() else ["run", "c.yaml", "--out"]
    os._exit(main([*command, str(folder), "--quiet"]))

for kill in json.loads(sys.argv[1]):
    child = os.fork()  # before the first computation: JAX has no threads yet
    if child == 0:
        kill_at(*kill)
    _, code = os.waitpid(child, 0)
    status = folder / "status.json"
    left = {{
        "signal": os.WTERMSIG(code) if os.WIFSIGNALED(code) else None,
        "state": json.loads(status.read_text())["state"] if status.exists() else None,
        "checkpoints": len(list(folder.glob("checkpoints/*.ckpt"))),
        "drafts": len(list(folder.glob("checkpoints/.*.part"))),
    }}
    print(json.dumps(left), flush=True)
"""


def run_command(folder, *arguments, **options):
    """Runs `python -m experiments ...` in a process: its exit code, its output, its errors."""
    with start(*arguments, cwd=folder, **options) as process:
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def assert_same_run(a, b):
    """Two runs have the same files, but for times, commands and what each part of a run printed.

    And but for patches of the sources, which somebody may edit while tests run.
    """
    names, others = (
        {path.relative_to(run) for path in run.rglob("*") if path.is_file()} for run in (a, b)
    )
    names = {name for name in names if name.suffix != ".patch"}
    assert names == {name for name in others if name.suffix != ".patch"}
    different = [str(x) for x in names if not filecmp.cmp(a / x, b / x, shallow=False)]
    assert set(different) - {"output.log"} == {"meta.json"}


def state(run):
    return read_json(run / "status.json")["state"]


@pytest.fixture(scope="module")
def made(tmp_path_factory, blank_figures):
    """Two runs of one config: a whole one, and one interrupted at the third of four chunks."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "c.yaml").write_text(HOLDOUT)
    add = Run.step_metrics

    def interrupt(self, done, *arguments, **columns):
        add(self, done, *arguments, **columns)
        if done == 30:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(importlib.import_module(CHECKPOINTS_MODULE), "MAX_WRITE_SHARE", np.inf)
        assert main(["run", "c.yaml", "--out", "whole", "--quiet"]) == 0
        patch.setattr(Run, "step_metrics", interrupt)
        assert main(["run", "c.yaml", "--out", "stopped", "--quiet"]) == 130
    return folder


@pytest.fixture
def runs(made, home):
    """A copy of both, to be damaged."""
    shutil.copytree(made, home, dirs_exist_ok=True)
    return home / "whole", home / "stopped"


# what a killed run leaves -> the call at which it is killed: owner, function, 1 for the first call
KILLS = {
    "no directory": ("run", "_claim_directory", 1),
    "no checkpoint": ("run", "step_metrics", 1),
    "one checkpoint": ("run", "step_metrics", 2),
    "a file not yet in its place": ("os", "replace", 3),
    "all files, but running": ("run", "close", 1),
}


@pytest.mark.slow
@pytest.mark.cli
def test_run_killed_in_every_state_is_resumed_to_the_same_bits(runs):
    """One run, resumed and killed again and again, each time a little later."""
    whole, _ = runs
    killed = whole.with_name("killed")
    kills = json.dumps(list(KILLS.values()))
    _, out, err = run_command(whole.parent, kills, killed, program=("-c", KILLED))
    left = [json.loads(line) for line in out.splitlines()]
    assert [one["signal"] for one in left] == [signal.SIGKILL] * len(KILLS), err
    assert [one["state"] for one in left] == [None, *["running"] * (len(KILLS) - 1)]
    assert [one["checkpoints"] for one in left] == [0, 0, 1, 1, 2]
    assert [one["drafts"] for one in left] == [0, 0, 0, 1, 0]
    assert main(["resume", "killed", "--quiet"]) == 0
    assert_same_run(killed, whole)
    resumed = read_json(killed / "meta.json")["resumed"]
    assert [found["found"]["state"] for found in resumed] == ["running"] * (len(KILLS) - 1)


def test_interrupted_run_is_resumed_to_the_same_bits(runs, capsys, error_of, monkeypatch):
    whole, stopped = runs
    stems = sorted(path.stem for path in (stopped / "checkpoints").iterdir())
    assert stems == ["training-000000010", "training-000000020"]
    assert state(stopped) == "interrupted"
    before = read_json(stopped / "meta.json")
    before["seconds"] |= {"total": 1000.0, "an earlier part": 900.0}
    (stopped / "meta.json").write_text(json.dumps(before))
    monkeypatch.setattr(sys, "argv", ["experiments", "resume"])
    (stopped / "checkpoints" / ".training-000000030.ckpt.17.part").write_bytes(b"half")
    assert main(["resume", "stopped", "--quiet"]) == 0
    assert_same_run(whole, stopped)
    meta = read_json(stopped / "meta.json")
    assert meta["command"] == before["command"] != sys.argv
    assert meta["started"] == before["started"]
    assert 1000.0 < meta["seconds"]["total"] < 1100.0
    assert meta["seconds"]["an earlier part"] == 900.0
    assert main(["resume", "stopped"]) == 0
    assert "stopped is done" in capsys.readouterr().out
    for path in ("c.yaml", "none"):
        assert f"{path} is no run" in error_of("resume", path)


def test_damaged_checkpoint_is_reported_and_the_one_before_used(runs, capsys):
    whole, stopped = runs
    _, newest = ak.fitting.Checkpoints(stopped / "checkpoints" / "training").files()
    newest.write_bytes(newest.read_bytes()[:-100])
    assert main(["resume", "stopped", "--quiet"]) == 0
    assert f"{newest.name} is" in capsys.readouterr().err
    quarantined = stopped / "checkpoints" / f"{newest.name}.aside"
    assert read_json(stopped / "meta.json")["damaged"]
    quarantined.unlink()  # kept for the user to look at
    assert_same_run(whole, stopped)


def test_running_run_cannot_be_resumed(runs, error_of):
    _, stopped = runs
    run = Run(stopped, runner.load(stopped / "config.yaml", []), quiet=True, resume=True)
    assert "stopped is running" in error_of("resume", "stopped")
    run.close("interrupted")
    assert main(["resume", "stopped", "--quiet"]) == 0


@pytest.mark.slow
@pytest.mark.cli
def test_full_disk_fails_the_run_and_it_can_be_resumed(runs):
    """No file may grow beyond 5 kB: to one file, a full disk."""
    whole, stopped = runs
    # without bytecode, of which Python would leave halves in the checkout
    limit = ["sh", "-c", 'ulimit -f 10; exec env PYTHONDONTWRITEBYTECODE=1 "$@"', "sh"]
    code, _, err = run_command(stopped.parent, "resume", "stopped", before=limit)
    assert (code, "Traceback" in err) == (1, False)
    assert "failed: OSError: [Errno 27] File too large" in err
    assert main(["resume", "stopped", "--quiet"]) == 0
    assert_same_run(whole, stopped)


class Slope(ak.kernels.Kernel):
    """log K(q, k) = slope · q·k."""

    slope: jnp.ndarray

    def log_pair(self, q, k):
        return self.slope * jnp.sum(q * k)


def test_diverged_training_reports_its_step_and_keeps_the_model_before(tmp_path):
    (tmp_path / "c.yaml").write_text(INDUCTION)
    run = Run(tmp_path / "run", runner.load(tmp_path / "c.yaml", []), quiet=True)

    def loss(model, key):  # finite up to 2, NaN beyond
        return -model.slope + 0.0 * jnp.sqrt(2.0 - model.slope)

    model, key = Slope(jnp.asarray(np.float32(1.0))), jnp.asarray(np.zeros(2, np.uint32))
    numbers = {"batch": 8, "steps": 100, "learning_rate": 0.5, "chunk": 7}
    with pytest.raises(Diverged, match=r"at step \d+ the loss is nan.*learning_rate=0\.5"):
        train(run, model, loss, key=key, **numbers)
    run.close("failed")
    last = ak.load(tmp_path / "run" / "checkpoints" / "last_finite", classes=[Slope])
    assert 2.0 < last.slope < 3.0


def test_checkpoint_of_another_part_is_not_used(tmp_path):
    """Parts of a run may differ in their names only, such as the bands of two designs."""
    (tmp_path / "h.yaml").write_text(HOLDOUT)
    run = Run(tmp_path / "run", runner.load(tmp_path / "h.yaml", []), quiet=True)
    assert list(run.each("even", 1, lambda i: ["even"])) == [["even"]]
    folder = tmp_path / "run" / "checkpoints"
    shutil.copy(folder / "even-000000001.ckpt", folder / "odd-000000001.ckpt")
    assert list(run.each("odd", 1, lambda i: ["odd"])) == [["odd"]]
    assert (folder / "odd-000000001.ckpt.aside").exists()
    run.close("done")


def test_checkpoint_of_other_data_is_not_used_and_the_change_reported(tmp_path, capsys):
    config = Path("d.yaml")
    config.write_text("study: data\ndata: {source: csv, path: m.csv, x: a, y: b}\n")
    found = []
    for turn, rows in enumerate(("1,2 2,3 4,3", "1,2 2,3 4,3 5,7", "1,2 2,3 4,3 5,7")):
        Path("m.csv").write_text("\n".join(["a,b", *rows.split()]))
        run = Run(tmp_path / "run", runner.load(config, []), quiet=True, resume=turn > 0)
        found += run.each("part", 1, lambda _, turn=turn: turn)
        run.close("interrupted")
    assert found == [0, 1, 1]  # computed again after the data changed, and then kept
    assert "data changed" in capsys.readouterr().err


def test_all_files_are_on_the_disk_before_the_run_is_done(home, monkeypatch):
    """After a loss of power, a run whose state is `done` has all its files."""
    synced, fsync = [], os.fsync

    def record(handle):
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    (home / "c.yaml").write_text(DATA)
    assert main(["run", "c.yaml", "--out", str(home / "run"), "--quiet"]) == 0
    run = home / "run"
    last = max(i for i, path in enumerate(synced) if path.name.startswith(".status.json"))
    before = set(synced[:last])
    assert {run / "metrics.jsonl", run / "figures", *(run / "figures").iterdir()} <= before
    assert run.parent in before
    for written in ("config.yaml", "summary.json", "meta.json"):
        assert any(path.name.startswith(f".{written}.") for path in before), written


@pytest.mark.multi_device
@pytest.mark.slow
def test_training_on_several_devices_is_resumed_to_the_same_bits(tmp_path, monkeypatch):
    assert jax.device_count() > 1
    module = importlib.import_module(CHECKPOINTS_MODULE)
    monkeypatch.setattr(module, "MAX_WRITE_SHARE", np.inf)  # each chunk is written
    (tmp_path / "c.yaml").write_text(INDUCTION)
    study = runner.load(tmp_path / "c.yaml", [])

    def loss(model, key):
        x = jax.random.normal(key, (3,))
        return jnp.sum((model(x) - jnp.sin(x)) ** 2)

    model = eqx.nn.MLP(3, 3, 16, 2, key=jax.random.PRNGKey(1))

    def trained(run, chunk=10):
        numbers = {"batch": 16, "steps": 50, "learning_rate": 0.01, "chunk": chunk}
        try:
            return train(run, model, loss, key=jax.random.PRNGKey(2), **numbers)
        finally:
            run.close("interrupted")

    whole, losses = trained(Run(tmp_path / "whole", study, quiet=True))
    _, losses_in_one_chunk = trained(Run(tmp_path / "one_chunk", study, quiet=True), chunk=50)
    np.testing.assert_allclose(losses, losses_in_one_chunk, rtol=1e-5)
    run = Run(tmp_path / "run", study, quiet=True)

    def stop(done, *_, **__):
        if done == 40:
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "step_metrics", stop)
    with pytest.raises(KeyboardInterrupt):
        trained(run)
    assert [file.name for file in run.checkpoints("training").files()][-1].endswith("30.ckpt")
    again = trained(Run(tmp_path / "run", study, quiet=True, resume=True))
    for got, expected in zip(*map(jax.tree.leaves, (again, (whole, losses))), strict=True):
        assert got is expected or np.array_equal(got, expected)
