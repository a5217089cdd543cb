"""Compiled programs are kept on disk, and a folder that cannot hold them does no harm."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import jax
import matplotlib as mpl
import pytest
from paths import CONFIGS, ROOT

import attnkernel as ak
from attnkernel._core.program_cache import without_program_cache

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


def run_python(home, *arguments, **environment):
    """The completed process of `python ARGUMENTS`; `home` is the user's cache folder."""
    places = {
        "XDG_CACHE_HOME": str(home),
        "LOCALAPPDATA": str(home),
        "MPLCONFIGDIR": mpl.get_cachedir(),
    }
    environment = {"JAX_ENABLE_COMPILATION_CACHE": "true"} | places | environment
    inherited = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=inherited | environment,
    )


def output(home, *arguments, **environment):
    """What `python ARGUMENTS` prints."""
    return run_python(home, *arguments, **environment).stdout


def run(folder):
    misses, hits, loss = output(folder, "-c", SCRIPT, str(folder)).split()
    return int(misses), int(hits), loss


def test_a_second_process_compiles_nothing_and_a_damaged_entry_is_compiled_anew(tmp_path):
    misses, hits, loss = run(tmp_path)
    assert misses == 1  # a fit is one program
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
    found = Path(output(tmp_path, "-c", script).strip())
    assert found.parts[-2:] == ("attnkernel", "programs")
    assert found.is_dir()


def test_entries_that_a_full_disk_left_empty_are_removed(tmp_path):
    script = "import sys, attnkernel as ak; ak.cache_programs(sys.argv[1])"
    for name, content in (("empty-cache", ""), ("full-cache", "a"), ("other", "")):
        (tmp_path / name).write_text(content)
    output(tmp_path, "-c", script, str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"full-cache", "other"}


def test_a_user_without_a_home_has_uncached_programs(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    before = cast(Any, jax.config).jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        assert ak.cache_programs() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_without_program_cache_turns_it_off_here_and_in_new_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "1")
    with without_program_cache():
        assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "false"
        assert ak.cache_programs(tmp_path / "programs") is None
    assert not (tmp_path / "programs").exists()
    assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "1"
    assert cast(Any, jax.config).jax_enable_compilation_cache


def run_study(home, config, *overrides, **environment):
    """Runs a config by the command line; returns its `meta.json` and the number of kept programs.

    `home`: the user's cache folder.
    """
    out = tempfile.mkdtemp(dir=home)
    command = ["-m", "experiments", "run", str(CONFIGS / f"{config}.yaml"), "--quiet", *overrides]
    assert run_python(home, *command, "--out", f"{out}/run", **environment).stderr == ""
    meta = json.loads(Path(f"{out}/run/meta.json").read_text())
    return meta, len(list(home.glob("attnkernel/programs/*-cache")))


@pytest.mark.cli
def test_command_line_keeps_programs_in_the_cache_folder_of_the_user(tmp_path):
    holdout = ("holdout", "training.steps=2", "hold_out=[1]")
    meta, programs = run_study(tmp_path, *holdout, JAX_ENABLE_COMPILATION_CACHE="false")
    assert (meta["caches_programs"], programs) == (False, 0)
    meta, programs = run_study(tmp_path, *holdout)
    assert meta["caches_programs"]
    assert programs > 3
    assert run_study(tmp_path, *holdout)[1] == programs


@pytest.mark.cli
def test_benchmark_keeps_no_programs(tmp_path):
    sizes = ("cache", "size=8", "compared=8", "window=4", "lengths=[16,32]", "repeats=1")
    own = tmp_path / "own"
    meta, programs = run_study(tmp_path, *sizes, JAX_COMPILATION_CACHE_DIR=str(own))
    assert (meta["caches_programs"], programs) == (False, 0)
    assert not list(own.iterdir())
