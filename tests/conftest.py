"""Settings of every test: strict checks, cheap compilation, `--all`, and a budget of programs.

Tests compile with XLA's optimisations off, in the commands that they start too: compilation is
most of their time. `pytest --optimised` compiles as users do.
"""

import functools
import gc
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import hypothesis
import jax
import jax.monitoring
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
# Operations do not name the lines that they come from: 4 % of the CPU time of tests of inference.
jax.config.update("jax_traceback_in_locations_limit", 0)
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # in the commands that tests start
# Before the first computation: eight virtual devices, and threads for their collectives.
os.environ["NPROC"] = "12"
jax.config.update("jax_num_cpu_devices", 8)
# Commands that tests start keep no compiled program in the user's cache folder.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
jax.config.update("jax_enable_compilation_cache", True)  # workers read the environment
# No deadline: a first call compiles. The same examples in every run.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")

# CPU seconds to compile 8 programs of law 1: 19.2 by default, 11.2 without optimisations, 4.0 with
# the old code generator of fusions too, 3.0 with one LLVM module per program.
CHEAP_XLA_FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
MAX_MEMORY_MAPPINGS = 30_000  # Linux allows a process 65,530; each program takes some
MARKS = ("slow", "docs", "cli", "browser", "multi_device")


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the tests marked slow too")
    parser.addoption("--optimised", action="store_true", help="compile as users do")
    parser.addoption("--annotations", action="store_true", help="check types and shapes in calls")
    parser.addoption("--fuzz", type=int, default=200, help="number of broken configs to try")
    parser.addoption("--reversed", action="store_true", help="run the last test first")
    parser.addoption("--costliest", type=int, default=0, help="list so many tests by programs")
    parser.addoption("--max-programs", type=int, help="fail if the run compiles more")
    parser.addoption("--max-work", type=int, help="fail if it takes more units of CPU time")


def pytest_configure(config):
    if config.getoption("--annotations"):  # before anything imports attnkernel
        install_import_hook("attnkernel", "annotations.checked")
    if not config.getoption("--optimised"):
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        jax.config.update("jax_disable_most_optimizations", True)
        if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit the environment
            flags = f"{os.environ.get('XLA_FLAGS', '')} {CHEAP_XLA_FLAGS}".strip()
            # XLA ends a process on a flag that it does not know, as another version may not
            command = [sys.executable, "-c", "import jax; jax.devices()"]
            env = os.environ | {"XLA_FLAGS": flags}
            known = subprocess.run(command, env=env, capture_output=True, check=False)
            if known.returncode == 0:
                os.environ["XLA_FLAGS"] = flags
    config.pluginmanager.register(Costs(config))


def pytest_collection_modifyitems(config, items):
    """Deselects the slow tests, unless `--all`; starts with the build of the documentation."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow and not config.getoption("--all"):
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]
    if config.getoption("--reversed"):
        items.reverse()
    items.sort(key=lambda item: item.get_closest_marker("docs") is None)


def pytest_runtest_setup(item):
    """Skips a test that needs what this machine has not: a package of R, or float16."""
    for marker in item.iter_markers("needs_r"):
        if reason := reason_without_r(*marker.args):
            pytest.skip(reason)
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    float16 = any(value is jnp.float16 for value in parameters)
    if (float16 or item.get_closest_marker("needs_float16")) and not compiles_float16():
        pytest.skip("XLA compiles no float16 for processors without AVX")


@functools.cache
def compiles_float16():
    """Whether XLA compiles a sum in float16."""
    try:
        jax.jit(lambda x: x + x)(jax.device_put(np.ones(3, np.float16)))
    except jax.errors.JaxRuntimeError:
        return False
    return True


@functools.cache
def reason_without_r(package):
    """Returns what to install, so that R has a package; None if it has."""
    from experiments.benchmarks.driver import Unavailable  # noqa: PLC0415
    from experiments.benchmarks.r_scripts import rscript_with  # noqa: PLC0415

    try:
        rscript_with(package)
    except Unavailable as error:
        return f"{error}. On Debian: apt install r-base-core; in R: install.packages({package!r})"
    return None


def pytest_collection_finish(session):
    """Collects garbage rarely: 7 to 9 % of the CPU time of 70 tests of `methods` and `models`."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def unit_of_work():
    """CPU seconds to trace, lower and compile a fixed program: how fast this processor is, with all
    that it does besides."""

    def step(x, _):
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ x.T) + jnp.sort(x), x), None

    def total(x):
        return jnp.sum(jax.lax.scan(step, x, length=3)[0] ** 2)

    start = time.process_time()
    jax.jit(jax.hessian(total)).lower(jax.ShapeDtypeStruct((3, 3), jnp.float32)).compile()
    return time.process_time() - start


TESTS_OF_A_UNIT = 300  # of a worker, between two measurements of a unit


class Costs:
    """Counts the programs of each test, prints the cost of the run, and holds it to a budget.

    The budget of CPU time is in units that each worker measures between its tests: the same tests
    took 660 to 790 seconds on machines of one kind.
    """

    def __init__(self, config):
        self.config = config
        self.programs = 0
        self.tests = 0
        self.units = []  # CPU seconds of one
        self.by_test = Counter()
        self.seconds = Counter()
        jax.monitoring.register_event_duration_secs_listener(self.count)

    def count(self, event, seconds, **_):
        self.programs += event == "/jax/core/compile/backend_compile_duration"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        if self.tests % TESTS_OF_A_UNIT == 0:
            self.units.append(unit_of_work())
        self.tests += 1
        self.programs = 0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "setup":
            marks = [mark for mark in MARKS if item.get_closest_marker(mark)]
            item.user_properties.append(("marks", marks or ["no mark"]))
        if call.when == "teardown":
            item.user_properties.append(("programs", self.programs))
        return (yield)

    def pytest_runtest_logreport(self, report):
        properties = dict(report.user_properties)
        self.by_test[report.nodeid] += properties.get("programs", 0)
        for mark in properties.get("marks", []):
            self.seconds[mark] += report.duration

    def spent(self):
        """Programs, and units of CPU time of the run, its workers and its commands."""
        work = sum(os.times()[:4]) / np.median(self.units) if self.units else 0
        return {"programs": self.by_test.total(), "work": round(work)}

    def excesses(self):
        """What the run took more of than its budget allows, a sentence each."""
        limits = {unit: self.config.getoption(f"--max-{unit}") for unit in self.spent()}
        return [
            f"{unit}: the run took {spent}; its budget is {limits[unit]}."
            for unit, spent in self.spent().items()
            if limits[unit] is not None and spent > limits[unit]
        ]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        self.units += getattr(node, "workeroutput", {}).get("units", [])

    @pytest.hookimpl(wrapper=True, trylast=True)  # after the workers have ended
    def pytest_sessionfinish(self, session):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["units"] = self.units
        result = yield
        if "PYTEST_XDIST_WORKER" not in os.environ and self.excesses():
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        return result

    def pytest_terminal_summary(self, terminalreporter):
        for test, programs in self.by_test.most_common(self.config.getoption("--costliest")):
            terminalreporter.write_line(f"{programs:5} {test}")
        seconds = ", ".join(
            f"{mark} {self.seconds[mark]:.0f}"
            for mark in (*MARKS, "no mark")
            if round(self.seconds[mark])
        )
        spent = self.spent()
        terminalreporter.write_line(
            f"{spent['programs']} programs compiled in {sum(os.times()[:4]):.0f} CPU seconds, "
            f"{spent['work']} units of {np.median(self.units or 0):.2f}; seconds by mark: {seconds}"
        )
        for sentence in self.excesses():
            terminalreporter.write_line(sentence, red=True)


@pytest.fixture(autouse=True, scope="module")
def bounded_memory_mappings():
    """Drops compiled programs before the process runs out of memory mappings."""
    yield
    mappings = Path("/proc/self/maps")
    if not mappings.exists() or mappings.read_text().count("\n") > MAX_MEMORY_MAPPINGS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site of the documentation, by the command of CONTRIBUTING.md: built once for all workers,
    without a warning."""
    import fcntl  # noqa: PLC0415  not on Windows

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    # pages show the path that they were written to
    site = folder / "a_folder_with_a_name_as_long_as_names_of_folders_are"
    root = Path(__file__).parents[1]
    (command,) = re.findall(r"python (-m sphinx .*)", (root / "CONTRIBUTING.md").read_text())
    with (folder / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not site.exists():
            words = [sys.executable, *shlex.split(command)[:-1], str(site)]
            # one thread: the arrays of pages are small
            options = {"cwd": root, "env": os.environ | {"PYTHONPATH": str(root), "NPROC": "1"}}
            done = subprocess.run(words, **options, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return site


@pytest.fixture
def x64():
    """Float64 for as long as the test runs."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def programs():
    """The names of the programs that are compiled while the test runs."""
    names = []

    def listen(event, _, *, fun_name="", **__):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def optimised(monkeypatch):
    """Programs compiled as for users, here and in the commands that the test starts.

    For results that are equal only where float32 is rounded alike, such as Adam's bias correction.
    """
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
    yield
    jax.config.update("jax_disable_most_optimizations", before)
    jax.clear_caches()


@pytest.fixture
def legacy_prng():
    """JAX's random numbers as they were in 2024."""
    with jax.threefry_partitionable(False):
        yield


@pytest.fixture
def force_unmaterialised(monkeypatch):
    """Takes the code path of large sums, which store no weights, for small ones too.

    It unrolls 4 keys instead of 16: the same sums, in a quarter of the compilation.
    """
    for name, size in (("MIN_QUERIES", 0), ("MIN_PAIRS", 0), ("UNROLLED_KEYS", 4)):
        monkeypatch.setattr(f"attnkernel.methods._blockwise_unmaterialised.{name}", size)
    jax.clear_caches()  # programs compiled before took the other path
    yield
    jax.clear_caches()


@pytest.fixture
def as_users_run_it():
    """Annotations are checked in tests alone: here they are not."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
