"""Runs that are killed, or meet a full disk or a forbidden one, go on and end in the same bits."""

import contextlib
import filecmp
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
from experiments import runner
from experiments.__main__ import main
from experiments.results import Run
from experiments.studies._training import Diverged, train

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
HOLDOUT = """
study: holdout
data: {source: heteroskedastic, n: 37}
training: {steps: 40}
hold_out: [5, 11]
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def started(tmp_path):
    """Starts `python -m experiments ...` in a process of its own."""
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def start(*arguments, before=(), **options):
        return subprocess.Popen(
            [*before, sys.executable, "-m", "experiments", *map(str, arguments)],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    return start


def same(a, b):
    """Whether two runs have the same files, times and commands aside."""
    names = [
        sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
        for run in (a, b)
    ]
    assert names[0] == names[1]
    apart = [name for name in names[0] if not filecmp.cmp(a / name, b / name, shallow=False)]
    assert apart == ["meta.json"]
    return True


def state(run):
    return json.loads((run / "status.json").read_text())["state"]


def test_a_run_killed_at_ten_random_moments_ends_in_the_same_bits(tmp_path, started):
    (tmp_path / "c.yaml").write_text(INDUCTION)
    began, process = time.monotonic(), started("run", "c.yaml", "--out", "whole")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    seconds, rng = time.monotonic() - began, random.Random(0)
    reached, runs = [], [tmp_path / "run_0"]
    while len(reached) < 10:
        verb = ("resume", runs[-1]) if runs[-1].exists() else ("run", "c.yaml", "--out", runs[-1])
        process = started(*verb)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=rng.uniform(0.1, 0.55 * seconds))
        process.kill()
        process.communicate()
        if process.returncode == 0:  # it came to its end before
            runs.append(tmp_path / f"run_{len(runs)}")
            continue
        assert process.returncode == -signal.SIGKILL
        reached.append(len(list(runs[-1].glob("checkpoints/*.ckpt"))))
        assert not runs[-1].exists() or state(runs[-1]) in ("running", "done")
    assert max(reached) == 2
    if runs[-1].exists():
        _, said = started("resume", runs[-1]).communicate(timeout=300)
        assert state(runs[-1]) == "done", said
    for run in runs:
        if run.exists():
            assert same(run, tmp_path / "whole")
            meta = json.loads((run / "meta.json").read_text())
            assert all(found["found"]["state"] == "running" for found in meta.get("resumed", []))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs of one config: a whole one, and one that Ctrl-C stopped after two chunks of four."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "c.yaml").write_text(HOLDOUT)
    add = Run.step_metrics

    def stop(self, done, *arguments, **columns):
        add(self, done, *arguments, **columns)
        if done == 30:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys.modules["attnkernel.fit._checkpoints"], "_SHARE", np.inf)
        assert main(["run", "c.yaml", "--out", "whole", "--quiet"]) == 0
        patch.setattr(Run, "step_metrics", stop)
        assert main(["run", "c.yaml", "--out", "stopped", "--quiet"]) == 130
    return folder


@pytest.fixture
def runs(made, tmp_path, monkeypatch):
    """A copy of both, to be damaged."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "whole", tmp_path / "stopped"


def test_ctrl_c_and_what_resume_says(runs, capsys):
    whole, stopped = runs
    assert [path.stem for path in sorted((stopped / "checkpoints").iterdir())] == [
        "training-000000010",
        "training-000000020",
    ]
    assert state(stopped) == "interrupted"
    (stopped / "checkpoints" / ".training-000000030.ckpt.17.part").write_bytes(b"half")
    assert main(["resume", "stopped", "--quiet"]) == 0
    assert same(whole, stopped)
    assert main(["resume", "stopped"]) == 0
    assert "is done" in capsys.readouterr().out
    for path, sentence in (("c.yaml", "is no run"), ("none", "is no run")):
        assert main(["resume", path]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["cut", "flipped", "swapped"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(runs, capsys, damage):
    whole, stopped = runs
    older, newest = ak.Checkpoints(stopped / "checkpoints" / "training").files()
    content = newest.read_bytes()
    if damage == "cut":
        newest.write_bytes(content[:-100])
    elif damage == "flipped":
        newest.write_bytes(content[:-1] + bytes([content[-1] ^ 128]))
    else:
        newest.write_bytes(older.read_bytes())
    assert main(["resume", "stopped", "--quiet"]) == 0
    assert f"{newest.name} is" in capsys.readouterr().err
    aside = stopped / "checkpoints" / f"{newest.name}.aside"
    assert json.loads((stopped / "meta.json").read_text())["damaged"]
    aside.unlink()  # kept, for who wants to look
    assert same(whole, stopped)


def test_a_run_at_work_is_left_alone(runs, capsys):
    _, stopped = runs
    study = runner.load(stopped / "config.yaml", [])
    run = Run(stopped, study, quiet=True, resume=True)
    assert main(["resume", "stopped"]) == 2
    assert "is at work" in capsys.readouterr().err
    run.close("interrupted")
    assert main(["resume", "stopped", "--quiet"]) == 0


def test_a_disk_that_fills_up(runs, started):
    """No file may grow beyond 5 kB: what a full disk says, to one file."""
    whole, stopped = runs
    process = started("resume", "stopped", before=["sh", "-c", 'ulimit -f 10; exec "$@"', "sh"])
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "failed: OSError: [Errno 27] File too large" in said
    assert "Traceback" not in said
    assert main(["resume", "stopped", "--quiet"]) == 0
    assert same(whole, stopped)


def test_a_small_file_system(runs, started):
    """A run on a disk of 60 kB, moved to a larger one and resumed there."""
    whole, stopped = runs
    folder = stopped.parent
    (folder / "disk").mkdir()
    mount = 'mount -t tmpfs -o size=60k none disk && "$@"; code=$?; cp -r disk saved; exit $code'
    prefix = ["unshare", "-rm", "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("nobody may make a small file system here")
    shutil.rmtree(folder / "saved")
    process = started("run", "c.yaml", "--out", "disk/run", before=prefix)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "No space left on device" in said
    assert "Traceback" not in said
    assert main(["resume", "saved/run", "--quiet"]) == 0
    assert same(whole, folder / "saved" / "run")


def test_a_directory_that_may_no_longer_be_written(runs, started):
    whole, stopped = runs
    prefix = []
    if os.geteuid() == 0:  # who may write everywhere
        prefix = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
        if not shutil.which("setpriv") or subprocess.run([*prefix, "true"], check=False).returncode:
            pytest.skip("root may write everywhere, and nobody may forbid it here")
    modes = {path: path.stat().st_mode for path in (stopped, *stopped.rglob("*"))}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    process = started("resume", "stopped", before=prefix)
    _, said = process.communicate(timeout=120)
    for path, mode in modes.items():
        path.chmod(mode)
    assert process.returncode == 2
    assert "stopped cannot be written: Permission denied" in said
    assert "Traceback" not in said
    assert main(["resume", "stopped", "--quiet"]) == 0
    assert same(whole, stopped)


class Line(ak.Kernel):
    """A slope."""

    slope: jnp.ndarray

    def log_pair(self, q, k):
        return self.slope * jnp.sum(q * k)


def test_a_training_that_diverges_says_when_and_keeps_what_was_before(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(INDUCTION)
    run = Run(tmp_path / "run", runner.load(tmp_path / "c.yaml", []), quiet=True)

    def loss(model, key):  # finite to 2, not a number beyond
        return -model.slope + 0.0 * jnp.sqrt(2.0 - model.slope)

    with pytest.raises(Diverged, match=r"at step \d+ the loss is nan.*learning_rate=0\.5"):
        train(
            run,
            Line(jnp.asarray(1.0)),
            loss,
            batch=8,
            steps=100,
            learning_rate=0.5,
            key=jnp.zeros(2, "uint32"),
            chunk=7,
        )
    run.close("failed")
    last = ak.load(tmp_path / "run" / "checkpoints" / "last_finite", classes=[Line])
    assert 2.0 < last.slope < 3.0


def test_a_checkpoint_of_another_part_is_not_used(tmp_path):
    """Parts of a run may be alike in all but their names: the bands of two designs."""
    (tmp_path / "h.yaml").write_text(HOLDOUT)
    run = Run(tmp_path / "run", runner.load(tmp_path / "h.yaml", []), quiet=True)
    assert list(run.each("even", 1, lambda i: ["even"])) == [["even"]]
    folder = tmp_path / "run" / "checkpoints"
    shutil.copy(folder / "even-000000001.ckpt", folder / "odd-000000001.ckpt")
    assert list(run.each("odd", 1, lambda i: ["odd"])) == [["odd"]]
    assert (folder / "odd-000000001.ckpt.aside").exists()
    run.close("done")


def test_done_is_said_when_all_is_on_the_disk(tmp_path, monkeypatch):
    """After a loss of power, a run that says that it is done has all its files."""
    settled, sync = [], os.fsync

    def noted(handle):
        settled.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    (tmp_path / "h.yaml").write_text(HOLDOUT)
    assert main(["run", str(tmp_path / "h.yaml"), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    run = tmp_path / "run"
    last = max(i for i, path in enumerate(settled) if path.name.startswith(".status.json"))
    before = set(settled[:last])
    assert {run / "metrics.jsonl", run / "figures", *(run / "figures").iterdir()} <= before
    assert run.parent in before
    for written in ("config.yaml", "summary.json", "meta.json"):
        assert any(path.name.startswith(f".{written}.") for path in before), written


def test_data_that_changed_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = ["a,b", *(f"{i},{i % 5}" for i in range(37))]
    (tmp_path / "m.csv").write_text("\n".join(lines))
    data = "{source: csv, path: m.csv, x: a, y: b}"
    (tmp_path / "h.yaml").write_text(HOLDOUT.replace("{source: heteroskedastic, n: 37}", data))
    assert main(["run", "h.yaml", "--out", "run", "--quiet"]) == 0
    (tmp_path / "run" / "status.json").write_text('{"state": "interrupted", "reason": "Ctrl-C"}')
    (tmp_path / "m.csv").write_text("\n".join([*lines, "40,9"]))
    assert main(["resume", "run", "--quiet"]) == 0
    assert "since this run began, data changed" in capsys.readouterr().err


def test_a_training_cut_over_devices_goes_on_in_the_same_bits(tmp_path, monkeypatch):
    assert jax.device_count() > 1
    module = importlib.import_module("attnkernel.fit._checkpoints")  # `ak.fit` is a function
    monkeypatch.setattr(module, "_SHARE", np.inf)  # each chunk is written
    (tmp_path / "c.yaml").write_text(INDUCTION)
    study = runner.load(tmp_path / "c.yaml", [])

    def loss(model, key):
        x = jax.random.normal(key, (3,))
        return jnp.sum((model(x) - jnp.sin(x)) ** 2)

    def trained(run):
        model = eqx.nn.MLP(3, 3, 16, 2, key=jax.random.PRNGKey(1))
        numbers = {"batch": 16, "steps": 50, "learning_rate": 0.01, "chunk": 10}
        try:
            return train(run, model, loss, key=jax.random.PRNGKey(2), **numbers)
        finally:
            run.close("interrupted")

    whole = trained(Run(tmp_path / "whole", study, quiet=True))
    run = Run(tmp_path / "run", study, quiet=True)

    def stop(done, *_, **__):
        if done == 40:
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "step_metrics", stop)
    with pytest.raises(KeyboardInterrupt):
        trained(run)
    assert [file.name for file in run.checkpoints("training").files()][-1].endswith("30.ckpt")
    again = trained(Run(tmp_path / "run", study, quiet=True, resume=True))
    for got, expected in zip(*map(jax.tree.leaves, (again, whole)), strict=True):
        assert got is expected or np.array_equal(got, expected)
