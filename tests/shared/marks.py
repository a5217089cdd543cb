"""Cases of a parametrised test that run with `--all` only."""

import pytest


def slow(*case, **named):
    return pytest.param(*case, marks=pytest.mark.slow, **named)
