"""Marks of tests: cases that run with `--all` only, and tests that need jax-finufft."""

import importlib.util

import pytest

needs_finufft = pytest.mark.skipif(
    importlib.util.find_spec("jax_finufft") is None,
    reason="jax-finufft is not installed: pip install 'attnkernel[fourier]', not on Windows",
)


def slow(*case, **named):
    return pytest.param(*case, marks=pytest.mark.slow, **named)
