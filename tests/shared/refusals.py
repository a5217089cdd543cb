"""Calls that must be refused, each with a sentence."""

import pytest


def assert_raises(message, function, *arguments, **options):
    """Calls the function: it must raise a ValueError whose message this pattern matches."""
    with pytest.raises(ValueError, match=message):
        function(*arguments, **options)


def assert_refused(*cases):
    """Each case is a call without arguments, and what matches the message of its ValueError."""
    for call, message in cases:
        assert_raises(message, call)
