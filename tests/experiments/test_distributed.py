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


# Several commands of the same two processes, which meet at the first of them; then attention.
COMMANDS = """
import sys
from experiments.__main__ import main
from experiments.runs.files import numbers_of

def command(*arguments):
    print("#", arguments[1], flush=True)
    print("#", arguments[1], file=sys.stderr, flush=True)
    print("code", main(["run", *arguments]), flush=True)

meet = ["--distributed", "--coordinator", sys.argv[1], "--process", sys.argv[2]]
command("--out", "data", "data.yaml", *meet)
command("--out", "both", "small.yaml")
print("# attention")
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
import attnkernel as ak

data = [np.random.default_rng(i).normal(size=(64, dim)) for i, dim in enumerate((2, 2, 3))]

def number(method, *data):
    out = ak.attend(*data, kernel=ak.Gaussian(0.5), prior=ak.Causal(), method=method)
    return jnp.sum(jnp.sin(out)), out

for ring in (False, True):
    method = ak.methods.Sharded(ring=ring)
    rows = NamedSharding(method.mesh, PartitionSpec("devices"))
    cut = [jax.make_array_from_callback(x.shape, rows, lambda part, x=x: x[part]) for x in data]
    differences = []
    for given in (data, cut):
        found = jax.grad(lambda *d: number(method, *d), (0, 1, 2), has_aux=True)(*given)
        dense = jax.grad(lambda *d: number(ak.methods.Dense(), *d), (0, 1, 2), has_aux=True)(*data)
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(dense), strict=True):
            for shard in ours.addressable_shards:
                differences.append(np.abs(np.asarray(shard.data) - theirs[shard.index]).max())
    assert len(differences) > 8
    assert max(differences) < 1e-12, differences
    print(method.devices, "devices")
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The output of two processes for each of their commands, and the folder of their runs."""
    folder = tmp_path_factory.mktemp("two")
    for name, text in (("data", DATA), ("small", RECALL)):
        (folder / f"{name}.yaml").write_text(text)
    coordinator = f"127.0.0.1:{free_port()}"
    parts = []
    for code, out, err in start_two(folder, coordinator, "{i}/2", program=("-c", COMMANDS)):
        assert code == 0, err
        parts.append([dict(re.findall(r"^# (\w+)\n([^#]*)", text, re.M)) for text in (out, err)])
    return folder, parts


@pytest.mark.slow
@pytest.mark.cli
@pytest.mark.multi_device
def test_run_of_two_processes_equals_the_run_of_one(two_processes, tmp_path):
    """One process writes, the other leaves nothing; then resumed with Slurm's environment."""
    folder, parts = two_processes
    small, both = folder / "small.yaml", folder / "both"
    assert main(["run", str(small), "--out", str(tmp_path / "one"), "--quiet"]) == 0
    expected = numbers(tmp_path / "one")
    assert len(expected) > 30
    (first, _), (second, _) = parts
    assert [out["both"].split()[-1] for out in (first, second)] == ["0", "0"]
    assert "numbers both/summary.json" in first["both"]
    assert "numbers" not in second["both"]
    np.testing.assert_allclose(numbers(both), expected, rtol=1e-6)
    assert len(read_json(both / "meta.json")["devices"]) == 4

    (both / "summary.json").unlink()
    (both / "status.json").write_text('{"state": "interrupted", "reason": "Ctrl-C"}')
    before = (both / "metrics.jsonl").read_bytes()
    slurm = {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1", "SLURM_NTASKS": "2"}
    slurm |= {"SLURM_PROCID": "{i}", "SLURM_LOCALID": "{i}"}
    slurm["SLURM_JOB_ID"] = str(free_port())  # JAX takes its port from it
    again = start_two(folder, "resume", "both", "--distributed", **slurm)
    assert [code for code, _, _ in again] == [0, 0], again
    assert (both / "metrics.jsonl").read_bytes() == before
    np.testing.assert_allclose(numbers(both), expected, rtol=1e-6)
    assert not list((folder / "temporary").iterdir())


@pytest.mark.slow
@pytest.mark.cli
@pytest.mark.multi_device
def test_what_two_processes_cannot_share_is_refused_by_each(two_processes):
    folder, parts = two_processes
    for out, err in parts:
        assert out["data"].split()[-1] == "2"
        assert "data: this study is for one process" in err["data"]
        assert "Traceback" not in err["data"]
    assert not (folder / "data").exists()


@pytest.mark.slow
@pytest.mark.cli
@pytest.mark.multi_device
def test_attention_of_two_processes_equals_dense(two_processes):
    """Arrays are whole in each process, or each process holds its own rows only."""
    _, parts = two_processes
    for out, _ in parts:
        assert out["attention"].count("4 devices") == 2


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
