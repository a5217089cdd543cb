"""Two processes of two devices each, on this machine, against one process."""

import re
import socket

import numpy as np
import pytest
from outputs import read_json, read_lines, start
from small_configs import DATA

from experiments.__main__ import main
from experiments.runs.files import numbers_of

RECALL = """
study: associative_recall
precision: float64
layers: [softmax]
pairs: [2]
key_tokens: 4
value_tokens: 3
size: 6
qk_size: 3
seeds: 2
batch: 8
steps: 30
tested: 6
"""
UNEVEN = RECALL.replace("batch: 8", "batch: 6")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_two(folder, *arguments, program=("-m", "experiments"), **env):
    """Starts Python twice at once, `{i}` being 0 and 1; returns code, output and errors of both."""
    (folder / "temporary").mkdir(exist_ok=True)
    shared = {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8", "TMPDIR": str(folder / "temporary")}

    def start_one(i):
        parts = [argument.replace("{i}", str(i)) for argument in arguments]
        own = {name: value.replace("{i}", str(i)) for name, value in (env | shared).items()}
        return start(*parts, program=program, cwd=folder, env=own)

    started = [start_one(i) for i in range(2)]
    try:
        printed = [process.communicate(timeout=500) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *both) for process, both in zip(started, printed, strict=True)]


def numbers(run):
    """All numbers of a summary, in order, and the losses of the training."""
    losses = [row["loss"] for row in read_lines(run / "metrics.jsonl")]
    return np.array([*numbers_of(read_json(run / "summary.json")).values(), *losses])


# Two commands of the same two processes, which meet at the first of them; then attention.
COMMANDS = """
import shutil, sys
from pathlib import Path
from experiments.__main__ import main

def command(*arguments):
    print("#", arguments[0], flush=True)
    print("code", main([*arguments]), flush=True)

meet = ["--distributed", "--coordinator", sys.argv[1], "--process", sys.argv[2]]
command("run", "small.yaml", "--out", "both", *meet)
import jax
from jax.experimental.multihost_utils import sync_global_devices
both = Path("both")
if jax.process_index() == 0:
    shutil.copytree(both, "once")
    (both / "summary.json").unlink()
    (both / "status.json").write_text('{"state": "interrupted", "reason": "Ctrl-C"}')
sync_global_devices("interrupted")
command("resume", "both")
print("# attention")
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
import attnkernel as ak

data = [np.random.default_rng(i).normal(size=(64, dim)) for i, dim in enumerate((2, 2, 3))]

def number(method, *data):
    out = ak.attend(*data, kernel=ak.Gaussian(0.5), prior=ak.Causal(), method=method)
    return jnp.sum(jnp.sin(out)), out

gradients = jax.jit(jax.grad(number, (1, 2, 3), has_aux=True), static_argnums=0)
dense = gradients(ak.methods.Dense(), *data)
for ring in (False, True):
    method = ak.methods.Sharded(ring=ring)
    rows = NamedSharding(method.mesh, PartitionSpec("devices"))
    cut = [jax.make_array_from_callback(x.shape, rows, lambda part, x=x: x[part]) for x in data]
    differences = []
    for given in (data, cut):
        found = gradients(method, *given)
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(dense), strict=True):
            for shard in ours.addressable_shards:
                differences.append(np.abs(np.asarray(shard.data) - theirs[shard.index]).max())
    assert len(differences) > 8
    assert max(differences) < 1e-12, differences
    print(method.devices, "devices")
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What two processes printed for each of their commands, and the folder of their runs."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "small.yaml").write_text(RECALL)
    coordinator = f"127.0.0.1:{free_port()}"
    parts = []
    for code, out, err in start_two(folder, coordinator, "{i}/2", program=("-c", COMMANDS)):
        assert code == 0, err
        parts.append(dict(re.findall(r"^# (\w+)\n([^#]*)", out, re.M)))
    return folder, parts


@pytest.mark.slow
@pytest.mark.cli
@pytest.mark.multi_device
def test_two_processes_equal_one(two_processes, home):
    """One process writes, the other leaves nothing; and so when they resume. Their attention is of
    arrays that are whole in each, or of which each holds its own rows."""
    folder, parts = two_processes
    assert main(["run", str(folder / "small.yaml"), "--out", "one", "--quiet"]) == 0
    expected = numbers(home / "one")
    assert len(expected) > 30
    for command in ("run", "resume"):
        first, second = (out[command] for out in parts)
        assert [out.split()[-1] for out in (first, second)] == ["0", "0"]
        assert "numbers both/summary.json" in first
        assert "numbers" not in second
    for run in ("once", "both"):
        np.testing.assert_allclose(numbers(folder / run), expected, rtol=1e-6)
    assert len(read_json(folder / "both" / "meta.json")["devices"]) == 4
    assert [out["attention"].count("4 devices") for out in parts] == [2, 2]
    once, both = ((folder / run / "metrics.jsonl").read_bytes() for run in ("once", "both"))
    assert once == both
    assert not list((folder / "temporary").iterdir())


@pytest.mark.slow
@pytest.mark.cli
@pytest.mark.multi_device
def test_what_two_processes_cannot_share_is_refused_by_each(home):
    """They meet by Slurm's environment."""
    (home / "data.yaml").write_text(DATA)
    slurm = {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1", "SLURM_NTASKS": "2"}
    slurm |= {"SLURM_PROCID": "{i}", "SLURM_LOCALID": "{i}"}
    slurm["SLURM_JOB_ID"] = str(free_port())  # JAX takes its port from it
    refused = start_two(home, "run", "data.yaml", "--out", "data", "--distributed", **slurm)
    for code, _, err in refused:
        assert code == 2
        assert "data: this study is for one process" in err
        assert "Traceback" not in err
    assert not (home / "data").exists()


@pytest.mark.multi_device
def test_batch_that_devices_cannot_share_evenly_is_refused(home, error_of):
    (home / "uneven.yaml").write_text(UNEVEN)
    assert re.search(r"batch: 6 .*\b8 devices", error_of("validate", "uneven.yaml"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--process", "0/2"], "--coordinator and --process go with --distributed"),
        (["--distributed", "--process", "0/2"], "--coordinator HOST:PORT"),
    ],
)
def test_processes_that_cannot_meet_are_refused(error_of, options, message):
    assert message in error_of("run", "none.yaml", *options)
