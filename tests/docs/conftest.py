"""Fixtures of the tests of the documentation."""

import importlib.util
import sys

import pytest


@pytest.fixture(scope="session")
def load():
    """Imports a file of `docs/`, which is no package."""
    before = list(sys.path)

    def load(path):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    yield load
    sys.path[:] = before
