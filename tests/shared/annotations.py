"""Checks annotations while tests run, by jaxtyping's import hook."""

import beartype


def checked(function):
    """Checks a function by beartype, unless it is defined inside another.

    Checks of those would be written anew in each call of the outer one: 8 % of the CPU time of the
    tests of models.
    """
    return function if "<locals>" in function.__qualname__ else beartype.beartype(function)
