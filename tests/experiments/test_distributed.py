"""Two processes of two devices each, on this machine, against one process of one device."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import main

ROOT = Path(__file__).parents[2]
IN_CONTEXT = """
study: in_context
precision: float64
contexts: [4, 8]
heads: 2
qk_size: 3
hidden: 5
batch: 8
targets: 5
steps: 30
tested: 6
"""


def together(tmp_path, commands, env=(), devices=2):
    """Commands run at once, each as its exit code, what it printed and what it complained of."""
    (tmp_path / "temporary").mkdir(exist_ok=True)
    started = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "JAX_NUM_CPU_DEVICES": str(devices),
                "NPROC": "8",
                "TMPDIR": str(tmp_path / "temporary"),
                "JAX_COMPILATION_CACHE_DIR": str(tmp_path / f"cache-{i}"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                **{name: value.format(i=i) for name, value in dict(env).items()},
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, command in enumerate(commands)
    ]
    try:
        said = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *words) for process, words in zip(started, said, strict=True)]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def pair(tmp_path, *arguments):
    """`python -m experiments ...`, by two processes that are told where to meet."""
    meet = ["--distributed", "--coordinator", f"127.0.0.1:{free_port()}", "--process"]
    commands = [["-m", "experiments", *arguments, *meet, f"{i}/2"] for i in range(2)]
    return together(tmp_path, commands)


SLURM = {  # what it says to each task of a job; JAX takes its port from the number of the job
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "{i}",
    "SLURM_LOCALID": "{i}",
    "SLURM_STEP_NUM_NODES": "1",
}


def numbers(run):
    """All numbers of a summary, in order."""

    def inside(node):
        if isinstance(node, dict | list):
            for inner in node.values() if isinstance(node, dict) else node:
                yield from inside(inner)
        elif isinstance(node, float):
            yield node

    found = list(inside(json.loads((run / "summary.json").read_text())))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return np.array(found + [json.loads(line)["loss"] for line in lines])


def test_a_run_of_two_processes(tmp_path):
    """Told where to meet, then resumed as Slurm says it; one writes, the other leaves nothing."""
    (tmp_path / "small.yaml").write_text(IN_CONTEXT)
    alone = ["-m", "experiments", "run", "small.yaml", "--out", "one"]
    (one,) = together(tmp_path, [alone], devices=1)
    assert one[0] == 0, one
    both = pair(tmp_path, "run", "small.yaml", "--out", "both")
    assert [code for code, _, _ in both] == [0, 0], both
    assert "numbers both/summary.json" in both[0][1]
    assert "numbers" not in both[1][1]
    expected = numbers(tmp_path / "one")
    assert len(expected) > 40
    np.testing.assert_allclose(numbers(tmp_path / "both"), expected, rtol=1e-6)
    devices = json.loads((tmp_path / "both" / "meta.json").read_text())["devices"]
    assert len(devices) == 4

    (tmp_path / "both" / "summary.json").unlink()
    (tmp_path / "both" / "status.json").write_text('{"state": "interrupted", "reason": "Ctrl-C"}')
    before = (tmp_path / "both" / "metrics.jsonl").read_bytes()
    command = ["-m", "experiments", "resume", "both", "--distributed"]
    again = together(tmp_path, [command] * 2, SLURM | {"SLURM_JOB_ID": str(free_port())})
    assert [code for code, _, _ in again] == [0, 0], again
    assert (tmp_path / "both" / "metrics.jsonl").read_bytes() == before
    np.testing.assert_allclose(numbers(tmp_path / "both"), expected, rtol=1e-6)
    assert not list((tmp_path / "temporary").iterdir())


def test_what_several_processes_cannot_share(tmp_path):
    (tmp_path / "data.yaml").write_text("study: data\ndata: {source: heteroskedastic, n: 20}\n")
    for code, _, complaint in pair(tmp_path, "run", "data.yaml", "--out", "data"):
        assert code == 2
        assert "data: this study is for one process" in complaint
        assert "Traceback" not in complaint
    (tmp_path / "small.yaml").write_text(IN_CONTEXT.replace("batch: 8", "batch: 6"))
    for code, _, complaint in pair(tmp_path, "run", "small.yaml", "--out", "uneven"):
        assert code == 2
        assert "batch" in complaint
        assert "6 members are cut over the 4 devices of this run" in complaint
    assert not (tmp_path / "uneven").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--process", "0/2"], "--coordinator and --process go with --distributed"),
        (["--distributed", "--process", "0/2"], "do not find each other"),
    ],
)
def test_processes_that_do_not_meet(tmp_path, capsys, options, message):
    assert main(["run", "none.yaml", *options]) == 2
    assert message in capsys.readouterr().err


ATTENTION = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
import attnkernel as ak

data = [np.random.default_rng(i).normal(size=(64, dim)) for i, dim in enumerate((2, 2, 3))]

def number(method, *data):
    out = ak.attend(*data, kernel=ak.Gaussian(0.5), prior=ak.Causal(), method=method)
    return jnp.sum(jnp.sin(out)), out

for ring in (False, True):
    method = ak.Sharded(ring=ring)
    rows = NamedSharding(method.mesh, PartitionSpec("devices"))
    cut = [jax.make_array_from_callback(x.shape, rows, lambda part, x=x: x[part]) for x in data]
    differences = []
    for given in (data, cut):
        found = jax.grad(lambda *d: number(method, *d), (0, 1, 2), has_aux=True)(*given)
        dense = jax.grad(lambda *d: number(ak.Dense(), *d), (0, 1, 2), has_aux=True)(*data)
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(dense), strict=True):
            for shard in ours.addressable_shards:
                differences.append(np.abs(np.asarray(shard.data) - theirs[shard.index]).max())
    assert len(differences) > 8
    assert max(differences) < 1e-12, differences
    print(method.devices, "devices")
"""


def test_attention_of_two_processes(tmp_path):
    """Arrays that each process has whole, and arrays of which each has its rows alone."""
    (tmp_path / "attention.py").write_text(ATTENTION)
    where = f"127.0.0.1:{free_port()}"
    for code, said, complaint in together(tmp_path, [["attention.py", where, i] for i in range(2)]):
        assert code == 0, complaint
        assert said.count("4 devices") == 2
