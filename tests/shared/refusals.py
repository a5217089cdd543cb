"""Calls that must be refused, each with a sentence."""

import pytest


def assert_refused(*cases):
    """Each case is a call without arguments, and what matches the message of its ValueError."""
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
