"""Compiled programs are kept on disk, and a folder that cannot hold them does no harm."""

import os
import subprocess
import sys
from pathlib import Path

from paths import ROOT

import attnkernel as ak

SCRIPT = """
import sys
import jax
import numpy as np
import attnkernel as ak
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
x = np.linspace(0.0, 1.0, 20)
assert str(ak.cache_programs(sys.argv[1])) == sys.argv[1]
fit = ak.fit(ak.KernelRegression(ak.Gaussian(0.3)), x, np.sin(6.0 * x))
misses, hits = (events.count(f"/jax/compilation_cache/cache_{e}") for e in ("misses", "hits"))
print(misses, hits, float(fit.loss).hex())
"""


def run(folder):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    misses, hits, loss = found.stdout.split()
    return int(misses), int(hits), loss


def test_a_second_process_compiles_nothing_and_a_damaged_entry_is_compiled_anew(tmp_path):
    misses, hits, loss = run(tmp_path)
    assert misses > 3
    assert hits == 0
    assert run(tmp_path) == (0, misses, loss)
    damaged = max(tmp_path.glob("*-cache"), key=lambda path: path.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert run(tmp_path)[2] == loss


def test_a_folder_that_cannot_be_written_leaves_programs_uncached(tmp_path):
    (tmp_path / "file").touch()
    assert ak.cache_programs(tmp_path / "file" / "folder") is None


def test_the_default_folder_is_in_the_cache_folder_of_the_user(tmp_path):
    script = "import attnkernel as ak; print(ak.cache_programs())"
    places = {"XDG_CACHE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    environment = {**os.environ, **places}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-c", script]
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    assert Path(found.stdout.strip()).parts[-2:] == ("attnkernel", "programs")
