"""Marks of tests: those that run with `--all` only, in Chromium too, or need jax-finufft."""

import importlib.util

import pytest

needs_finufft = pytest.mark.skipif(
    importlib.util.find_spec("jax_finufft") is None,
    reason="jax-finufft is not installed: pip install 'attnkernel[fourier]', not on Windows",
)


def slow(*case, **named):
    return pytest.param(*case, marks=pytest.mark.slow, **named)


def in_chromium(test):
    return pytest.mark.browser(pytest.mark.slow(test))
