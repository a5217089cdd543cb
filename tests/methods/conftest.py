"""A fixture in place of cuDNN."""

import jax
import pytest
from accelerators import cudnn_by_formula

from attnkernel.methods import _half_precision


@pytest.fixture
def emulated_cudnn(monkeypatch):
    """Computes cuDNN's sum by its documented formula."""
    monkeypatch.setattr(_half_precision, "_call_cudnn", cudnn_by_formula)
    jax.clear_caches()
    yield
    jax.clear_caches()
