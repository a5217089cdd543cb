"""Strict everywhere: shapes and types are checked at run time, rank promotion raises."""

import os

import hypothesis
import jax
from jaxtyping import install_import_hook

# Must come before anything imports attnkernel; warnings are errors by pyproject.toml.
install_import_hook("attnkernel", "beartype.beartype")
jax.config.update("jax_numpy_rank_promotion", "raise")
# before anything runs: devices for what is cut over several, and threads for them to wait in
os.environ["NPROC"] = "12"
jax.config.update("jax_num_cpu_devices", 8)
# compilation has no deadline, and a run of the tests says the same each time
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.load_profile("steady")

import pytest  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--whole-table", action="store_true", help="all kernels with all priors")
    parser.addoption("--every", type=int, default=1, help="of each file every so many-th case")
    parser.addoption("--fuzz", type=int, default=200, help="how many broken configs to try")


def pytest_collection_modifyitems(config, items):
    skipped = []
    if not config.getoption("--whole-table"):
        skipped = [item for item in items if item.get_closest_marker("whole_table")]
    cases, every = {}, config.getoption("--every")
    for item in items:
        if item not in skipped:
            cases.setdefault(item.path, []).append(item)
    for of_file in cases.values():
        skipped += [item for i, item in enumerate(of_file) if i % every]
    config.hook.pytest_deselected(items=skipped)
    items[:] = [item for item in items if item not in skipped]


@pytest.fixture(autouse=True, scope="module")
def forgetful():
    """Programs are dropped after each file: a process can hold only so many mappings of memory."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64():
    """Float64 for as long as the test runs."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def optimised(monkeypatch):
    """Programs as XLA makes them for users, though `.ci/run` leaves its optimisations out.

    For what is equal only where float32 is rounded alike: Adam's bias correction, of which
    float64 trainings have one too.
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
def few_are_many(monkeypatch):
    """Sums that store no weights, as they are for many pairs, for few as well."""
    monkeypatch.setattr("attnkernel.methods._by_key._LEAST", (0, 0))
    jax.clear_caches()  # programs compiled before know nothing of it
    yield
    jax.clear_caches()
