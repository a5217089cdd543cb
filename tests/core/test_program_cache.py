"""Compiled programs are kept on disk, and a folder that cannot hold them does no harm; options of
XLA's compiler change no result."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import matplotlib as mpl
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from paths import ROOT

import attnkernel as ak
from attnkernel._core.compilation import can_use_options
from experiments import __main__ as command_line
from experiments.config.registry import STUDIES
from experiments.runs import provenance, runner
from experiments.runs.runner import without_program_cache

JAX: Any = cast(Any, jax.config)
ENABLED, FOLDER = "jax_enable_compilation_cache", "jax_compilation_cache_dir"


@pytest.fixture(autouse=True)
def settings_of_jax():
    """Restores the cache of this process."""
    names = (ENABLED, FOLDER, "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(JAX, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A user whose folders are in `tmp_path`, also in the processes that the test starts."""
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")  # the default of JAX
    monkeypatch.setenv("MPLCONFIGDIR", mpl.get_cachedir())
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    jax.config.update(FOLDER, None)
    return tmp_path


def output(script):
    """The lines that a script of Python prints."""
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()


# a fit, the same fit, and once more after the largest entry is damaged
FITS = """
import jax, numpy as np, attnkernel as ak
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
folder = ak.cache_programs()
print(folder)
x = np.linspace(0.0, 1.0, 20)
for _ in range(2):
    events.clear()
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(0.3)), x, np.sin(6.0 * x), starts=1)
    counts = (events.count(f"/jax/compilation_cache/cache_{name}") for name in ("misses", "hits"))
    print(*counts, float(fit.loss).hex())
    jax.clear_caches()
    if damages:
        largest = max(folder.glob("*-cache"), key=lambda path: path.stat().st_size)
        largest.write_bytes(largest.read_bytes()[:100])
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_a_damaged_entry_is_compiled_anew(user):
    folder, first, again = output(f"damages = False{FITS}")
    assert Path(folder).is_relative_to(user)
    assert Path(folder).parts[-2:] == ("attnkernel", "programs")
    loss = first.split()[-1]
    assert (first, again) == (f"1 0 {loss}", f"0 1 {loss}")  # a fit is one program
    _, second, damaged = output(f"damages = True{FITS}")
    assert second == f"0 1 {loss}"
    assert damaged.split()[-1] == loss


def test_a_folder_that_cannot_be_written_leaves_programs_uncached(tmp_path):
    (tmp_path / "file").touch()
    assert ak.cache_programs(tmp_path / "file" / "folder") is None


def test_entries_that_a_full_disk_left_empty_are_removed(tmp_path):
    for name, content in (("empty-cache", ""), ("full-cache", "a"), ("other", "")):
        (tmp_path / name).write_text(content)
    assert ak.cache_programs(tmp_path) == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == {"full-cache", "other"}


def test_a_user_without_a_home_has_uncached_programs(user, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(Path, "home", no_home)
    assert ak.cache_programs() is None


@pytest.mark.parametrize(("variable", "is_on"), [("1", True), ("false", False), (None, False)])
def test_without_program_cache_turns_it_off_here_and_in_new_processes(
    user, monkeypatch, variable, is_on
):
    name = "JAX_ENABLE_COMPILATION_CACHE"
    monkeypatch.setenv(name, variable) if variable else monkeypatch.delenv(name)
    jax.config.update(ENABLED, is_on)
    with without_program_cache():
        assert os.environ[name] == "false"
        assert ak.cache_programs(user / "programs") is None
    assert not (user / "programs").exists()
    assert os.environ.get(name) == variable
    assert getattr(JAX, ENABLED) == is_on


@pytest.mark.parametrize(("command", "is_cached"), [("run holdout.yaml", True), ("list", False)])
def test_commands_that_compute_keep_programs(user, monkeypatch, command, is_cached):
    monkeypatch.setattr(sys, "argv", ["experiments", *command.split()])
    monkeypatch.setattr(command_line, "_run_command", lambda *_: getattr(JAX, FOLDER))
    folder = command_line.main()
    assert (folder is not None) == provenance._caches_programs() == is_cached
    assert not folder or Path(folder).is_relative_to(user)
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == ("3" if is_cached else "1")


@pytest.mark.parametrize(("config", "is_cached"), [("holdout", True), ("cache", False)])
def test_a_benchmark_runs_without_the_cache_that_another_study_has(user, config, is_cached):
    ak.cache_programs()
    fields = {"precision": "float32", "legacy_prng": False, "style": "light"}
    study: Any = SimpleNamespace(is_benchmark=STUDIES[config].is_benchmark, **fields)
    with runner.settings(study):
        assert provenance._caches_programs() == is_cached
        assert getattr(JAX, ENABLED) == is_cached
    jax.config.update(ENABLED, False)
    assert not provenance._caches_programs()


X = np.linspace(0.0, 1.0, 30) ** 1.5
Y = np.sin(6.0 * X) + 0.1 * np.cos(70.0 * X)


def results():
    """Results of a fit and of its predictions, which are compiled with options if any is."""
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(0.2)), X, Y, objective=ak.LeaveOneOut(), starts=1)
    return fit.loss, fit.model.kernel.lengthscale, fit(X[::5])


@pytest.mark.slow
def test_options_change_no_result(x64, request):
    assert not can_use_options(jax.device_put(X))
    expected = jax.device_get(results())
    request.getfixturevalue("optimised")
    assert can_use_options(jax.device_put(X)) == (jax.default_backend() == "cpu")
    for found, without in zip(results(), expected, strict=True):
        np.testing.assert_allclose(found, without, rtol=1e-5)
